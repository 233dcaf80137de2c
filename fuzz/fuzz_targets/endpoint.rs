//! Any text: an endpoint in its one normal form, or an error. A pattern likewise, and the index agrees with it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate::Endpoint;
use tollgate::rules::pattern::{Pattern, PatternIndex};

fuzz_target!(|text: &str| {
    let (first, second) = text.split_once('\n').unwrap_or((text, text));
    let endpoint = normalises(first);
    let patterns: Vec<Pattern> = second.split('\n').filter_map(survives_display).collect();
    if let Some(endpoint) = endpoint {
        index_agrees(&patterns, &endpoint);
    }
});

/// The normal form is visible ASCII, has no empty and no dot segments, and is its own normal form.
fn normalises(text: &str) -> Option<Endpoint<'_>> {
    let endpoint = Endpoint::parse(text).ok()?;
    let normal = endpoint.as_str();
    assert!(normal.starts_with('/') && normal.bytes().all(|byte| byte.is_ascii_graphic()), "{normal:?}");
    assert!(normal == "/" || normal.split('/').skip(1).all(|segment| !["", ".", ".."].contains(&segment)));
    assert!(!normal.contains(['\\', '?', '#', ';', '"', '<', '>']), "{normal:?}");
    match Endpoint::parse(normal) {
        Ok(again) => assert_eq!(again.as_str(), normal, "from {text:?}"),
        Err(error) => panic!("{normal:?}, from {text:?}, is not normal: {error}"),
    }
    // What stands behind the path never matters.
    let query = format!("{normal}?q=1#f");
    assert_eq!(Endpoint::parse(&query).map(|same| same.as_str().to_owned()).as_deref(), Ok(normal));
    is_normal_without_case(&endpoint);
    Some(endpoint)
}

/// Without case it is a normal form too, unless it has become too long for one, and has none left.
fn is_normal_without_case(endpoint: &Endpoint<'_>) {
    let without = endpoint.clone().casefold();
    assert_eq!(without.clone().casefold(), without, "from {endpoint}");
    if without.as_str().len() <= endpoint.as_str().len() {
        assert_eq!(Endpoint::parse(without.as_str()).as_ref(), Ok(&without), "from {endpoint}");
    }
}

fn survives_display(text: &str) -> Option<Pattern> {
    let pattern = Pattern::parse(text).ok()?;
    assert_eq!(Pattern::parse(&pattern.to_string()).as_ref(), Ok(&pattern), "from {text:?}");
    Some(pattern)
}

fn index_agrees(patterns: &[Pattern], endpoint: &Endpoint<'_>) {
    let mut index = PatternIndex::default();
    for (number, pattern) in (0..).zip(patterns) {
        index.insert(pattern, number);
    }
    let mut found = Vec::new();
    index.for_each_match(endpoint, |number| found.push(number));
    found.sort_unstable();
    let matching = (0..).zip(patterns).filter(|(_, pattern)| pattern.matches(endpoint));
    assert_eq!(found, matching.map(|(number, _)| number).collect::<Vec<u32>>(), "{endpoint}");
}

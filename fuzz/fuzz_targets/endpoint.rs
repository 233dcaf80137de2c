//! Endpoints and patterns from arbitrary text: rejected, or normalized; the index finds exactly the matching patterns.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate::Endpoint;
use tollgate::rules::pattern::Pattern;
use tollgate::rules::pattern_index::PatternIndex;

fuzz_target!(|text: &str| {
    let (first, second) = text.split_once('\n').unwrap_or((text, text));
    let endpoint = normalized(first);
    let patterns: Vec<Pattern> = second.split('\n').filter_map(parse_pattern).collect();
    if let Some(endpoint) = endpoint {
        assert_index_agrees(&patterns, &endpoint);
    }
});

/// The normal form is visible ASCII without empty or dot segments, and normalizing it again does not change it.
fn normalized(text: &str) -> Option<Endpoint<'_>> {
    let endpoint = Endpoint::parse(text).ok()?;
    let normal = endpoint.as_str();
    assert!(normal.starts_with('/') && normal.bytes().all(|byte| byte.is_ascii_graphic()), "{normal:?}");
    assert!(normal == "/" || normal.split('/').skip(1).all(|segment| !["", ".", ".."].contains(&segment)));
    assert!(!normal.contains(['\\', '?', '#', ';', '"', '<', '>']), "{normal:?}");
    match Endpoint::parse(normal) {
        Ok(again) => assert_eq!(again.as_str(), normal, "from {text:?}"),
        Err(error) => panic!("{normal:?}, from {text:?}, is rejected: {error}"),
    }
    // Query and fragment are ignored.
    let query = format!("{normal}?q=1#f");
    assert_eq!(Endpoint::parse(&query).map(|same| same.as_str().to_owned()).as_deref(), Ok(normal));
    assert_case_folding(&endpoint);
    Some(endpoint)
}

/// The case-folded form is stable and, unless folding made it longer, a normal form too.
fn assert_case_folding(endpoint: &Endpoint<'_>) {
    let without = endpoint.clone().casefold();
    assert_eq!(without.clone().casefold(), without, "from {endpoint}");
    if without.as_str().len() <= endpoint.as_str().len() {
        assert_eq!(Endpoint::parse(without.as_str()).as_ref(), Ok(&without), "from {endpoint}");
    }
}

fn parse_pattern(text: &str) -> Option<Pattern> {
    let pattern = Pattern::parse(text).ok()?;
    assert_eq!(Pattern::parse(&pattern.to_string()).as_ref(), Ok(&pattern), "from {text:?}");
    Some(pattern)
}

fn assert_index_agrees(patterns: &[Pattern], endpoint: &Endpoint<'_>) {
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

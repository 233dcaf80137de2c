//! In which form metrics are told: OpenMetrics, or the text of before (`text/plain; version=0.0.4`), which older scrapers ask for.

use std::fmt::Write as _;

use http::{HeaderMap, HeaderValue, header};

/// Whether the caller would rather have plain text. Who says nothing of it, or takes both alike, gets OpenMetrics.
pub(crate) fn wants_plain_text(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|value| HeaderValue::to_str(value).ok());
    let ranges: Vec<(&str, u16)> = accepted.flat_map(|value| value.split(',')).map(range).collect();
    let weight = |full: &str, main: &str| {
        // The one that says most of it.
        let of = |name: &str| ranges.iter().find(|(range, _)| range.eq_ignore_ascii_case(name));
        of(full).or_else(|| of(main)).or_else(|| of("*/*")).map_or(0, |(_, weight)| *weight)
    };
    weight("text/plain", "text/*") > weight("application/openmetrics-text", "application/*")
}

/// A media range without its parameters, and its weight in thousandths; one that cannot be read weighs all.
fn range(text: &str) -> (&str, u16) {
    let mut parts = text.split(';').map(str::trim);
    let name = parts.next().unwrap_or_default();
    let weight = parts.find_map(|part| part.strip_prefix("q=").or_else(|| part.strip_prefix("Q=")));
    (name, weight.and_then(thousandths).unwrap_or(1_000))
}

fn thousandths(weight: &str) -> Option<u16> {
    let (whole, fraction) = weight.split_once('.').unwrap_or((weight, ""));
    let digits = format!("{fraction:0<3}");
    let thousandths = digits.get(..3)?.parse::<u16>().ok()?;
    Some((whole.parse::<u16>().ok()?.min(1) * 1_000 + thousandths).min(1_000))
}

/// OpenMetrics text in the form of before: a counter has one name, that of its sample, and nothing marks the end.
pub(crate) fn classic(openmetrics: &str) -> String {
    let mut text = String::with_capacity(openmetrics.len());
    let mut lines = openmetrics.lines().peekable();
    while let Some(line) = lines.next() {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            // The type of what a help is about stands behind it.
            (Some("#"), Some("HELP"), Some(name), help) => {
                let typed = lines.peek().and_then(|next| next.strip_prefix("# TYPE "));
                let suffix = typed.map_or("", suffix_of);
                let _ = writeln!(text, "# HELP {name}{suffix} {}", help.unwrap_or_default());
            }
            (Some("#"), Some("TYPE"), Some(name), Some(kind)) => {
                let suffix = suffix_of(line);
                let _ = writeln!(text, "# TYPE {name}{suffix} {kind}");
            }
            (Some("#"), ..) => {}
            _ => {
                let _ = writeln!(text, "{line}");
            }
        }
    }
    text
}

/// What samples of this type have behind the name.
fn suffix_of(typed: &str) -> &'static str {
    if typed.ends_with(" counter") { "_total" } else { "" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_text_is_for_those_who_would_rather_have_it() {
        for (accept, plain) in [
            ("", false),
            ("*/*", false),
            ("text/plain;version=0.0.4", true),
            ("text/plain; version=0.0.4; q=0.5, */*;q=0.1", true),
            ("TEXT/PLAIN", true),
            ("text/*", true),
            ("application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1", false),
            (
                "application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
                false,
            ),
            ("application/openmetrics-text;q=0.2,text/plain;q=0.25", true),
            ("application/openmetrics-text;q=0,*/*", true),
            ("application/openmetrics-text, text/plain", false),
            ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", false),
            ("application/json", false),
        ] {
            let mut headers = HeaderMap::new();
            if !accept.is_empty() {
                headers.insert(header::ACCEPT, accept.parse().unwrap());
            }
            assert_eq!(wants_plain_text(&headers), plain, "{accept}");
        }
    }

    #[test]
    fn counters_are_told_under_the_names_of_their_samples() {
        let openmetrics = "\
# HELP tollgate_decisions Decisions by the rule that decided.
# TYPE tollgate_decisions counter
tollgate_decisions_total{rule=\"# a\",decision=\"admitted\"} 3
# HELP tollgate_connections Open now.
# TYPE tollgate_connections gauge
tollgate_connections 1
# EOF
";
        let expected = "\
# HELP tollgate_decisions_total Decisions by the rule that decided.
# TYPE tollgate_decisions_total counter
tollgate_decisions_total{rule=\"# a\",decision=\"admitted\"} 3
# HELP tollgate_connections Open now.
# TYPE tollgate_connections gauge
tollgate_connections 1
";
        assert_eq!(classic(openmetrics), expected);
    }
}

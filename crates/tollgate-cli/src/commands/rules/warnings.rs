//! Rules that are valid and yet hardly meant: those that never apply, and limits that never decide.
//!
//! A rule is called unreachable only if that is certain: an earlier rule meets every request that the later one
//! does, and then ends the walk or takes the layer. Which tiers, users or tenants exist is not known here, so
//! conditions on them are compared with each other and with nothing else.

use tollgate::identity::Dimension;
use tollgate::rules::pattern::Pattern;
use tollgate::rules::{Action, Matcher, Rule};
use tollgate::{Algorithm, Limit};

/// Something about a rule that is worth a look.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Warning {
    /// The rule.
    pub(super) rule: String,
    /// What about it, as the end of a sentence that begins with the rule.
    pub(super) reason: String,
}

/// All warnings, in the order of the walk.
pub(super) fn warnings(rules: &[Rule]) -> Vec<Warning> {
    let mut found = Vec::new();
    for (position, rule) in rules.iter().enumerate().filter(|(_, rule)| rule.enabled) {
        let earlier = rules[..position].iter().filter(|rule| rule.enabled);
        let reasons = (earlier.filter_map(|first| hides(first, rule)).take(1)).chain(idle_limits(rule));
        found.extend(reasons.map(|reason| Warning { rule: rule.name.to_string(), reason }));
    }
    found
}

/// Why `later` never applies, if `first` sees to that.
fn hides(first: &Rule, later: &Rule) -> Option<String> {
    let name = &first.name;
    match first.action {
        Action::Allow | Action::Block if covers(&first.when, &later.when) => Some(format!(
            "can never apply: {name:?} (action {}) ends the walk for every request it matches",
            first.action.as_str()
        )),
        Action::Reject | Action::Throttle
            if matches!(later.action, Action::Reject | Action::Throttle)
                && first.layer == later.layer
                && counts_whenever(&first.per, &later.per)
                && covers(&first.when, &later.when) =>
        {
            Some(format!(
                "can never apply: {name:?} comes first in the layer {:?} and matches every request it matches",
                first.layer
            ))
        }
        _ => None,
    }
}

/// Whether a request that has what `later` counts by has what `first` counts by: without it a rule is passed over.
fn counts_whenever(first: &[Dimension], later: &[Dimension]) -> bool {
    let attributed = |dimension: &Dimension| dimension.names_client() || *dimension == Dimension::Tenant;
    first.iter().all(|dimension| match dimension {
        Dimension::Global | Dimension::Endpoint => true,
        Dimension::Client => later.iter().any(attributed),
        other => later.contains(other),
    })
}

/// Whether `wide` matches every request that `narrow` matches.
fn covers(wide: &Matcher, narrow: &Matcher) -> bool {
    let descriptor = |name: &str| narrow.descriptors.iter().find(|(other, _)| **other == *name);
    holds(&wide.tiers, &narrow.tiers, |a, b| a == b)
        && holds(&wide.users, &narrow.users, |a, b| a == b)
        && holds(&wide.tenants, &narrow.tenants, |a, b| a == b)
        && holds(&wide.methods, &narrow.methods, |a, b| a.counted() == b.counted())
        && holds(&wide.ips, &narrow.ips, |a, b| a.contains(b))
        && (wide.endpoints.iter().any(|pattern| pattern.to_string() == "/*")
            || holds(&wide.endpoints, &narrow.endpoints, pattern_covers))
        && wide.descriptors.iter().all(|(name, values)| {
            descriptor(name).is_some_and(|(_, others)| holds(values, others, |a, b| a == b))
        })
}

/// Whether a condition holds wherever a narrower one does. No values are no condition.
fn holds<T>(wide: &[T], narrow: &[T], includes: impl Fn(&T, &T) -> bool) -> bool {
    wide.is_empty() || (!narrow.is_empty() && narrow.iter().all(|b| wide.iter().any(|a| includes(a, b))))
}

/// Whether every endpoint of `narrow` is one of `wide`, segment by segment.
fn pattern_covers(wide: &Pattern, narrow: &Pattern) -> bool {
    let (wide, narrow) = (wide.to_string(), narrow.to_string());
    let mut narrow = narrow.split('/').skip(1).peekable();
    let mut wide = wide.split('/').skip(1).peekable();
    while let Some(segment) = wide.next() {
        let Some(other) = narrow.next() else { return false };
        let (last, other_last) = (wide.peek().is_none(), narrow.peek().is_none());
        let everything_below = last && segment == "*";
        if everything_below {
            return !other.is_empty();
        }
        // The other's closing `*` reaches deeper than any single segment.
        if other_last && other == "*" {
            return false;
        }
        let single = (segment == "*" || segment.starts_with('{')) && !other.is_empty();
        if !(single || segment == other) {
            return false;
        }
    }
    narrow.next().is_none()
}

/// Limits of a rule that refuse nothing which another of its limits admits.
fn idle_limits(rule: &Rule) -> impl Iterator<Item = String> {
    let limits = || rule.limits.iter().map(|limit| &limit.limit);
    limits().filter_map(move |idle| {
        let stricter = limits().find(|other| !std::ptr::eq(*other, idle) && always_stricter(other, idle))?;
        Some(format!(
            "has a limit that never decides: {} is always stricter than {}",
            told(stricter),
            told(idle)
        ))
    })
}

/// A bucket that holds no more and fills no faster is empty first. Of windows that is not certain: they are aligned.
fn always_stricter(strict: &Limit, idle: &Limit) -> bool {
    let bucket = matches!(idle.algorithm(), Algorithm::TokenBucket | Algorithm::Gcra);
    let rate = |limit: &Limit, other: &Limit| {
        u128::from(limit.requests()) * u128::from(other.window_length().as_micros())
    };
    let by_rate = rate(strict, idle).cmp(&rate(idle, strict));
    let by_capacity = strict.capacity().cmp(&idle.capacity());
    bucket
        && idle.max_delay().is_none()
        && by_rate.is_le()
        && by_capacity.is_le()
        && by_rate != by_capacity.reverse()
}

fn told(limit: &Limit) -> String {
    format!("{} per {}", limit.requests(), limit.window())
}

#[cfg(test)]
mod tests {
    use tollgate::RuleSet;

    use super::*;

    fn pattern(text: &str) -> Pattern {
        Pattern::parse(text).unwrap()
    }

    fn warned(toml: &str) -> Vec<String> {
        let set = RuleSet::from_toml(toml).unwrap();
        warnings(set.rules()).into_iter().map(|warning| warning.rule).collect()
    }

    fn rule(name: &str, priority: u32, rest: &str) -> String {
        format!(
            "[[rules]]\nname = \"{name}\"\npriority = {priority}\n{rest}\n\
             limits = [{{ requests = 10, window = \"1m\" }}]\n"
        )
    }

    #[test]
    fn a_pattern_covers_what_every_endpoint_of_the_other_matches() {
        for (wide, narrow, covered) in [
            ("/a", "/a", true),
            ("/a", "/b", false),
            ("/a/*", "/a/b", true),
            ("/a/*", "/a/b/c", true),
            ("/a/*", "/a/b/*", true),
            ("/a/*", "/a/*", true),
            ("/a/*", "/a", false),
            ("/a/{x}", "/a/b", true),
            ("/a/{x}", "/a/{y}", true),
            ("/a/{x}", "/a/*", false),
            ("/a/{x}", "/a/b/c", false),
            ("/a/b", "/a/{x}", false),
            ("/*/b", "/a/b", true),
            ("/a/b", "/a/*/b", false),
            ("/a/b", "/*", false),
            ("/a", "/", false),
            ("/{x}", "/", false),
            ("/", "/", true),
        ] {
            assert_eq!(pattern_covers(&pattern(wide), &pattern(narrow)), covered, "{wide} {narrow}");
        }
    }

    #[test]
    fn a_rule_behind_a_wider_one_of_its_layer_is_warned_of() {
        let wide = rule("wide", 1, "per = [\"user\"]");
        let narrow = rule("narrow", 2, "per = [\"user\"]\nwhen = { tiers = [\"free\"] }");
        assert_eq!(warned(&format!("{wide}{narrow}")), ["narrow"]);
        let before = rule("narrow", 0, "per = [\"user\"]\nwhen = { tiers = [\"free\"] }");
        assert!(warned(&format!("{wide}{before}")).is_empty());
    }

    #[test]
    fn a_rule_of_another_layer_or_that_only_logs_is_reached() {
        let wide = rule("wide", 1, "per = [\"user\"]");
        for rest in [
            "per = [\"ip\"]",
            "per = [\"user\"]\nlayer = \"other\"",
            "per = [\"user\"]\naction = \"log_only\"",
            "per = [\"user\"]\nenabled = false",
        ] {
            assert!(warned(&format!("{wide}{}", rule("second", 2, rest))).is_empty(), "{rest}");
        }
    }

    #[test]
    fn a_rule_that_may_be_passed_over_hides_nothing() {
        let first = rule("first", 1, "per = [\"login\"]\nlayer = \"one\"");
        let second = rule("second", 2, "per = [\"ip\"]\nlayer = \"one\"");
        assert!(warned(&format!("{first}{second}")).is_empty());
        let global = rule("first", 1, "per = [\"global\"]\nlayer = \"one\"");
        assert_eq!(warned(&format!("{global}{second}")), ["second"]);
    }

    #[test]
    fn nothing_is_reached_behind_an_allow_that_matches_as_much() {
        let allow = "[[rules]]\nname = \"open\"\npriority = 1\naction = \"allow\"\nwhen = { ips = [\"10.0.0.0/8\"] }\n";
        let inside = rule("inside", 2, "per = [\"ip\"]\nwhen = { ips = [\"10.1.0.0/16\"] }");
        let outside =
            rule("outside", 2, "per = [\"ip\"]\nwhen = { ips = [\"10.1.0.0/16\", \"11.0.0.0/8\"] }");
        assert_eq!(warned(&format!("{allow}{inside}{outside}")), ["inside"]);
    }

    #[test]
    fn a_limit_that_another_always_undercuts_is_warned_of() {
        let limits = |limits: &str| format!("[[rules]]\nname = \"a\"\nper = [\"user\"]\nlimits = {limits}\n");
        let idle = "[{ requests = 10, window = \"1m\" }, { requests = 10_000, window = \"1h\" }]";
        assert_eq!(warned(&limits(idle)), ["a"]);
        let both = "[{ requests = 100, window = \"1m\" }, { requests = 1_000, window = \"1h\" }]";
        assert!(warned(&limits(both)).is_empty());
    }
}

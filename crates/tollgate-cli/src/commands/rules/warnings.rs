//! Rules that are valid and yet hardly meant: those that never apply, that refuse everybody, and limits that never decide.
//!
//! A rule is called unreachable only if that is certain: an earlier rule meets every request that the later one
//! does, and then ends the walk or takes the layer. Which tiers, users or tenants exist is not known here, so
//! conditions on them are compared with each other and with nothing else.

use tollgate::identity::Dimension;
use tollgate::rules::pattern::{Pattern, PatternIndex};
use tollgate::rules::{Action, Matcher, Rule};
use tollgate::{Algorithm, Endpoint, Limit};

/// Something about a rule that is worth a look.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Warning {
    /// The rule.
    pub(super) rule: String,
    /// What about it, as the end of a sentence that begins with the rule.
    pub(super) reason: String,
}

/// A rule and the texts of its patterns.
struct Written<'a> {
    rule: &'a Rule,
    patterns: Vec<String>,
}

impl<'a> Written<'a> {
    fn new(rule: &'a Rule) -> Self {
        Written { rule, patterns: rule.when.endpoints.iter().map(Pattern::to_string).collect() }
    }

    /// Whether its endpoints are no condition.
    fn is_anywhere(&self) -> bool {
        self.patterns.is_empty() || self.patterns.iter().any(|pattern| pattern == "/*")
    }

    /// An endpoint it matches, with wildcards filled in: whoever matches all of its endpoints matches this one.
    fn sample(&self) -> Option<String> {
        let fill = |segment: &str| {
            if segment == "*" || segment.starts_with('{') { "any-segment" } else { segment }.to_owned()
        };
        let first = self.patterns.first()?;
        Some(first.split('/').map(fill).collect::<Vec<_>>().join("/"))
    }
}

/// All warnings, in the order of the walk.
///
/// Patterns are looked up, not compared with each other: a file of ten thousand rules has fifty million pairs.
pub(super) fn warnings(rules: &[Rule]) -> Vec<Warning> {
    let rules: Vec<Written<'_>> = rules.iter().filter(|rule| rule.enabled).map(Written::new).collect();
    let (mut anywhere, mut by_endpoint) = (Vec::new(), PatternIndex::default());
    let mut found = Vec::new();
    for (position, later) in (0u32..).zip(&rules) {
        let mut earlier: Vec<u32> = Vec::new();
        if let Some(Ok(sample)) = later.sample().as_deref().map(Endpoint::parse) {
            by_endpoint.for_each_match(&sample, |first| earlier.push(first));
        }
        let mut earlier = anywhere.iter().copied().chain(earlier);
        let hidden = earlier.find_map(|first| hides(&rules[first as usize], later));
        let lockout = if hidden.is_none() { locks_out(&rules[..position as usize], later) } else { None };
        let reasons = hidden.into_iter().chain(lockout).chain(idle_limits(later.rule));
        found.extend(reasons.map(|reason| Warning { rule: later.rule.name.to_string(), reason }));
        if later.is_anywhere() {
            anywhere.push(position);
        } else {
            later.rule.when.endpoints.iter().for_each(|pattern| by_endpoint.insert(pattern, position));
        }
    }
    found
}

/// Why `behind` never applies, if `earlier` sees to that.
fn hides(earlier: &Written<'_>, behind: &Written<'_>) -> Option<String> {
    let (first, later) = (earlier.rule, behind.rule);
    let name = &first.name;
    match first.action {
        Action::Allow | Action::Block if covers(earlier, behind) => Some(format!(
            "can never apply: {name:?} (action {}) ends the walk for every request it matches",
            first.action.as_str()
        )),
        Action::Reject | Action::Throttle
            if matches!(later.action, Action::Reject | Action::Throttle)
                && first.layer == later.layer
                && counts_whenever(&first.per, &later.per)
                && covers(earlier, behind) =>
        {
            Some(format!(
                "can never apply: {name:?} comes first in the layer {:?} and matches every request it matches",
                first.layer
            ))
        }
        _ => None,
    }
}

/// Whom a rule keeps out, and why, if it refuses whatever it meets and meets everything. Behind a rule that spares some
/// it is how one says "nobody else", and meant.
fn locks_out(earlier: &[Written<'_>], closing: &Written<'_>) -> Option<String> {
    let rule = closing.rule;
    if !closing.is_anywhere() || is_narrowed(&rule.when) {
        return None;
    }
    let cause = match rule.action {
        Action::Block => "its action is block",
        Action::Reject | Action::Throttle if rule.limits.iter().any(|limit| limit.limit.capacity() == 0) => {
            "its limit is 0"
        }
        _ => return None,
    };
    let spares = |first: &&Written<'_>| match first.rule.action {
        Action::Allow => true,
        Action::Reject | Action::Throttle => rule.action != Action::Block && first.rule.layer == rule.layer,
        Action::Block | Action::LogOnly => false,
    };
    if earlier.iter().any(|first| spares(&first)) {
        return None;
    }
    let always = |dimension: &&Dimension| {
        matches!(dimension, Dimension::Global | Dimension::Client | Dimension::Endpoint)
    };
    let needed: Vec<String> = rule.per.iter().filter(|one| !always(one)).map(ToString::to_string).collect();
    let whom = if needed.is_empty() {
        "everybody out".to_owned()
    } else {
        format!("out whoever has {}", needed.join(" and "))
    };
    Some(format!("locks {whom}: it has no conditions, and {cause}"))
}

/// Whether there are conditions beside the endpoints.
fn is_narrowed(when: &Matcher) -> bool {
    let Matcher { tiers, endpoints: _, methods, ips, users, tenants, descriptors } = when;
    let texts = [tiers, users, tenants].iter().any(|texts| !texts.is_empty());
    texts || !methods.is_empty() || !ips.is_empty() || !descriptors.is_empty()
}

/// Whether a request that has what `later` counts by has what `first` counts by: without it a rule is passed over.
fn counts_whenever(first: &[Dimension], later: &[Dimension]) -> bool {
    let attributed = |dimension: &Dimension| dimension.identifies_client() || *dimension == Dimension::Tenant;
    first.iter().all(|dimension| match dimension {
        Dimension::Global | Dimension::Endpoint => true,
        Dimension::Client => later.iter().any(attributed),
        other => later.contains(other),
    })
}

/// Whether `first` matches every request that `later` matches.
fn covers(first: &Written<'_>, later: &Written<'_>) -> bool {
    let (wide, narrow): (&Matcher, &Matcher) = (&first.rule.when, &later.rule.when);
    let descriptor = |name: &str| narrow.descriptors.iter().find(|(other, _)| **other == *name);
    holds(&wide.tiers, &narrow.tiers, |a, b| a == b)
        && holds(&wide.users, &narrow.users, |a, b| a == b)
        && holds(&wide.tenants, &narrow.tenants, |a, b| a == b)
        && holds(&wide.methods, &narrow.methods, |a, b| a.counted() == b.counted())
        && holds(&wide.ips, &narrow.ips, |a, b| a.contains(b))
        && (first.is_anywhere() || holds(&first.patterns, &later.patterns, |a, b| pattern_covers(a, b)))
        && wide.descriptors.iter().all(|(name, values)| {
            descriptor(name).is_some_and(|(_, others)| holds(values, others, |a, b| a == b))
        })
}

/// Whether a condition holds wherever a narrower one does. No values are no condition.
fn holds<T>(wide: &[T], narrow: &[T], includes: impl Fn(&T, &T) -> bool) -> bool {
    wide.is_empty() || (!narrow.is_empty() && narrow.iter().all(|b| wide.iter().any(|a| includes(a, b))))
}

/// Whether every endpoint of `narrow` is one of `wide`, segment by segment.
fn pattern_covers(wide: &str, narrow: &str) -> bool {
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
            assert_eq!(pattern_covers(wide, narrow), covered, "{wide} {narrow}");
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
    fn patterns_that_reach_further_hide_those_below_them() {
        let limited = |name: &str, priority, endpoints: &str| {
            rule(name, priority, &format!("per = [\"user\"]\nwhen = {{ endpoints = {endpoints} }}"))
        };
        let wide = limited("wide", 1, "[\"/a/{x}/*\", \"/b\"]");
        let hidden = limited("hidden", 2, "[\"/a/b/*\", \"/b\", \"/a/{y}/c\"]");
        let beside = limited("beside", 3, "[\"/a/b/*\", \"/c\"]");
        let above = limited("above", 4, "[\"/a/*\"]");
        assert_eq!(warned(&format!("{wide}{hidden}{beside}{above}")), ["hidden"]);
        let everywhere = limited("everywhere", 0, "[\"/*\", \"/z\"]");
        let all = ["wide", "hidden", "beside", "above"];
        assert_eq!(warned(&format!("{everywhere}{wide}{hidden}{beside}{above}")), all);
    }

    #[test]
    fn t58_a_rule_that_refuses_everything_is_warned_of_unless_it_closes_a_list_of_exceptions() {
        let closed = |rest: &str| format!("[[rules]]\nname = \"closed\"\npriority = 9\n{rest}\n");
        let none = "limits = [{ requests = 0, window = \"1m\" }]";
        let block = closed("action = \"block\"");
        let nothing = closed(&format!("per = [\"user\"]\n{none}"));
        for lockout in [
            &block,
            &nothing,
            &closed("action = \"block\"\nwhen = { endpoints = [\"/a\", \"/*\"] }"),
            &closed(&format!("per = [\"global\"]\naction = \"throttle\"\n{none}")),
            &closed("per = [\"ip\"]\nrequests_per_hour = 0"),
        ] {
            assert_eq!(warned(lockout), ["closed"], "{lockout}");
        }
        assert_eq!(warned("default_limit = 0"), ["default"]);
        let allow =
            "[[rules]]\nname = \"open\"\naction = \"allow\"\npriority = 1\nwhen = { tiers = [\"a\"] }\n";
        let some = rule("some", 1, "per = [\"user\"]\nwhen = { tiers = [\"a\"] }");
        for meant in [
            format!("{allow}{block}"),
            format!("{allow}{nothing}"),
            format!("{some}{nothing}"),
            closed("action = \"block\"\nwhen = { methods = [\"DELETE\"] }"),
            closed("action = \"block\"\nwhen = { endpoints = [\"/admin/*\"] }"),
            closed("action = \"block\"\nenabled = false"),
            closed(&format!("per = [\"global\"]\naction = \"log_only\"\n{none}")),
            "default_limit = 0\n[[tiers]]\nname = \"a\"\nlimit = 5\nwindow = 60".to_owned(),
        ] {
            assert!(warned(&meant).is_empty(), "{meant}");
        }
        assert_eq!(warned(&format!("{some}{block}")), ["closed"], "a limit spares nobody from a block");
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

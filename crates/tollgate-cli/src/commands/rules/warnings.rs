//! Warnings about valid rules that are probably mistakes: rules that never apply, rules that refuse every request, and
//! limits that never decide.
//!
//! A rule is reported as unreachable only if that is certain: an earlier rule matches every request that the later one
//! matches, and ends the evaluation or takes the layer. Which tiers, users or tenants exist is unknown here, so
//! conditions on them are only compared with each other.

use tollgate::identity::Dimension;
use tollgate::rules::pattern::Pattern;
use tollgate::rules::{Action, DEFAULT_RULE, Matcher, Rule};
use tollgate::{Algorithm, Limit, RuleSet};

/// Rules that are made from short forms have at least this priority.
const SHORT_FORM_PRIORITY: u32 = 999_998;

/// A warning about a rule.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Warning {
    pub(super) rule: String,
    /// The end of a sentence that starts with the name of the rule.
    pub(super) reason: String,
}

/// A rule and its endpoint patterns as text.
struct RulePatterns<'a> {
    rule: &'a Rule,
    patterns: Vec<String>,
}

impl<'a> RulePatterns<'a> {
    fn new(rule: &'a Rule) -> Self {
        RulePatterns { rule, patterns: rule.when.endpoints.iter().map(Pattern::to_string).collect() }
    }

    /// Whether the rule matches every endpoint.
    fn matches_all_endpoints(&self) -> bool {
        self.patterns.is_empty() || self.patterns.iter().any(|pattern| pattern == "/*")
    }
}

/// All warnings, in order of evaluation. The built-in default is not part of the file.
pub(super) fn warnings(set: &RuleSet) -> Vec<Warning> {
    let is_written = |rule: &&Rule| !(set.has_built_in_default() && *rule.name == *DEFAULT_RULE);
    let enabled = set.rules().iter().filter(|rule| rule.enabled).filter(is_written);
    let rules: Vec<RulePatterns<'_>> = enabled.map(RulePatterns::new).collect();
    let mut found = Vec::new();
    for (position, later) in rules.iter().enumerate() {
        let earlier = &rules[..position];
        let shadowed = earlier.iter().find_map(|first| shadows(first, later));
        let certain = shadowed.or_else(|| refuses_all(earlier, later));
        let certain = certain.or_else(|| earlier.iter().find_map(|first| takes_layer(first, later)));
        let reasons = certain.into_iter().chain(redundant_limits(later.rule));
        found.extend(reasons.map(|reason| Warning { rule: later.rule.name.to_string(), reason }));
    }
    found
}

/// A warning if every rule that counts users has a tier condition: a missing or misspelt tier then frees a user.
pub(super) fn no_limit_without_tier(rules: &[Rule]) -> Option<Warning> {
    let counts_users = |rule: &&Rule| {
        let is_user = |dimension: &Dimension| matches!(dimension, Dimension::User | Dimension::Client);
        rule.enabled
            && matches!(rule.action, Action::Reject | Action::Throttle)
            && rule.per.iter().any(is_user)
    };
    let last = rules.iter().rfind(counts_users)?;
    if rules.iter().filter(counts_users).any(|rule| rule.when.tiers.is_empty()) {
        return None;
    }
    let reason = "has a tier condition, like every rule that counts users: requests without a tier get no per-user limit";
    Some(Warning { rule: last.name.to_string(), reason: reason.to_owned() })
}

/// A warning if `default_limit` applies beside rules that count users: it counts clients, which is another layer.
pub(super) fn default_beside_user_rules(set: &RuleSet) -> Option<Warning> {
    let is_written = !set.has_built_in_default();
    let default = set.rules().iter().find(|rule| is_written && *rule.name == *DEFAULT_RULE)?;
    let counts_users = |rule: &&Rule| rule.enforces() && rule.is_plan_level() && *rule.layer == *"user";
    let beside = set.rules().iter().find(counts_users)?;
    let reason = format!(
        "applies beside rule {:?}, because it counts clients in a layer of its own: write per = [\"client\"] in that rule, or a rule \
         without conditions instead of default_limit",
        beside.name
    );
    Some(Warning { rule: default.name.to_string(), reason })
}

/// A warning if no rule names the default tier.
pub(super) fn unknown_default_tier(set: &RuleSet) -> Option<String> {
    let tier = set.settings().default_tier.as_deref().filter(|tier| !set.names_tier(tier))?;
    Some(format!("identity.default_tier is {tier:?}, which no rule names: check its spelling"))
}

/// Why `behind` never applies, if `earlier` always decides first.
fn shadows(earlier: &RulePatterns<'_>, behind: &RulePatterns<'_>) -> Option<String> {
    let (first, later) = (earlier.rule, behind.rule);
    let name = &first.name;
    match first.action {
        Action::Allow | Action::Block if covers(earlier, behind) => Some(format!(
            "never applies: {name:?} (action {}) matches the same requests first and ends the evaluation",
            first.action.as_str()
        )),
        Action::Reject | Action::Throttle
            if matches!(later.action, Action::Reject | Action::Throttle)
                && first.layer == later.layer
                && has_dimensions(&first.per, &later.per)
                && covers(earlier, behind) =>
        {
            Some(format!(
                "never applies: {name:?} matches the same requests first in the layer {:?}",
                first.layer
            ))
        }
        _ => None,
    }
}

/// Why `behind` does not apply to some requests: `earlier` takes the layer of both, and neither rule is a fallback of the
/// other, because their conditions are of different kinds. Short forms share their layer on purpose.
fn takes_layer(earlier: &RulePatterns<'_>, behind: &RulePatterns<'_>) -> Option<String> {
    let (first, later) = (earlier.rule, behind.rule);
    let per: Vec<String> = first.per.iter().map(Dimension::to_string).collect();
    let is_chosen = *first.layer != *per.join("+");
    let is_short_form = |rule: &Rule| rule.priority >= SHORT_FORM_PRIORITY;
    if is_chosen || first.layer != later.layer || !first.enforces() || !later.enforces() {
        return None;
    }
    let (first_has, later_has) = (condition_kinds(earlier), condition_kinds(behind));
    let has_any = |kinds: &[bool; 7]| kinds.iter().any(|given| *given);
    let has_common = first_has.iter().zip(&later_has).any(|(first, later)| *first && *later);
    if has_common
        || !has_any(&first_has)
        || !has_any(&later_has)
        || is_short_form(first)
        || is_short_form(later)
    {
        return None;
    }
    Some(format!(
        "never applies to requests that {:?} matches as well: that rule takes the layer {:?} first; name a layer if both \
         should apply",
        first.name, first.layer
    ))
}

/// Which kinds of conditions a rule has.
fn condition_kinds(rule: &RulePatterns<'_>) -> [bool; 7] {
    let Matcher { tiers, endpoints: _, methods, ips, users, tenants, descriptors } = &rule.rule.when;
    [
        !rule.matches_all_endpoints(),
        !tiers.is_empty(),
        !methods.is_empty(),
        !ips.is_empty(),
        !users.is_empty(),
        !tenants.is_empty(),
        !descriptors.is_empty(),
    ]
}

/// Why a rule refuses every request, if it does. After a rule that exempts some requests this is a deliberate default.
fn refuses_all(earlier: &[RulePatterns<'_>], closing: &RulePatterns<'_>) -> Option<String> {
    let rule = closing.rule;
    if !closing.matches_all_endpoints() || has_other_conditions(&rule.when) {
        return None;
    }
    let cause = match rule.action {
        Action::Block => "its action is block",
        Action::Reject | Action::Throttle if rule.limits.iter().any(|limit| limit.limit.capacity() == 0) => {
            "its limit is 0"
        }
        _ => return None,
    };
    let exempts = |first: &&RulePatterns<'_>| match first.rule.action {
        Action::Allow => true,
        Action::Reject | Action::Throttle => rule.action != Action::Block && first.rule.layer == rule.layer,
        Action::Block | Action::LogOnly => false,
    };
    if earlier.iter().any(|first| exempts(&first)) {
        return None;
    }
    let always = |dimension: &&Dimension| {
        matches!(dimension, Dimension::Global | Dimension::Client | Dimension::Endpoint)
    };
    let needed: Vec<String> = rule.per.iter().filter(|one| !always(one)).map(ToString::to_string).collect();
    let requests = if needed.is_empty() {
        "every request".to_owned()
    } else {
        format!("every request with {}", needed.join(" and "))
    };
    Some(format!("refuses {requests}: it has no conditions, and {cause}"))
}

/// Whether there are conditions other than endpoints.
fn has_other_conditions(when: &Matcher) -> bool {
    let Matcher { tiers, endpoints: _, methods, ips, users, tenants, descriptors } = when;
    let texts = [tiers, users, tenants].iter().any(|texts| !texts.is_empty());
    texts || !methods.is_empty() || !ips.is_empty() || !descriptors.is_empty()
}

/// Whether every request with the dimensions of `later` has those of `first`. A rule is skipped if one is missing.
fn has_dimensions(first: &[Dimension], later: &[Dimension]) -> bool {
    let attributed = |dimension: &Dimension| dimension.identifies_client() || *dimension == Dimension::Tenant;
    first.iter().all(|dimension| match dimension {
        Dimension::Global | Dimension::Endpoint => true,
        Dimension::Client => later.iter().any(attributed),
        other => later.contains(other),
    })
}

/// Whether `first` matches every request that `later` matches.
fn covers(first: &RulePatterns<'_>, later: &RulePatterns<'_>) -> bool {
    let (wide, narrow): (&Matcher, &Matcher) = (&first.rule.when, &later.rule.when);
    let descriptor = |name: &str| narrow.descriptors.iter().find(|(other, _)| **other == *name);
    implied(&wide.tiers, &narrow.tiers, |a, b| a == b)
        && implied(&wide.users, &narrow.users, |a, b| a == b)
        && implied(&wide.tenants, &narrow.tenants, |a, b| a == b)
        && implied(&wide.methods, &narrow.methods, |a, b| a.counted() == b.counted())
        && implied(&wide.ips, &narrow.ips, |a, b| a.contains(b))
        && (first.matches_all_endpoints()
            || implied(&first.patterns, &later.patterns, |a, b| pattern_covers(a, b)))
        && wide.descriptors.iter().all(|(name, values)| {
            descriptor(name).is_some_and(|(_, others)| implied(values, others, |a, b| a == b))
        })
}

/// Whether a condition holds wherever a narrower one does. An empty list always holds.
fn implied<T>(wide: &[T], narrow: &[T], includes: impl Fn(&T, &T) -> bool) -> bool {
    wide.is_empty() || (!narrow.is_empty() && narrow.iter().all(|b| wide.iter().any(|a| includes(a, b))))
}

/// Whether `wide` matches every endpoint that `narrow` matches.
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
        // A trailing `*` matches several segments.
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

/// Limits that never refuse a request that another limit of the rule admits.
fn redundant_limits(rule: &Rule) -> impl Iterator<Item = String> {
    let limits = || rule.limits.iter().map(|limit| &limit.limit);
    limits().filter_map(move |redundant| {
        let stricter =
            limits().find(|other| !std::ptr::eq(*other, redundant) && always_stricter(other, redundant))?;
        Some(format!(
            "has a limit that never decides: {} is always reached before {}",
            format_limit(stricter),
            format_limit(redundant)
        ))
    })
}

/// A bucket with no more capacity and no higher rate is empty first. This is not certain for aligned windows.
fn always_stricter(strict: &Limit, redundant: &Limit) -> bool {
    let bucket = matches!(redundant.algorithm(), Algorithm::TokenBucket | Algorithm::Gcra);
    let rate = |limit: &Limit, other: &Limit| {
        u128::from(limit.requests()) * u128::from(other.window_length().as_micros())
    };
    let by_rate = rate(strict, redundant).cmp(&rate(redundant, strict));
    let by_capacity = strict.capacity().cmp(&redundant.capacity());
    bucket
        && redundant.max_delay().is_none()
        && by_rate.is_le()
        && by_capacity.is_le()
        && by_rate != by_capacity.reverse()
}

fn format_limit(limit: &Limit) -> String {
    format!("{} per {}", limit.requests(), limit.window())
}

#[cfg(test)]
mod tests {

    use super::*;

    fn warned(toml: &str) -> Vec<String> {
        let set = RuleSet::from_toml(toml).unwrap();
        warnings(&set).into_iter().map(|warning| warning.rule).collect()
    }

    fn rule(name: &str, priority: u32, rest: &str) -> String {
        format!(
            "[[rules]]\nname = \"{name}\"\npriority = {priority}\n{rest}\n\
             limits = [{{ requests = 10, window = \"1m\" }}]\n"
        )
    }

    #[test]
    fn requests_without_a_tier_need_a_limit() {
        let rule_of = |toml: &str| {
            no_limit_without_tier(RuleSet::from_toml(toml).unwrap().rules()).map(|warning| warning.rule)
        };
        let tier = |name, priority| {
            rule(name, priority, &format!("per = [\"user\"]\nwhen = {{ tiers = [\"{name}\"] }}"))
        };
        let tiers = format!("{}{}", tier("free", 1), tier("pro", 2));
        assert_eq!(rule_of(&tiers).as_deref(), Some("pro"));
        assert_eq!(rule_of(&format!("default_limit = 5\n{tiers}")), None);
        let by_user = rule("all", 9, "per = [\"user\"]");
        assert_eq!(rule_of(&format!("{tiers}{by_user}")), None);
        let by_address = rule("addresses", 9, "per = [\"ip\"]");
        assert_eq!(rule_of(&format!("{tiers}{by_address}")).as_deref(), Some("pro"));
        assert_eq!(rule_of(&by_address), None, "nobody counts users");
    }

    #[test]
    fn default_limit_beside_user_rules_warns() {
        let warned = |toml: &str| default_beside_user_rules(&RuleSet::from_toml(toml).unwrap()).is_some();
        let tier =
            |per: &str| rule("free", 1, &format!("per = [\"{per}\"]\nwhen = {{ tiers = [\"free\"] }}"));
        assert!(warned(&format!("default_limit = 5\n{}", tier("user"))));
        assert!(!warned(&format!("default_limit = 5\n{}", tier("client"))));
        assert!(!warned(&tier("user")), "the built-in default ends with the first rule");
        let login = rule("login", 1, "per = [\"user\"]\nwhen = { endpoints = [\"/login\"] }");
        assert!(!warned(&format!("default_limit = 5\n{login}")), "a rule that protects an endpoint");
    }

    #[test]
    fn pattern_covers_narrower_patterns() {
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
    fn rule_after_wider_rule_of_its_layer_never_applies() {
        let wide = rule("wide", 1, "per = [\"user\"]");
        let narrow = rule("narrow", 2, "per = [\"user\"]\nwhen = { tiers = [\"free\"] }");
        assert_eq!(warned(&format!("{wide}{narrow}")), ["narrow"]);
        let before = rule("narrow", 0, "per = [\"user\"]\nwhen = { tiers = [\"free\"] }");
        assert!(warned(&format!("{wide}{before}")).is_empty());
    }

    #[test]
    fn rules_of_other_layers_and_log_only_rules_apply() {
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
    fn rule_with_missing_dimension_shadows_nothing() {
        let first = rule("first", 1, "per = [\"login\"]\nlayer = \"one\"");
        let second = rule("second", 2, "per = [\"ip\"]\nlayer = \"one\"");
        assert!(warned(&format!("{first}{second}")).is_empty());
        let global = rule("first", 1, "per = [\"global\"]\nlayer = \"one\"");
        assert_eq!(warned(&format!("{global}{second}")), ["second"]);
    }

    #[test]
    fn rules_after_an_equally_wide_allow_never_apply() {
        let allow = "[[rules]]\nname = \"open\"\npriority = 1\naction = \"allow\"\nwhen = { ips = [\"10.0.0.0/8\"] }\n";
        let inside = rule("inside", 2, "per = [\"ip\"]\nwhen = { ips = [\"10.1.0.0/16\"] }");
        let outside =
            rule("outside", 2, "per = [\"ip\"]\nwhen = { ips = [\"10.1.0.0/16\", \"11.0.0.0/8\"] }");
        assert_eq!(warned(&format!("{allow}{inside}{outside}")), ["inside"]);
    }

    #[test]
    fn wider_patterns_shadow_narrower_ones() {
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
    fn refusing_every_request_without_exemptions_warns() {
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
    fn limit_that_never_decides_warns() {
        let limits = |limits: &str| format!("[[rules]]\nname = \"a\"\nper = [\"user\"]\nlimits = {limits}\n");
        let redundant = "[{ requests = 10, window = \"1m\" }, { requests = 10_000, window = \"1h\" }]";
        assert_eq!(warned(&limits(redundant)), ["a"]);
        let both = "[{ requests = 100, window = \"1m\" }, { requests = 1_000, window = \"1h\" }]";
        assert!(warned(&limits(both)).is_empty());
    }
}

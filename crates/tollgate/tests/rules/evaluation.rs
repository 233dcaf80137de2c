//! Rule evaluation, compared with a reference implementation on random rule sets, and case by case.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::fmt::Write;
use std::net::IpAddr;

use proptest::prelude::*;
use proptest::sample::{Index, select, subsequence};
use tollgate::counters::Effect;
use tollgate::decision::{Answer, Decision};
use tollgate::identity::Dimension;
use tollgate::rules::pattern::Pattern;
use tollgate::rules::{Action, CHARGES_MAX, Matcher, RefundPolicy, Response, RuleCost, RuleLimit};
use tollgate::{
    Algorithm, Endpoint, Limit, Limiter, MemoryCounters, Method, Request, Rule, RuleSet, Span, Timestamp,
    Window,
};

use crate::{NOW, admitted, asked, blocks, id, limiter, look, request};

const PATTERNS: [&str; 8] = ["/*", "/", "/a", "/a/*", "/a/{x}", "/a/b", "/*/b", "/c/d/*"];
const PATHS: [&str; 7] = ["/", "/a", "/a/b", "/a/c", "/c", "/c/d/e", "/x/b"];
const NETS: [&str; 6] = ["0.0.0.0/0", "10.0.0.0/8", "10.1.0.0/16", "10.1.2.3/32", "::/0", "2001:db8::/32"];
const IPS: [&str; 5] = ["10.1.2.3", "10.9.9.9", "192.0.2.1", "2001:db8::1", "::ffff:10.1.2.3"];
const WORDS: [&str; 3] = ["alice", "bob", "carol"];
const DIMENSIONS: [Dimension; 5] =
    [Dimension::Global, Dimension::User, Dimension::Ip, Dimension::Tenant, Dimension::Client];

fn words() -> impl Strategy<Value = Vec<Box<str>>> {
    prop_oneof![
        3 => Just(Vec::new()),
        1 => subsequence(&WORDS[..], 1..3).prop_map(|words| words.into_iter().map(Into::into).collect()),
    ]
}

fn matcher() -> impl Strategy<Value = Matcher> {
    let some = |all: &'static [&'static str]| prop_oneof![2 => Just(Vec::new()), 1 => subsequence(all, 1..3)];
    let methods = prop_oneof![
        3 => Just(vec![]),
        1 => select(&[Method::Get, Method::Head, Method::Post][..]).prop_map(|method| vec![method]),
    ];
    let descriptors = prop_oneof![4 => Just(None), 1 => words().prop_map(Some)];
    (some(&PATTERNS), some(&NETS), methods, words(), words(), words(), descriptors).prop_map(
        |(patterns, nets, methods, tiers, users, tenants, descriptors)| Matcher {
            endpoints: patterns.into_iter().map(|text| Pattern::parse(text).unwrap()).collect(),
            ips: nets.into_iter().map(|text| text.parse().unwrap()).collect(),
            methods,
            tiers,
            users,
            tenants,
            descriptors: descriptors.map(|values| ("plan".into(), values)).into_iter().collect(),
        },
    )
}

fn rule() -> impl Strategy<Value = Rule> {
    let action = prop_oneof![6 => Just(Action::Reject), 1 => Just(Action::LogOnly), 1 => Just(Action::Allow),
        1 => Just(Action::Block)];
    let layer = prop_oneof![4 => Just(None), 1 => select(&["x", "y"][..]).prop_map(Some)];
    (0..4_u32, matcher(), subsequence(&DIMENSIONS[..], 1..3), layer, action, 0..4_u32, any::<Index>())
        .prop_map(|(priority, when, per, layer, action, requests, enabled)| {
            let by: Vec<String> = per.iter().map(Dimension::to_string).collect();
            let minute = Window::Length(Span::from_secs(60));
            let limit = Limit::new(Algorithm::FixedWindow, requests, minute).unwrap();
            Rule {
                name: "".into(),
                priority,
                when,
                layer: layer.map_or_else(|| by.join("+"), str::to_owned).into(),
                per,
                action,
                limits: if action.limits() { vec![RuleLimit::new("", limit)] } else { vec![] },
                cost: RuleCost::default(),
                sample_allowed: None,
                refund_policy: RefundPolicy::default(),
                leases: true,
                across_tenants: false,
                on_store_failure: None,
                response: Response::default(),
                enabled: enabled.index(8) > 0,
            }
        })
}

/// Rules with unique names in random order.
fn rules() -> impl Strategy<Value = Vec<Rule>> {
    proptest::collection::vec(rule(), 0..40).prop_map(|mut rules| {
        for (number, rule) in rules.iter_mut().enumerate() {
            rule.name = format!("rule-{}", (number * 7) % 40).into();
            for limit in &mut rule.limits {
                *limit = RuleLimit::new(&rule.name, limit.limit.clone());
            }
        }
        rules
    })
}

/// The facts of a request as positions in the lists above; one past the end means missing.
type Facts = (usize, usize, usize, [usize; 4], bool);

fn facts() -> impl Strategy<Value = Facts> {
    let word = 0..=WORDS.len();
    let words = [word.clone(), word.clone(), word.clone(), word];
    (0..PATHS.len(), 0..=IPS.len(), 0..3_usize, words, any::<bool>())
}

fn with_request<T>(facts: &Facts, then: impl FnOnce(&Request<'_>) -> T) -> T {
    let (path, ip, method, [user, tenant, tier, plan], peek) = facts;
    let word = |position: &usize| WORDS.get(*position).and_then(|word| id(word));
    let descriptors: Vec<_> = word(plan).map(|value| (id("plan").unwrap(), value)).into_iter().collect();
    then(&Request {
        ip: IPS.get(*ip).map(|text| text.parse::<IpAddr>().unwrap()),
        method: [Method::Head, Method::Post].get(*method).copied(),
        user: word(user),
        tenant: word(tenant),
        tier: word(tier),
        descriptors: &descriptors,
        cost: u32::from(!peek),
        ..Request::new(Endpoint::parse(PATHS[*path]).unwrap())
    })
}

/// The reference implementation.
fn evaluate<'r>(rules: &'r [Rule], request: &Request<'_>) -> (Vec<(&'r str, Effect)>, Option<&'r Rule>) {
    let mut order: Vec<&Rule> = rules.iter().collect();
    order.sort_by_key(|rule| (rule.priority, Reverse(rule.when.specificity()), rule.name.clone()));
    let has = |dimension: &Dimension| match dimension {
        Dimension::User => request.user.is_some(),
        Dimension::Ip => request.ip.is_some(),
        Dimension::Tenant => request.tenant.is_some(),
        Dimension::Client => request.client().is_some(),
        _ => true,
    };
    let mut layers = HashSet::new();
    let mut collected = Vec::new();
    for rule in order.into_iter().filter(|rule| rule.enabled && rule.when.matches(request)) {
        match rule.action {
            Action::Allow | Action::Block => return (collected, Some(rule)),
            Action::LogOnly if rule.per.iter().all(has) => collected.push((&*rule.name, Effect::Shadow)),
            Action::Reject if rule.per.iter().all(has) && layers.insert(&rule.layer) => {
                collected.push((&*rule.name, Effect::Enforce));
            }
            _ => {}
        }
    }
    (collected, None)
}

/// Drops the last `log_only` rules that exceed the maximum number of limits.
fn within_maximum<'r>(rules: &[Rule], collected: Vec<(&'r str, Effect)>) -> Vec<(&'r str, Effect)> {
    let limiting = rules.iter().filter(|rule| rule.enabled && rule.action == Action::Reject);
    let mut room = CHARGES_MAX - limiting.map(|rule| &rule.layer).collect::<HashSet<_>>().len();
    let mut fits = |effect: Effect| {
        let fits = effect == Effect::Enforce || room > 0;
        room -= usize::from(fits && effect == Effect::Shadow);
        fits
    };
    collected.into_iter().filter(|(_, effect)| fits(*effect)).collect()
}

#[test]
fn rule_cost_multiplies_what_the_rule_charges() {
    let limiter = limiter(
        r#"
        [[rules]]
        name = "requests"
        per = ["user"]
        requests_per_hour = 1_000
        [[rules]]
        name = "exports"
        layer = "exports"
        when = { endpoints = ["/export"] }
        per = ["user"]
        requests_per_hour = 100
        cost = 10
        [[rules]]
        name = "tokens"
        layer = "tokens"
        per = ["user"]
        requests_per_hour = 5_000
        cost = "descriptor:tokens"
        "#,
    );
    let used = |path: &str, tokens: Option<&str>, cost: u32| {
        let value = tokens.map(|tokens| (id("tokens").unwrap(), id(tokens).unwrap()));
        let request = Request { descriptors: value.as_slice(), cost, ..request(path, "alice") };
        let before = look(&limiter, &Request { cost: 0, ..request.clone() });
        let after = limiter.check_now(&request, NOW);
        let left = |decision: &Decision| -> Vec<u32> {
            decision.reports.iter().map(|report| report.verdict.remaining).collect()
        };
        let both = left(&before).into_iter().zip(left(&after));
        both.map(|(before, after)| before - after).collect::<Vec<u32>>()
    };
    assert_eq!(used("/export", Some("250"), 1), [10, 1, 250]);
    assert_eq!(used("/export", Some("7"), 2), [20, 2, 14], "times the cost of the check");
    assert_eq!(used("/", None, 1), [1, 1], "a missing descriptor counts as 1");
    assert_eq!(used("/", Some("many"), 1), [1, 1]);
    assert_eq!(used("/", Some("5000"), 1), [0, 0], "refused: nothing is charged");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn index_full_evaluation_and_reference_agree(
        rules in rules(),
        requests in proptest::collection::vec(facts(), 1..20),
    ) {
        let Ok(set) = RuleSet::new(rules.clone(), None) else { return Ok(()) };
        let limiter = Limiter::new(set, MemoryCounters::default());
        for facts in &requests {
            with_request(facts, |request| {
                let (expected, end) = evaluate(&rules, request);
                let decision = look(&limiter, request);
                if end.is_some_and(|rule| rule.action == Action::Block) {
                    assert_eq!(decision.answer, Answer::Block);
                    assert_eq!(decision.rule_name(), end.map(|rule| &*rule.name));
                } else {
                    let collected: Vec<(&str, Effect)> =
                        decision.reports.iter().map(|r| (decision.rule_name_of(r), r.effect)).collect();
                    assert_eq!(collected, within_maximum(&rules, expected));
                }
                limiter.check_now(request, crate::NOW);
            });
        }
    }

    #[test]
    fn rule_order_is_independent_of_input_order(
        rules in rules(),
        swaps in proptest::collection::vec((any::<Index>(), any::<Index>()), 0..60),
    ) {
        let mut shuffled = rules.clone();
        for (a, b) in swaps.iter().filter(|_| !rules.is_empty()) {
            shuffled.swap(a.index(rules.len()), b.index(rules.len()));
        }
        let names = |rules: Vec<Rule>| -> Option<Vec<Box<str>>> {
            Some(RuleSet::new(rules, None).ok()?.rules().iter().map(|rule| rule.name.clone()).collect())
        };
        prop_assert_eq!(names(rules), names(shuffled));
    }
}

#[test]
fn first_rule_of_each_layer_applies() {
    let limiter = limiter(
        r#"
        [[rules]]
        name = "tier"
        priority = 20
        per = ["user"]
        limits = [{ requests = 9, window = "1m" }]
        [[rules]]
        name = "endpoint"
        priority = 10
        when = { endpoints = ["/search"] }
        per = ["user"]
        limits = [{ requests = 2, window = "1m" }]
        [[rules]]
        name = "everyone"
        per = ["global"]
        limits = [{ requests = 5, window = "1m" }]
        [[rules]]
        name = "guard"
        layer = "guard"
        per = ["user"]
        limits = [{ requests = 4, window = "1s" }]
        "#,
    );
    assert_eq!(asked(&look(&limiter, &request("/search", "alice"))), ["endpoint", "everyone", "guard"]);
    assert_eq!(asked(&look(&limiter, &request("/other", "alice"))), ["tier", "everyone", "guard"]);
    assert_eq!(admitted(&limiter, &request("/search", "alice")), 2);
    assert_eq!(admitted(&limiter, &request("/search", "bob")), 2);
    assert_eq!(admitted(&limiter, &request("/search", "carol")), 1, "five for everyone together");
}

#[test]
fn allow_keeps_limits_collected_before_it() {
    let limiter = limiter(
        r#"
        [[rules]]
        name = "total"
        priority = 1
        per = ["global"]
        limits = [{ requests = 3, window = "1m" }]
        [[rules]]
        name = "friends"
        priority = 2
        when = { users = ["alice"] }
        action = "allow"
        [[rules]]
        name = "strangers"
        priority = 3
        per = ["user"]
        limits = [{ requests = 1, window = "1m" }]
        "#,
    );
    assert_eq!(admitted(&limiter, &request("/", "bob")), 1);
    assert_eq!(asked(&look(&limiter, &request("/", "alice"))), ["total"]);
    assert_eq!(admitted(&limiter, &request("/", "alice")), 2);
}

#[test]
fn blocked_request_charges_nothing() {
    let limiter = limiter(
        r#"
        [[rules]]
        name = "total"
        priority = 1
        per = ["global"]
        limits = [{ requests = 1, window = "1m" }]
        [[rules]]
        name = "blocked"
        priority = 2
        when = { users = ["mallory"] }
        action = "block"
        "#,
    );
    assert!(blocks(&limiter, &request("/", "mallory")));
    assert_eq!(admitted(&limiter, &request("/", "mallory")), 0);
    assert_eq!(admitted(&limiter, &request("/", "alice")), 1);
}

#[test]
fn log_only_rules_refuse_nothing_and_take_no_layer() {
    let limiter = limiter(
        r#"
        [[rules]]
        name = "trial"
        priority = 1
        per = ["user"]
        action = "log_only"
        limits = [{ requests = 1, window = "1m" }]
        [[rules]]
        name = "real"
        priority = 2
        per = ["user"]
        limits = [{ requests = 3, window = "1m" }]
        "#,
    );
    assert_eq!(admitted(&limiter, &request("/", "alice")), 3);
    let refused = look(&limiter, &request("/", "alice"));
    assert_eq!((asked(&refused), refused.rule_name()), (vec!["trial", "real"], Some("real")));
}

#[test]
fn log_only_rules_never_displace_enforced_rules() {
    // Twenty `log_only` rules come first and would exceed the maximum.
    let mut text = String::new();
    for number in 0..20 {
        write!(
            text,
            "[[rules]]\nname = \"trial-{number}\"\npriority = 1\nper = [\"user\"]\naction = \"log_only\"\n\
             limits = [{{ requests = 1000, window = \"1m\" }}]\n"
        )
        .unwrap();
    }
    text += "[[rules]]\nname = \"real\"\nper = [\"user\"]\nlimits = [{ requests = 3, window = \"1m\" }]\n";
    let limiter = limiter(&text);
    let decision = look(&limiter, &request("/", "alice"));
    assert_eq!((decision.reports.len(), asked(&decision).contains(&"real")), (16, true));
    assert_eq!(admitted(&limiter, &request("/", "alice")), 3);
}

#[test]
fn rule_without_subject_leaves_its_layer_free() {
    let limiter = limiter(
        r#"
        [[rules]]
        name = "by key"
        layer = "client"
        priority = 1
        per = ["api_key"]
        limits = [{ requests = 9, window = "1m" }]
        [[rules]]
        name = "by user"
        layer = "client"
        priority = 2
        per = ["user"]
        limits = [{ requests = 1, window = "1m" }]
        "#,
    );
    assert_eq!(asked(&look(&limiter, &request("/", "alice"))), ["by user"]);
}

#[test]
fn mapped_networks_match_as_ipv4() {
    let limiter = limiter(
        "[[rules]]\nname = \"a\"\nwhen = { ips = [\"::ffff:10.0.0.0/104\", \"::ffff:192.0.2.7\"] }\naction = \"block\"",
    );
    let from = |ip: &str| Request { ip: Some(ip.parse().unwrap()), ..request("/", "alice") };
    for ip in ["10.1.2.3", "::ffff:10.1.2.3", "192.0.2.7"] {
        assert!(blocks(&limiter, &from(ip)), "{ip}");
    }
    for ip in ["11.1.2.3", "192.0.2.8", "::1"] {
        assert!(!blocks(&limiter, &from(ip)), "{ip}");
    }
}

#[test]
fn nat64_applies_only_if_configured() {
    let rules = RuleSet::from_toml(
        "[[rules]]\nname = \"a\"\nwhen = { ips = [\"192.0.2.0/24\"] }\nper = [\"ip\"]\nrequests_per_hour = 1",
    );
    let rules = rules.unwrap();
    for nat64 in [false, true] {
        let limiter = Limiter::new(rules.clone().with_nat64(nat64), MemoryCounters::default());
        let admits = |ip: &str| {
            let request = Request { ip: Some(ip.parse().unwrap()), ..request("/", "alice") };
            limiter.check_now(&request, Timestamp::from_secs(1_000)).admits()
        };
        assert!(admits("192.0.2.33"));
        assert_eq!(admits("64:ff9b::192.0.2.33"), !nat64, "one client, whichever way it came");
        assert!(admits("64:ff9b::198.51.100.1"), "not within the rule");
    }
}

#[test]
fn disabled_rule_never_matches() {
    let limiter = limiter("[[rules]]\nname = \"off\"\naction = \"block\"\nenabled = false");
    let request = request("/", "alice");
    assert!(look(&limiter, &request).admits());
    let explanation =
        tollgate::counters::conformance::block_on(limiter.snapshot().explain(&request, crate::NOW));
    let rules = explanation.rules(&request);
    assert_eq!((&*rules[0].rule.name, rules[0].matched, &*rules[0].reason), ("off", false, "disabled"));
}

#[test]
fn ten_thousand_rules_match_exactly() {
    let mut text = String::new();
    for number in 0..10_000 {
        write!(
            text,
            "[[rules]]\nname = \"t{number}\"\nwhen = {{ tenants = [\"t{number}\"] }}\nper = [\"tenant\"]\n\
             limits = [{{ requests = {}, window = \"1m\" }}]\n",
            number % 7 + 1
        )
        .unwrap();
    }
    let limiter = limiter(&text);
    for number in (0..10_000).step_by(331) {
        let tenant = format!("t{number}");
        let request = Request { tenant: id(&tenant), ..request("/", "alice") };
        assert_eq!(asked(&look(&limiter, &request)), [tenant.as_str()]);
        assert_eq!(admitted(&limiter, &request), number % 7 + 1);
    }
}

#[test]
fn disabled_rules_do_not_count_towards_the_maximum() {
    let rule = |name: &str, enabled: bool, action: &str| {
        let limits =
            (1..=8).map(|n| format!("{{ requests = 1, window = \"{n}h\" }}")).collect::<Vec<_>>().join(", ");
        format!(
            "[[rules]]\nname = \"{name}\"\nlayer = \"{name}\"\nper = \"user\"\nenabled = {enabled}\n\
             action = \"{action}\"\nlimits = [{limits}]\n"
        )
    };
    let enforced = rule("a", true, "reject");
    let off = rule("off", false, "reject");
    let both = format!("{enforced}{}{off}", rule("b", true, "reject"));
    assert!(RuleSet::from_toml(&both).is_ok(), "16 limits, and 8 that are switched off");
    assert!(RuleSet::from_toml(&both.replace("enabled = false", "enabled = true")).is_err());

    let rules = RuleSet::from_toml(&format!("{enforced}{off}{}", rule("look", true, "log_only"))).unwrap();
    let limiter = Limiter::new(rules, MemoryCounters::default());
    let user = id("alice");
    let request = Request { user, ..Request::new(Endpoint::parse("/").unwrap()) };
    let decision = limiter.check_now(&request, Timestamp::from_secs(1));
    assert_eq!(decision.reports.len(), 16, "nor do they push out rules that only log");
}

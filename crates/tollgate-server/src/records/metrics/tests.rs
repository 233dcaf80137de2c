use tollgate::{Endpoint, Id, Limiter, MemoryCounters, Request, Seed, Span};

use super::*;

const START: Timestamp = Timestamp::from_secs(1_000_000);
const GRACE: Span = Span::from_secs(300);

/// A set of these rules, each of which only logs.
fn rules(names: &[&str]) -> RuleSet {
    let rule = |name: &&str| {
        format!(
            "[[rules]]\nname = {name:?}\nper = [\"global\"]\naction = \"log_only\"\nlimits = [{{ requests = 1, window = \"1h\" }}]\n"
        )
    };
    RuleSet::from_toml(&names.iter().map(rule).collect::<String>()).unwrap()
}

fn series(metrics: &Metrics) -> Vec<String> {
    let mut text = String::new();
    encode_registry(&mut text, &metrics.registry).unwrap();
    text.lines().filter(|line| line.contains("{rule=")).map(str::to_owned).collect()
}

fn tells_of(metrics: &Metrics, rule: &str) -> bool {
    series(metrics).iter().any(|line| line.contains(&format!("{{rule=\"{rule}\"")))
}

fn limiter(names: &[&str]) -> Limiter<MemoryCounters, Metrics> {
    let rules = rules(names);
    let metrics = Metrics::new(&rules);
    Limiter::with_records(rules, MemoryCounters::default(), metrics, Seed([1; 16]))
}

fn check(limiter: &Limiter<MemoryCounters, Metrics>) {
    limiter.check_now(&Request::new(Endpoint::parse("/x").unwrap()), START);
}

#[test]
fn t68_a_rule_that_is_gone_is_told_for_a_last_scrape_and_no_longer() {
    let limiter = limiter(&["old"]);
    (0..3).for_each(|_| check(&limiter));
    let metrics = limiter.records();
    assert!(series(metrics).iter().any(|line| line.contains("shadow_refusals_total{rule=\"old\"} 2")));
    metrics.follow(&rules(&["new"]), START);
    metrics.follow(&rules(&["new"]), START + GRACE - Span::from_micros(1));
    assert!(tells_of(metrics, "old") && tells_of(metrics, "new"));
    metrics.follow(&rules(&["new"]), START + GRACE);
    assert!(!tells_of(metrics, "old") && tells_of(metrics, "new"), "{:?}", series(metrics));
}

#[test]
fn t68_rules_that_are_made_and_removed_by_the_hundred_leave_few_series() {
    let metrics = Metrics::new(&rules(&["kept"]));
    let before = series(&metrics).len();
    for number in 0..500 {
        metrics.follow(&rules(&["kept", &format!("rule-{number}")]), START);
    }
    metrics.follow(&rules(&["kept"]), START);
    let after = series(&metrics).len();
    assert!(after <= before + 32 * Kind::ALL.len(), "{before} {after}");
    assert!(tells_of(&metrics, "kept") && tells_of(&metrics, "rule-499") && !tells_of(&metrics, "rule-1"));
}

#[test]
fn a_rule_that_comes_back_in_time_goes_on_where_it_was() {
    let limiter = limiter(&["a"]);
    (0..2).for_each(|_| check(&limiter));
    let metrics = limiter.records();
    metrics.follow(&rules(&["b"]), START);
    metrics.follow(&rules(&["a"]), START + Span::from_secs(1));
    metrics.follow(&rules(&["a"]), START + GRACE + GRACE);
    check(&limiter);
    let told = "shadow_refusals_total{rule=\"a\"} 2";
    assert!(series(metrics).iter().any(|line| line.contains(told)), "{:?}", series(metrics));
}

#[test]
fn what_a_rule_that_only_logs_says_in_a_cooldown_is_no_refusal_of_its() {
    let rule = |name: &str, action: &str| {
        format!(
            "[[rules]]\nname = \"{name}\"\nper = \"user\"\naction = \"{action}\"\nlayer = \"{name}\"\n\
             limits = [{{ requests = 1, window = \"1h\" }}]\n"
        )
    };
    let penalties = "[progressive_penalties]\nenabled = true\nviolation_threshold = 1\n";
    let rules = RuleSet::from_toml(&(rule("a", "log_only") + &rule("b", "reject") + penalties)).unwrap();
    let metrics = Metrics::new(&rules);
    let limiter = Limiter::with_records(rules, MemoryCounters::default(), metrics, Seed([1; 16]));
    let user = Some(Id::parse("alice").unwrap());
    let request = Request { user, ..Request::new(Endpoint::parse("/x").unwrap()) };
    // Admitted, refused, and kept out twice.
    (0..4).for_each(|_| drop(limiter.check_now(&request, START)));
    let series = series(limiter.records());
    for told in ["shadow_refusals_total{rule=\"a\"} 1", "{rule=\"b\",decision=\"cooldown\"} 2"] {
        assert!(series.iter().any(|line| line.contains(told)), "{told}: {series:?}");
    }
}

#[test]
fn t68_a_decision_that_outlives_its_rule_brings_its_series_back_for_a_while_only() {
    let limiter = limiter(&["slow"]);
    let metrics = limiter.records();
    metrics.follow(&rules(&["new"]), START - GRACE);
    metrics.follow(&rules(&["new"]), START);
    assert!(!tells_of(metrics, "slow"));
    // The limiter still has the old set, as a request that began before the swap does.
    (0..2).for_each(|_| check(&limiter));
    assert!(tells_of(metrics, "slow"));
    metrics.follow(&rules(&["new"]), START + GRACE);
    assert!(!tells_of(metrics, "slow"), "{:?}", series(metrics));
}

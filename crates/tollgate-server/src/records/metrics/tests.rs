use tollgate::{Endpoint, Id, Limiter, MemoryCounters, Request, Seed, Span};

use super::*;

const START: Timestamp = Timestamp::from_secs(1_000_000);
const GRACE: Span = Span::from_secs(300);

/// A set of `log_only` rules.
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

fn exports(metrics: &Metrics, rule: &str) -> bool {
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
fn series_of_a_removed_rule_are_dropped_after_a_grace_period() {
    let limiter = limiter(&["old"]);
    (0..3).for_each(|_| check(&limiter));
    let metrics = limiter.records();
    assert!(series(metrics).iter().any(|line| line.contains("shadow_refusals_total{rule=\"old\"} 2")));
    metrics.apply_rules(&rules(&["new"]), START);
    metrics.apply_rules(&rules(&["new"]), START + GRACE - Span::from_micros(1));
    assert!(exports(metrics, "old") && exports(metrics, "new"));
    metrics.apply_rules(&rules(&["new"]), START + GRACE);
    assert!(!exports(metrics, "old") && exports(metrics, "new"), "{:?}", series(metrics));
}

#[test]
fn churning_rules_leave_few_series() {
    let metrics = Metrics::new(&rules(&["kept"]));
    let before = series(&metrics).len();
    for number in 0..500 {
        metrics.apply_rules(&rules(&["kept", &format!("rule-{number}")]), START);
    }
    metrics.apply_rules(&rules(&["kept"]), START);
    let after = series(&metrics).len();
    assert!(after <= before + 32 * DecisionOutcome::ALL.len(), "{before} {after}");
    assert!(exports(&metrics, "kept") && exports(&metrics, "rule-499") && !exports(&metrics, "rule-1"));
}

#[test]
fn rule_that_returns_in_time_continues_its_series() {
    let limiter = limiter(&["a"]);
    (0..2).for_each(|_| check(&limiter));
    let metrics = limiter.records();
    metrics.apply_rules(&rules(&["b"]), START);
    metrics.apply_rules(&rules(&["a"]), START + Span::from_secs(1));
    metrics.apply_rules(&rules(&["a"]), START + GRACE + GRACE);
    check(&limiter);
    let sample = "shadow_refusals_total{rule=\"a\"} 2";
    assert!(series(metrics).iter().any(|line| line.contains(sample)), "{:?}", series(metrics));
}

#[test]
fn cooldown_counts_no_shadow_refusal() {
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
    // Admitted, refused, and twice in cooldown.
    (0..4).for_each(|_| drop(limiter.check_now(&request, START)));
    let series = series(limiter.records());
    for sample in ["shadow_refusals_total{rule=\"a\"} 1", "{rule=\"b\",decision=\"cooldown\"} 2"] {
        assert!(series.iter().any(|line| line.contains(sample)), "{sample}: {series:?}");
    }
}

#[test]
fn late_decision_recreates_series_only_for_a_while() {
    let limiter = limiter(&["slow"]);
    let metrics = limiter.records();
    metrics.apply_rules(&rules(&["new"]), START - GRACE);
    metrics.apply_rules(&rules(&["new"]), START);
    assert!(!exports(metrics, "slow"));
    // The limiter still has the old set, like a request that began before the swap.
    (0..2).for_each(|_| check(&limiter));
    assert!(exports(metrics, "slow"));
    metrics.apply_rules(&rules(&["new"]), START + GRACE);
    assert!(!exports(metrics, "slow"), "{:?}", series(metrics));
}

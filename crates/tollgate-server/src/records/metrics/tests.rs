use tollgate::{Endpoint, Id, Limiter, MemoryCounters, Request, Seed, Timestamp};

use super::*;

const START: Timestamp = Timestamp::from_secs(1_000_000);

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
fn series_of_a_removed_rule_are_dropped() {
    let limiter = limiter(&["old"]);
    (0..3).for_each(|_| check(&limiter));
    let metrics = limiter.records();
    assert!(series(metrics).iter().any(|line| line.contains("shadow_refusals_total{rule=\"old\"} 2")));
    metrics.apply_rules(&rules(&["new"]));
    assert!(!exports(metrics, "old") && exports(metrics, "new"), "{:?}", series(metrics));
    // The limiter still has the old set, like a request that began before the swap.
    check(&limiter);
    assert!(!exports(metrics, "old"), "{:?}", series(metrics));
}

#[test]
fn churning_rules_leave_no_series() {
    let metrics = Metrics::new(&rules(&["kept"]));
    let before = series(&metrics);
    for number in 0..500 {
        metrics.apply_rules(&rules(&["kept", &format!("rule-{number}")]));
    }
    metrics.apply_rules(&rules(&["kept"]));
    assert_eq!(series(&metrics).len(), before.len());
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

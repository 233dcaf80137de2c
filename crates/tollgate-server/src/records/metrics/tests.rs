use tollgate::{
    Algorithm, Endpoint, Id, Limit, Limiter, MemoryCounters, Request, Seed, Span, Timestamp, Window,
};

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
    let metrics = Metrics::new(&rules, false);
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
    let metrics = Metrics::new(&rules(&["kept"]), false);
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
    let metrics = Metrics::new(&rules, false);
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

/// The value of a sample of `tollgate_rule_verdicts_total`.
fn verdicts(metrics: &Metrics, rule: &str) -> [u64; 3] {
    let series = series(metrics);
    ["within", "near", "exceeded"].map(|verdict| {
        let start = format!("tollgate_rule_verdicts_total{{rule=\"{rule}\",verdict=\"{verdict}\"}} ");
        series.iter().find_map(|line| line.strip_prefix(&*start)).unwrap().parse().unwrap()
    })
}

#[test]
fn near_limit_means_less_than_a_tenth_left() {
    let rules = "[[rules]]\nname = \"a\"\nper = \"user\"\nalgorithm = \"fixed_window\"\n\
                 limits = [{ requests = 20, window = \"1h\" }]\n\
                 [[rules]]\nname = \"b\"\nper = \"global\"\nalgorithm = \"fixed_window\"\n\
                 limits = [{ requests = 1000, window = \"1s\" }, { requests = 100000, window = \"1h\" }]\n";
    let rules = RuleSet::from_toml(rules).unwrap();
    let metrics = Metrics::new(&rules, false);
    let limiter = Limiter::with_records(rules, MemoryCounters::default(), metrics, Seed([1; 16]));
    let user = Some(Id::parse("alice").unwrap());
    let request = Request { user, ..Request::new(Endpoint::parse("/x").unwrap()) };
    // Two left are a tenth; one and none are less; the last three requests are refused.
    (0..23).for_each(|_| drop(limiter.check_now(&request, START)));
    assert_eq!(verdicts(limiter.records(), "a"), [18, 2, 3]);
    assert_eq!(verdicts(limiter.records(), "b"), [23, 0, 0], "a rule with two limits counts once");
}

#[test]
fn override_decisions_are_counted_by_its_name() {
    let rules = "[[rules]]\nname = \"other\"\nper = \"user\"\nwhen = { endpoints = [\"/other\"] }\n\
                 limits = [{ requests = 5, window = \"1m\" }]\n";
    let rules = RuleSet::from_toml(rules).unwrap();
    let metrics = Metrics::new(&rules, false);
    let limiter = Limiter::with_records(rules, MemoryCounters::default(), metrics, Seed([1; 16]));
    let limit = Limit::new(Algorithm::FixedWindow, 1, Window::Length(Span::from_secs(60))).unwrap();
    let user = Some(Id::parse("alice").unwrap());
    let request =
        Request { user, limit_override: Some(&limit), ..Request::new(Endpoint::parse("/x").unwrap()) };
    (0..3).for_each(|_| drop(limiter.check_now(&request, START)));
    assert_eq!(verdicts(limiter.records(), "@check"), [0, 1, 2]);
}

#[test]
fn series_are_in_the_order_of_their_labels() {
    let metrics = Metrics::new(&rules(&["b", "c", "a"]), true);
    let decisions = |line: &String| line.starts_with("tollgate_decisions_total");
    let series: Vec<String> = series(&metrics).into_iter().filter(decisions).collect();
    assert!(series.len() > 18 && series.is_sorted(), "{series:#?}");
}

#[test]
fn refunds_are_counted_by_rule_and_outcome() {
    let rule = |name: &str, count: &str| {
        format!(
            "[[rules]]\nname = {name:?}\nlayer = {name:?}\nper = [\"global\"]\ncount = {count:?}\n\
             limits = [{{ requests = 9, window = \"1h\" }}]\n"
        )
    };
    let rules = RuleSet::from_toml(&(rule("failures", "on_failure") + &rule("all", "always"))).unwrap();
    let metrics = Metrics::new(&rules, false);
    let limiter = Limiter::with_records(rules, MemoryCounters::default(), metrics, Seed([1; 16]));
    for (status, passed) in [(200, 0), (200, 0), (500, 0), (200, 3_600)] {
        let mut decision = limiter.check_now(&Request::new(Endpoint::parse("/x").unwrap()), START);
        let receipt = decision.take_receipt().unwrap();
        limiter.settle_now(receipt, status, START + Span::from_secs(passed));
    }
    let refunds: Vec<String> =
        series(limiter.records()).into_iter().filter(|line| line.contains("refunds_total")).collect();
    assert_eq!(refunds.len(), 3, "only of rules that refund: {refunds:?}");
    for (outcome, count) in [("refunded", 2), ("dropped", 1), ("lost", 0)] {
        let line = format!("tollgate_refunds_total{{rule=\"failures\",outcome=\"{outcome}\"}} {count}");
        assert!(refunds.contains(&line), "{refunds:?}");
    }
}

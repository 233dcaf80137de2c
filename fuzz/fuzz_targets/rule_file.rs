//! Rule files from arbitrary text: rejected with a line for each problem, or decided and explained alike.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate::config::{Origin, Problems};
use tollgate::counters::conformance::block_on;
use tollgate::{ApiKey, Endpoint, Id, Limiter, MemoryCounters, Method, Request, RuleSet, Timestamp};

fuzz_target!(|text: &str| {
    match RuleSet::from_toml(text) {
        Err(problems) => assert_located(text, &problems),
        Ok(rules) => assert_consistent(rules),
    }
});

fn assert_located(text: &str, problems: &Problems) {
    let lines = text.split('\n').count();
    assert!(!problems.0.is_empty(), "rejected without a reason");
    for problem in &problems.0 {
        assert!(!problem.reason.is_empty() && !problem.to_string().contains('\n'), "{problem}");
        match problem.origin {
            Origin::Line(line) => assert!((1..=lines).contains(&line), "line {line} of {lines}: {problem}"),
            Origin::Named(_) => panic!("problem without a line: {problem}"),
        }
    }
}

/// Check, dry run and explain agree.
fn assert_consistent(rules: RuleSet) {
    assert!(rules.rules().is_sorted_by_key(|rule| rule.priority));
    let limiter = Limiter::new(rules, MemoryCounters::default());
    let id = |text| Id::parse(text).ok();
    for (number, path) in (1..).zip(["/", "/api/v1/users", "/login"]) {
        let Ok(endpoint) = Endpoint::parse(path) else { continue };
        let request = Request {
            user: id("alice").filter(|_| number != 2),
            tenant: id("acme"),
            tier: id("free"),
            login: id("alice").filter(|_| number == 3),
            api_key: ApiKey::parse("secret").ok(),
            method: Some(if number == 1 { Method::Get } else { Method::Post }),
            ip: Some([10, 0, 0, number].into()),
            cost: u32::from(number),
            ..Request::new(endpoint)
        };
        let now = Timestamp::from_secs(1_767_225_600);
        let explained = block_on(limiter.snapshot().explain(&request, now)).decision;
        let peeked = block_on(limiter.snapshot().peek(&request, now));
        assert_eq!((peeked.answer, &peeked.reports), (explained.answer, &explained.reports));
        assert_eq!(peeked.rule_name(), explained.rule_name());
        assert_eq!(limiter.check_now(&request, now).answer, peeked.answer);
    }
}

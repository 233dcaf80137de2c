//! Response headers for arbitrary rules and usage: names are lower-case tokens, values visible ASCII, seconds numeric.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate::headers::{HeaderProfile, for_each};
use tollgate::identity::Dimension;
use tollgate::rules::{Action, Matcher, RefundPolicy, Response, RuleCost, RuleLimit};
use tollgate::{
    Algorithm, Endpoint, Limit, Limiter, MemoryCounters, Request, Rule, RuleSet, Span, Timestamp, Window,
};

/// Rule name, limits (algorithm, requests, window), cost, time and minimum of `Retry-After`.
type Input = (String, Vec<(u8, u32, u64)>, u32, u64, u64);

fuzz_target!(|data: Input| {
    let (name, limits, cost, now, floor) = data;
    let limits = limits.iter().take(8).filter_map(|(algorithm, requests, window)| {
        let algorithm = Algorithm::ALL[usize::from(*algorithm) % Algorithm::ALL.len()];
        Limit::new(algorithm, *requests, Window::Length(Span::from_micros(*window))).ok()
    });
    let rule = Rule {
        limits: limits.map(|limit| RuleLimit::new(&name, limit)).collect(),
        name: name.into(),
        priority: 0,
        when: Matcher::default(),
        per: vec![Dimension::Global],
        layer: "one".into(),
        action: Action::Reject,
        cost: RuleCost::default(),
        across_tenants: false,
        refund_policy: RefundPolicy::default(),
        leases: true,
        sample_allowed: None,
        on_store_failure: None,
        response: Response { retry_after_floor: Span::from_micros(floor), ..Response::default() },
        enabled: true,
    };
    let Ok(rules) = RuleSet::new(vec![rule], None) else { return };
    let limiter = Limiter::new(rules, MemoryCounters::default());
    let Ok(endpoint) = Endpoint::parse("/") else { return };
    let request = Request { cost, ..Request::new(endpoint) };
    for step in 0..3 {
        let decision = limiter.check_now(&request, Timestamp::from_micros(now.wrapping_add(step)));
        let mut names = Vec::new();
        for profile in HeaderProfile::ALL {
            for_each(&decision, &[profile], |field, value| {
                let name = field.as_str();
                assert_header(name, value);
                names.push(name);
            });
        }
        assert_eq!(names.contains(&"retry-after"), decision.retry_after().is_some());
    }
});

fn assert_header(name: &str, value: &str) {
    assert!(
        !name.is_empty()
            && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-' || byte.is_ascii_digit())
    );
    assert!(value.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{name}: {value:?}");
    assert!(!value.is_empty() && value.trim() == value, "{name}: {value:?}");
    if ["retry-after", "ratelimit-reset", "x-ratelimit-reset", "ratelimit-remaining"].contains(&name) {
        assert!(value.parse::<u64>().is_ok(), "{name}: {value:?}");
    }
}

//! Cooldowns end when they are reported to end (threat 66).
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::convert::Infallible;

use tollgate::counters::conformance::block_on;
use tollgate::counters::{Charges, CounterAdmin, CounterStore, StoreError, Verdicts};
use tollgate::decision::{Answer, Refusal};
use tollgate::headers::{HeaderProfile, for_each};
use tollgate::rules::overrides::Override;
use tollgate::{
    Algorithm, Decision, Endpoint, Id, Limit, Limiter, MemoryCounters, Request, RuleSet, Span, Timestamp,
    Window,
};

const RULES: &str = r#"
    default_limit = 2
    default_window = "10s"
    [progressive_penalties]
    enabled = true
    violation_threshold = 2
    base_cooldown = "2m"
    max_cooldown = "5m"
"#;

fn limiter() -> Limiter<MemoryCounters> {
    Limiter::new(RuleSet::from_toml(RULES).unwrap(), MemoryCounters::default())
}

fn check(limiter: &Limiter<MemoryCounters>, user: &str, now: Timestamp) -> Decision {
    let user = Some(Id::parse(user).unwrap());
    limiter.check_now(&Request { user, ..Request::new(Endpoint::parse("/").unwrap()) }, now)
}

/// Checks until refused. Returns `retry_after`.
fn run_into_the_limit(limiter: &Limiter<MemoryCounters>, now: Timestamp) -> Span {
    loop {
        let decision = check(limiter, "alice", now);
        if let Answer::Refuse { reason, retry_after } = decision.answer {
            assert_eq!(reason, Refusal::OverLimit);
            return retry_after.unwrap();
        }
    }
}

#[test]
fn refusal_that_starts_a_cooldown_reports_its_end() {
    let limiter = limiter();
    let mut now = Timestamp::from_secs(1_000);
    assert_eq!(run_into_the_limit(&limiter, now), Span::from_secs(5));
    now = now + Span::from_secs(10);
    assert_eq!(run_into_the_limit(&limiter, now), Span::from_secs(120));

    let early = check(&limiter, "alice", now + Span::from_micros(119_999_999));
    assert_eq!(
        early.answer,
        Answer::Refuse { reason: Refusal::Cooldown, retry_after: Some(Span::from_micros(1)) }
    );
    assert!(check(&limiter, "bob", now).admits(), "other clients are not in cooldown");
    assert!(check(&limiter, "alice", now + Span::from_secs(120)).admits());
}

#[test]
fn waiting_for_retry_after_ends_the_cooldown() {
    let limiter = limiter();
    let mut now = Timestamp::from_secs(1_000);
    for _ in 0..200 {
        now = now + run_into_the_limit(&limiter, now);
        assert!(check(&limiter, "alice", now).admits(), "refused at {now:?} after waiting");
    }
}

#[test]
fn wrong_clock_does_not_extend_a_cooldown() {
    let limiter = limiter();
    let now = Timestamp::from_secs(1_000_000);
    let wrong = now + Span::from_secs(365 * 86_400);
    run_into_the_limit(&limiter, wrong);
    run_into_the_limit(&limiter, wrong + Span::from_secs(10));
    let wait = run_into_the_limit(&limiter, now);
    assert!(wait <= Span::from_secs(300), "in cooldown for {wait}");
    assert!(check(&limiter, "alice", now + wait).admits());
}

/// A limiter with these rules and a cooldown of ten minutes from the first violation.
fn strict(rules: &str) -> Limiter<MemoryCounters> {
    Limiter::new(strict_rules(rules), MemoryCounters::default())
}

fn strict_rules(rules: &str) -> RuleSet {
    let penalties =
        "[progressive_penalties]\nenabled = true\nviolation_threshold = 1\nbase_cooldown = \"10m\"";
    RuleSet::from_toml(&format!("{rules}\n{penalties}")).unwrap()
}

#[test]
fn retry_after_covers_cooldown_and_limits() {
    let limiter = strict("default_limit = 1\ndefault_window = \"1h\"");
    let start = Timestamp::from_secs(1_000);
    assert_eq!(run_into_the_limit(&limiter, start), Span::from_secs(3_600));
    let now = start + Span::from_secs(60);
    let in_cooldown = check(&limiter, "alice", now);
    let wait = Span::from_secs(3_540);
    assert_eq!(in_cooldown.answer, Answer::Refuse { reason: Refusal::Cooldown, retry_after: Some(wait) });
    assert_eq!(in_cooldown.binding().unwrap().remaining(), 0);
    assert_eq!(in_cooldown.reset_at(), Some(now + wait));
    assert!(!check(&limiter, "alice", now + wait - Span::from_micros(1)).admits());
    assert!(check(&limiter, "alice", now + wait).admits());
}

#[test]
fn impossible_cost_in_cooldown_has_no_retry_after() {
    let limiter = strict("default_limit = 1\ndefault_window = \"1h\"");
    let now = Timestamp::from_secs(1_000);
    run_into_the_limit(&limiter, now);
    let user = Some(Id::parse("alice").unwrap());
    let request = Request { user, cost: 2, ..Request::new(Endpoint::parse("/").unwrap()) };
    let answer = limiter.check_now(&request, now).answer;
    assert_eq!(answer, Answer::Refuse { reason: Refusal::CostExceedsLimit, retry_after: None });
}

#[test]
fn cooldown_until_is_separate_from_retry_after() {
    let limiter = strict("default_limit = 1\ndefault_window = \"1h\"");
    let start = Timestamp::from_secs(1_000);
    run_into_the_limit(&limiter, start);
    let (now, ends) = (start + Span::from_secs(60), start + Span::from_secs(600));
    let user = Some(Id::parse("alice").unwrap());
    for cost in [0, 1, 2] {
        let request = Request { user, cost, ..Request::new(Endpoint::parse("/").unwrap()) };
        assert_eq!(limiter.check_now(&request, now).cooldown_until(), Some(ends), "cost {cost}");
        assert_eq!(
            block_on(limiter.snapshot().peek(&request, now)).cooldown_until(),
            Some(ends),
            "cost {cost}"
        );
        assert_eq!(
            block_on(limiter.snapshot().explain(&request, now)).cooldown_until(),
            Some(ends),
            "cost {cost}"
        );
        assert_eq!(limiter.check_now(&request, ends).cooldown_until(), None, "cost {cost}");
    }
}

#[test]
fn cooldown_binds_an_enforced_limit() {
    let rule = |name: &str, action: &str| {
        format!(
            "[[rules]]\nname = \"{name}\"\nper = \"user\"\naction = \"{action}\"\nlayer = \"{name}\"\n\
             limits = [{{ requests = 1, window = \"1m\" }}]\n"
        )
    };
    let limiter = strict(&(rule("a-look", "log_only") + &rule("enforced", "reject")));
    let now = Timestamp::from_secs(1_000);
    run_into_the_limit(&limiter, now);
    let in_cooldown = check(&limiter, "alice", now);
    assert!(matches!(in_cooldown.answer, Answer::Refuse { reason: Refusal::Cooldown, .. }));
    assert_eq!(in_cooldown.rule_name(), Some("enforced"));
}

/// Counters that do not read the limits of a client in cooldown.
#[derive(Default)]
struct CooldownAlone(MemoryCounters);

impl CounterStore for CooldownAlone {
    async fn charge_all(&self, charges: &Charges<'_>, now: Timestamp) -> Result<Verdicts, StoreError> {
        let mut verdicts = self.0.charge_all_now(charges, now);
        if verdicts.in_cooldown {
            verdicts.verdicts.clear();
        }
        Ok(verdicts)
    }
}

/// The headers of a profile, by name.
fn headers(decision: &Decision, profile: HeaderProfile) -> Vec<(&'static str, String)> {
    let mut headers = Vec::new();
    for_each(decision, &[profile], |field, value| headers.push((field.as_str(), value.to_owned())));
    headers
}

/// The decision before a cooldown, and some seconds into it.
fn before_and_in_a_cooldown<S: CounterStore>(limiter: &Limiter<S>) -> [Decision; 2] {
    let user = Some(Id::parse("alice").unwrap());
    let request = Request { user, ..Request::new(Endpoint::parse("/").unwrap()) };
    let now = Timestamp::from_secs(1_000);
    let before = block_on(limiter.snapshot().peek(&request, now));
    while block_on(limiter.check(&request, now)).admits() {}
    let later = now + Span::from_secs(6);
    let in_cooldown = block_on(limiter.check(&request, later));
    assert!(matches!(in_cooldown.answer, Answer::Refuse { reason: Refusal::Cooldown, .. }));
    let explained = block_on(limiter.snapshot().explain(&request, later)).decision;
    assert_eq!((explained.answer, &explained.reports), (in_cooldown.answer, &in_cooldown.reports));
    assert_eq!(explained.binding(), in_cooldown.binding());
    [before, in_cooldown]
}

#[test]
fn cooldown_keeps_the_policy_headers() {
    let rule = |limits: &str| {
        format!(
            "[[rules]]\nname = \"u\"\nper = \"user\"\nalgorithm = \"sliding_window_log\"\nlimits = [{limits}]"
        )
    };
    let (minute, hour) = ("{ requests = 4, window = \"1m\" }", "{ requests = 100, window = \"1h\" }");
    let rules = || strict_rules(&rule(&format!("{minute}, {hour}")));
    let read = before_and_in_a_cooldown(&Limiter::new(rules(), MemoryCounters::default()));
    let unread = before_and_in_a_cooldown(&Limiter::new(rules(), CooldownAlone::default()));
    assert_eq!(read[1].reports[1].remaining(), 96, "as its counter stands");
    for [before, in_cooldown] in [read, unread] {
        for (profile, field) in
            [(HeaderProfile::Draft03, 0), (HeaderProfile::Draft06, 3), (HeaderProfile::Draft10, 0)]
        {
            let (before, shown) = (headers(&before, profile), headers(&in_cooldown, profile));
            assert_eq!(shown[field], before[field], "{profile:?}");
            assert_eq!(shown.last().unwrap(), &("retry-after", "594".to_owned()), "{profile:?}");
        }
        assert_eq!(headers(&in_cooldown, HeaderProfile::Draft10)[1].1, "\"u/1m\";r=0;t=594");
        let plain = headers(&in_cooldown, HeaderProfile::XRateLimit);
        let plain: Vec<&str> = plain.iter().map(|(_, value)| &**value).collect();
        assert_eq!(plain, ["4", "0", "1600", "sliding_window_log", "594"]);
    }
}

#[test]
fn limit_that_outlasts_the_cooldown_binds() {
    let limiter = strict(
        "[[rules]]\nname = \"u\"\nper = \"user\"\nalgorithm = \"sliding_window_log\"\n\
         limits = [{ requests = 50, window = \"1m\" }, { requests = 5, window = \"1h\" }]",
    );
    let [_, in_cooldown] = before_and_in_a_cooldown(&limiter);
    let binding = in_cooldown.binding().unwrap();
    assert_eq!((binding.requests, binding.remaining(), in_cooldown.reports.len()), (5, 0, 2));
    let shown = headers(&in_cooldown, HeaderProfile::Draft10);
    assert_eq!(shown[0].1, "\"u/1m\";q=50;w=60, \"u/1h\";q=5;w=3600");
    assert_eq!(shown[1].1, "\"u/1h\";r=0;t=3594");
}

#[test]
fn override_set_during_a_cooldown_keeps_consumption() {
    let now = Timestamp::from_secs(1_000);
    let (user, endpoint) = (Id::parse("alice").unwrap(), Endpoint::parse("/").unwrap());
    let request = Request { user: Some(user), ..Request::new(endpoint.clone()) };
    let hour = Limit::new(Algorithm::TokenBucket, 36, Window::Length(Span::from_secs(3_600))).unwrap();
    let new = Override::new(user, &endpoint, hour, now);
    // Of 2 per 10 s both are restored after a minute, and one after five seconds.
    for (later, used) in [(60, 0), (5, 1)] {
        let limiter = strict("default_limit = 2\ndefault_window = \"10s\"");
        run_into_the_limit(&limiter, now);
        let now = now + Span::from_secs(later);
        let agreed = std::future::ready(Ok::<(), Infallible>(()));
        block_on(limiter.change_override(&request, now, agreed, |all| all.with(new.clone()))).unwrap();
        let read = block_on(
            limiter.snapshot().peek(&Request { cost: 0, ..request.clone() }, now + Span::from_secs(600)),
        );
        assert_eq!(read.binding().unwrap().remaining(), 36.min(36 - used + 6), "{later} s later");
    }
}

#[test]
fn calendar_window_is_one_violation() {
    let rules = "[[rules]]\nname = \"daily\"\nper = \"user\"\nalgorithm = \"fixed_window\"\n\
                 limits = [{ requests = 1, window = \"day\" }]\n\
                 [progressive_penalties]\nenabled = true\nviolation_threshold = 9\ndetection_window = \"30d\"";
    let limiter = Limiter::new(RuleSet::from_toml(rules).unwrap(), MemoryCounters::default());
    let (midnight, hour) = (Timestamp::from_secs(1_767_225_600), 3_600);
    let violations = |now| block_on(limiter.counters().penalized_clients(9, now)).unwrap()[0].violations;
    for day in 0..3 {
        // From the last hour of one day to the first of the next.
        for second in [23 * hour, 23 * hour + 1, 24 * hour - 1] {
            let now = midnight + Span::from_secs(day * 24 * hour + second);
            while check(&limiter, "alice", now).admits() {}
            assert_eq!(violations(now), usize::try_from(day).unwrap() + 1);
        }
        let now = midnight + Span::from_secs((day + 1) * 24 * hour);
        while check(&limiter, "alice", now).admits() {}
        assert_eq!(violations(now), usize::try_from(day).unwrap() + 2);
    }
}

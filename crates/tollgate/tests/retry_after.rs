//! A client that waits exactly `Retry-After` is admitted.
#![allow(clippy::unwrap_used, missing_docs)]

use tollgate::headers::{Field, HeaderProfile, for_each};
use tollgate::{
    Algorithm, Decision, Endpoint, Id, Limiter, MemoryCounters, Request, RuleSet, Span, Timestamp,
};

const RETRIES: u32 = 10_000;

/// A deterministic generator, so that failures are reproducible.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

fn limiter(numbers: &mut Numbers) -> Limiter<MemoryCounters> {
    let algorithm = Algorithm::ALL[usize::try_from(numbers.below(6)).unwrap()];
    let limit = |numbers: &mut Numbers, window: u64| {
        format!("{{ requests = {}, window = \"{window}ms\" }}", 1 + numbers.below(20))
    };
    let windows = [1 + numbers.below(5_000), 5_001 + numbers.below(120_000)];
    let limits: Vec<String> = windows.into_iter().map(|window| limit(numbers, window)).collect();
    let rules = format!(
        "[[rules]]\nname = \"r\"\nper = [\"user\"]\nalgorithm = \"{algorithm}\"\nlimits = [{}]",
        limits.join(", ")
    );
    Limiter::new(RuleSet::from_toml(&rules).unwrap(), MemoryCounters::default())
}

fn retry_after(decision: &Decision) -> Option<u64> {
    let mut seconds = None;
    for_each(decision, &[HeaderProfile::XRateLimit], |field, value| {
        if field == Field::RetryAfter {
            seconds = Some(value.parse().unwrap());
        }
    });
    seconds
}

#[test]
fn waiting_for_retry_after_is_always_enough() {
    let mut numbers = Numbers(0x7011_6a7e);
    let user = Some(Id::parse("alice").unwrap());
    let request = Request { user, ..Request::new(Endpoint::parse("/").unwrap()) };
    let mut retries = 0;
    while retries < RETRIES {
        let limiter = limiter(&mut numbers);
        let mut now = Timestamp::from_micros(1_700_000_000_000_000 + numbers.below(10_000_000_000));
        for _ in 0..200 {
            now = now + Span::from_micros(numbers.below(50_000));
            let refused = limiter.check_now(&request, now);
            if let Some(seconds) = retry_after(&refused) {
                now = now + Span::from_secs(seconds);
                assert!(limiter.check_now(&request, now).admits(), "retry {retries}: {refused:?}");
                retries += 1;
            }
        }
    }
}

#[test]
fn retry_one_tick_early_is_refused() {
    let mut numbers = Numbers(0x0bed_1e47);
    let user = Some(Id::parse("alice").unwrap());
    let request = Request { user, ..Request::new(Endpoint::parse("/").unwrap()) };
    for _ in 0..500 {
        let limiter = limiter(&mut numbers);
        let now = Timestamp::from_micros(1_700_000_000_000_000 + numbers.below(10_000_000_000));
        let refused = (0..50).map(|_| limiter.check_now(&request, now)).find(|decision| !decision.admits());
        let wait = refused.unwrap().retry_after().unwrap();
        let early = now + Span::from_micros(wait.as_micros() - 1);
        assert!(!limiter.check_now(&request, early).admits());
        assert!(limiter.check_now(&request, now + wait).admits());
    }
}

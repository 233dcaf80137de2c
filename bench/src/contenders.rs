//! The limiters under test behind one trait.

use std::num::{NonZeroU32, NonZeroUsize};
use std::time::SystemTime;

use anyhow::Result;
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use tollgate::counters::memory::MemoryBounds;
use tollgate::counters::{Charge, Charges, Effect};
use tollgate::identity::IpPrefixes;
use tollgate::identity::SubjectHasher;
use tollgate::rules::RuleLimit;
use tollgate::{
    Algorithm, Client, Endpoint, Id, Limit, Limiter, MemoryCounters, Request, Seed, Span, Timestamp, Window,
};

use crate::rules;

/// One limiter under test.
pub trait Contender: Sync + Sized {
    /// Creates an empty limiter for at most `keys_max` keys.
    fn new(keys_max: usize) -> Result<Self>;

    /// Charges one unit and returns whether it was admitted. Reads the clock itself, as a service would.
    #[expect(clippy::ptr_arg, reason = "governor looks up a key by its own type")]
    fn check(&self, key: &String) -> bool;

    /// Stores a key before the measurement.
    fn store(&mut self, key: &String) {
        self.check(key);
    }
}

/// The lower bound of any keyed limiter: finds a key, without lock, clock or write.
pub struct BareMap(hashbrown::HashMap<String, u64>);

impl Contender for BareMap {
    fn new(_: usize) -> Result<Self> {
        Ok(Self(hashbrown::HashMap::new()))
    }

    fn check(&self, key: &String) -> bool {
        self.0.get(key).is_some_and(|value| *value == 0)
    }

    fn store(&mut self, key: &String) {
        self.0.insert(key.clone(), 0);
    }
}

pub struct Governor(DefaultKeyedRateLimiter<String>);

impl Contender for Governor {
    fn new(_: usize) -> Result<Self> {
        // One unit each nanosecond, governor's smallest step.
        let quota =
            NonZeroU32::new(1_000_000_000).map_or(Quota::per_second(NonZeroU32::MIN), Quota::per_second);
        Ok(Self(RateLimiter::keyed(quota)))
    }

    fn check(&self, key: &String) -> bool {
        self.0.check_key(key).is_ok()
    }
}

/// tollgate's counters without rules, comparable to governor: hashes the user as a rule would, and charges it.
pub struct Store {
    counters: MemoryCounters,
    limit: RuleLimit,
    seed: Seed,
    clock: Clock,
}

impl Store {
    /// The bytes that the table reports as reserved.
    pub fn bytes(&self) -> usize {
        self.counters.bytes()
    }
}

impl Contender for Store {
    fn new(keys_max: usize) -> Result<Self> {
        let window = Window::Length(Span::from_secs(1));
        let limit = Limit::new(Algorithm::TokenBucket, rules::NEVER_REFUSED, window)?;
        let limit = RuleLimit::new("per-user", limit);
        Ok(Self { counters: counters(keys_max), limit, seed: Seed::random(), clock: Clock::new() })
    }

    fn check(&self, key: &String) -> bool {
        let Ok(user) = Id::parse(key) else { return false };
        let mut values = SubjectHasher::new(self.seed);
        values.push_client(Client::User(user), IpPrefixes::DEFAULT);
        let mut charges = Charges::default();
        charges.charges.push(Charge {
            subject: values.subject(),
            counter: self.limit.counter,
            rule: "per-user",
            limit: &self.limit.limit,
            cost: 1,
            effect: Effect::Enforce,
            leases: true,
            refundable: false,
        });
        self.counters.charge_all_now(&charges, self.clock.now()).admitted(&charges)
    }
}

/// A whole check: ten rules, one of which limits the user, from the text of the request to the decision.
pub struct Check {
    limiter: Limiter<MemoryCounters>,
    clock: Clock,
}

impl Contender for Check {
    fn new(keys_max: usize) -> Result<Self> {
        let limiter = Limiter::new(rules::one_of_ten_applies()?, counters(keys_max));
        Ok(Self { limiter, clock: Clock::new() })
    }

    fn check(&self, key: &String) -> bool {
        let (Ok(user), Ok(endpoint)) = (Id::parse(key), Endpoint::parse("/api/v1/items")) else {
            return false;
        };
        let request = Request { user: Some(user), ..Request::new(endpoint) };
        self.limiter.check_now(&request, self.clock.now()).admits()
    }
}

/// Keys are not distributed exactly evenly over shards, so a table for exactly as many keys would overflow.
pub fn counters(keys_max: usize) -> MemoryCounters {
    let keys_max = NonZeroUsize::new(keys_max * 2).unwrap_or(NonZeroUsize::MIN).max(MIN_KEYS);
    MemoryCounters::new(MemoryBounds { keys_max, ..MemoryBounds::default() })
}

const MIN_KEYS: NonZeroUsize = NonZeroUsize::new(100_000).unwrap();

/// Monotonic wall time: read once, then advanced by the time stamp counter of the processor, the clock that governor
/// reads.
pub struct Clock {
    anchor: u64,
    clock: quanta::Clock,
    since: u64,
    /// Microseconds per step of the counter, times 2^64.
    step: u64,
}

impl Clock {
    #[expect(clippy::new_without_default, reason = "it reads the clock")]
    pub fn new() -> Self {
        const STEPS: u32 = 44; // of the counter: an hour or more
        let clock = quanta::Clock::new();
        let nanos = u128::from(clock.delta_as_nanos(0, 1 << STEPS));
        let anchor = Timestamp::from(SystemTime::now()).as_micros();
        let step = u64::try_from((nanos << (64 - STEPS)) / 1_000).unwrap_or(u64::MAX);
        Self { anchor, since: clock.raw(), clock, step }
    }

    /// Microseconds by one multiplication, without nanoseconds in between.
    #[expect(clippy::cast_possible_truncation, reason = "microseconds of a run")]
    pub fn now(&self) -> Timestamp {
        let steps = u128::from(self.clock.raw().saturating_sub(self.since));
        Timestamp::from_micros(self.anchor + ((steps * u128::from(self.step)) >> 64) as u64)
    }
}

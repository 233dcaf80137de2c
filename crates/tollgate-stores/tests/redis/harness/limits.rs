//! Limits of made-up clients, and reproducible random numbers.

use tollgate::Span;
use tollgate::counters::{Charge, Charges, CounterId, Effect, PenaltyCharge};
use tollgate::identity::{Client, Id, Seed, Subject};
use tollgate::limit::{Algorithm, Limit, Window};
use tollgate::penalties::PenaltyPolicy;

/// Longer than any test runs.
const TEST_MAX: Span = Span::from_secs(20 * 60);

/// A window in which nothing is restored while a test runs: a day, or some hours more shortly before midnight.
pub(crate) fn day() -> Span {
    let now = super::now().as_micros();
    let left = |window: &Span| window.as_micros() - now % window.as_micros();
    let mut windows = (24..).map(|hours| Span::from_secs(hours * 3_600));
    windows.find(|window| left(window) > TEST_MAX.as_micros()).unwrap()
}

/// One limit of one client.
#[derive(Clone, Debug)]
pub(crate) struct Gauge {
    pub(crate) limit: Limit,
    pub(crate) subject: Subject,
    pub(crate) counter: CounterId,
    pub(crate) rule: String,
    pub(crate) effect: Effect,
}

impl Gauge {
    /// A limit of a new client.
    pub(crate) fn new(limit: Limit) -> Self {
        Gauge::of(Subject(unique()), limit)
    }

    pub(crate) fn of(subject: Subject, limit: Limit) -> Self {
        let counter = unique();
        Gauge {
            limit,
            subject,
            counter: CounterId(counter),
            rule: format!("rule-{:08x}", counter >> 96),
            effect: Effect::Enforce,
        }
    }

    /// This many per day: nothing is restored during the test.
    pub(crate) fn a_day(algorithm: Algorithm, requests: u32) -> Self {
        Gauge::new(limit(algorithm, requests, day()))
    }

    pub(crate) fn charge(&self, cost: u32) -> Charge<'_> {
        let Gauge { limit, subject, counter, rule, effect } = self;
        Charge {
            subject: *subject,
            counter: *counter,
            rule,
            limit,
            cost,
            effect: *effect,
            leases: true,
            refundable: false,
        }
    }
}

pub(crate) fn limit(algorithm: Algorithm, requests: u32, window: Span) -> Limit {
    Limit::new(algorithm, requests, Window::Length(window)).unwrap()
}

/// All limits of one request, charged together.
pub(crate) fn charges<'a>(gauges: impl IntoIterator<Item = &'a Gauge>, cost: u32) -> Charges<'a> {
    let charges = gauges.into_iter().map(|gauge| gauge.charge(cost)).collect();
    Charges { charges, ..Charges::default() }
}

/// A client with a penalty policy.
#[derive(Clone, Debug)]
pub(crate) struct Watched {
    pub(crate) subject: Subject,
    pub(crate) name: String,
    pub(crate) policy: PenaltyPolicy,
}

impl Watched {
    pub(crate) fn new(policy: PenaltyPolicy) -> Self {
        let subject = unique();
        Watched { subject: Subject(subject), name: format!("{subject:032x}"), policy }
    }

    /// A policy under which one refusal starts a cooldown this long.
    pub(crate) fn cooldown_for(cooldown: Span) -> Self {
        Watched::new(PenaltyPolicy {
            violation_threshold: 1,
            base_cooldown: cooldown,
            cooldown_max: cooldown,
            ..PenaltyPolicy::default()
        })
    }

    pub(crate) fn penalty(&self, client_charges: u32) -> PenaltyCharge<'_> {
        let client = Client::User(Id::parse(&self.name).unwrap());
        PenaltyCharge { subject: self.subject, client: client.into(), policy: &self.policy, client_charges }
    }
}

pub(crate) fn unique() -> u128 {
    u128::from_le_bytes(Seed::random().0)
}

/// Reproducible random numbers.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn below(&mut self, bound: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        u32::try_from((self.0 >> 33) % u64::from(bound)).unwrap()
    }

    pub(crate) fn between(&mut self, least: u32, most: u32) -> u32 {
        least + self.below(most - least + 1)
    }

    pub(crate) fn one_in(&mut self, count: u32) -> bool {
        self.below(count) == 0
    }

    pub(crate) fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(u32::try_from(items.len()).unwrap()) as usize]
    }
}

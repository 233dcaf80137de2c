//! The properties of semantics 2.1, one by one.

use tollgate::algorithms::{Outcome, Verdict};
use tollgate::counters::{Charge, Charges, CounterId, Effect};
use tollgate::identity::Subject;
use tollgate::{Algorithm, Limit, MemoryCounters, Span, Timestamp, Window};

use crate::random::{Random, any_limit, narrow};

/// One limit and its counter in its own store.
pub(crate) struct Single {
    store: MemoryCounters,
    pub(crate) limit: Limit,
}

impl Single {
    pub(crate) fn new(limit: Limit) -> Self {
        Single { store: MemoryCounters::default(), limit }
    }

    pub(crate) fn charge(&self, cost: u32, now: i128) -> Verdict {
        self.ask(cost, now, false)
    }

    pub(crate) fn look(&self, now: i128) -> Verdict {
        self.ask(0, now, false)
    }

    fn ask(&self, cost: u32, now: i128, dry_run: bool) -> Verdict {
        let (subject, counter, effect) = (Subject(1), CounterId(2), Effect::Enforce);
        let charge = Charge {
            subject,
            counter,
            rule: "single",
            limit: &self.limit,
            cost,
            effect,
            leases: true,
            refundable: false,
        };
        let charges = Charges { charges: [charge].into_iter().collect(), dry_run, ..Charges::default() };
        self.store.charge_all_now(&charges, Timestamp::from_micros(u64::try_from(now).unwrap())).verdicts[0]
    }
}

pub(crate) const START: i128 = 1_700_000_000_000_000;

/// Time steps that mostly go forward and sometimes slightly back.
pub(crate) fn any_step(random: &mut Random, window: i128, requests: i128) -> i128 {
    match random.between(0, 7) {
        0..=2 => 0,
        3 | 4 => random.between(0, 2 * window / requests.max(1)),
        5 => random.between(0, window),
        6 => random.between(0, 3 * window),
        _ => -random.between(0, window.min(1_000_000)),
    }
}

pub(crate) fn any_cost(random: &mut Random, capacity: u32) -> u32 {
    let capacity = i128::from(capacity);
    narrow(match random.between(0, 3) {
        0 | 1 => 1,
        2 => random.between(1, capacity.max(1)),
        _ => random.between(1, capacity / 4 + 1),
    })
}

#[test]
fn peeks_and_refusals_change_no_later_verdict() {
    for seed in 0..2_000 {
        let mut random = Random::new(seed);
        let (numbers, limit) = any_limit(&mut random);
        let (asked, spared) = (Single::new(limit.clone()), Single::new(limit));
        let mut now = START;
        for _ in 0..60 {
            now += any_step(&mut random, numbers.window, numbers.requests);
            let cost = any_cost(&mut random, asked.limit.capacity());
            match random.between(0, 3) {
                0 => drop(asked.look(now)),
                1 => drop(asked.ask(cost, now, true)),
                _ => {
                    let verdict = asked.charge(cost, now);
                    // The other store never receives refused requests.
                    if verdict.admits() {
                        assert_eq!(spared.charge(cost, now), verdict, "seed {seed}");
                    }
                }
            }
            assert_eq!(asked.ask(0, now, true), spared.ask(0, now, true), "seed {seed}");
        }
    }
}

/// Charges one unit at each instant, in one bucket all of them and in another all but one; calls `compare` with what
/// remains in each.
fn leave_one_out(seed: u64, refusals: bool, mut compare: impl FnMut(u32, u32)) {
    let mut random = Random::new(seed);
    let requests = narrow(random.between(1, 20));
    let window = Window::Length(Span::from_micros(u64::try_from(random.between(1_000, 100_000)).unwrap()));
    let algorithm = random.pick(&[Algorithm::TokenBucket, Algorithm::Gcra]);
    let limit = Limit::new(algorithm, requests, window).unwrap();
    let (all, fewer) = (Single::new(limit.clone()), Single::new(limit));
    let left_out = random.between(0, 40);
    let mut now = START;
    for step in 0..80 {
        now += random.between(0, 5_000);
        if refusals || all.look(now).admits() {
            all.charge(1, now);
            if step != left_out {
                fewer.charge(1, now);
            }
        }
        compare(all.look(now).remaining, fewer.look(now).remaining);
    }
}

#[test]
fn omitting_an_admitted_request_never_leaves_less() {
    for seed in 0..1_000 {
        leave_one_out(seed, false, |all, fewer| {
            assert!(fewer >= all, "seed {seed}: {fewer} instead of {all}");
        });
    }
}

#[test]
fn omitting_a_request_costs_at_most_one_unit_later() {
    // The stronger form is false: one request per 10 s, sent at 0 s and 9 s. With both, the second is refused and one
    // unit is available at 12 s; without the first, the second is admitted and nothing is available until 19 s.
    let mut lower = 0;
    for seed in 0..1_000 {
        leave_one_out(seed, true, |all, fewer| {
            assert!(fewer + 1 >= all, "seed {seed}: {fewer} instead of {all}");
            lower += u32::from(fewer < all);
        });
    }
    assert!(lower > 0);
}

#[test]
fn cost_at_once_or_in_units_leaves_the_same_state() {
    for seed in 0..2_000 {
        let mut random = Random::new(seed);
        let (numbers, limit) = any_limit(&mut random);
        let (whole, split) = (Single::new(limit.clone()), Single::new(limit));
        let mut now = START;
        for _ in 0..8 {
            now += any_step(&mut random, numbers.window, numbers.requests);
            let cost = narrow(random.between(0, 40)).min(whole.look(now).remaining);
            if cost > 0 {
                assert!(whole.charge(cost, now).admits(), "seed {seed}");
                (0..cost).for_each(|_| assert!(split.charge(1, now).admits(), "seed {seed}"));
            }
            for later in [0, 1, numbers.window / 3, numbers.window, 2 * numbers.window] {
                assert_eq!(whole.look(now + later), split.look(now + later), "seed {seed}");
            }
        }
    }
}

#[test]
fn waiting_for_retry_after_is_enough() {
    for seed in 0..3_000 {
        let mut random = Random::new(seed);
        let (numbers, limit) = any_limit(&mut random);
        let single = Single::new(limit);
        let mut now = START;
        for _ in 0..40 {
            let cost = any_cost(&mut random, single.limit.capacity());
            match single.charge(cost, now).outcome {
                Outcome::Refuse { retry_after } => {
                    let wait = i128::from(retry_after.as_micros());
                    if now + wait > 3_000_000_000_000_000 {
                        break;
                    }
                    now += wait;
                    assert!(single.charge(cost, now).admits(), "seed {seed}: {numbers:?}");
                }
                Outcome::Admit { .. } | Outcome::Never => {
                    now += random.between(0, numbers.window / numbers.requests.max(1));
                }
            }
        }
    }
}

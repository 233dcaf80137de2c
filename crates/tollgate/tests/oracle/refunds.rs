//! Refunds against the exact model: what is counted after a refund is at least what the other charges alone would count.

use tollgate::counters::{
    Charge, ChargeMark, Charges, CounterId, Effect, Refund, RefundOutcome, memory::MemoryCounters,
};
use tollgate::identity::Subject;
use tollgate::{Algorithm, Limit, Timestamp};

use crate::model::{self, ModelLimit, ModelOutcome};
use crate::properties::{START, any_cost, any_step};
use crate::random::{Random, any_limit};

/// An admitted charge that was not refunded.
struct Kept {
    cost: u32,
    at: i128,
    /// `None` once giving it back had no effect.
    mark: Option<ChargeMark>,
}

struct Trace {
    store: MemoryCounters,
    numbers: ModelLimit,
    limit: Limit,
    kept: Vec<Kept>,
    refunded: u64,
    dropped: u64,
}

impl Trace {
    fn charge(&self, cost: u32) -> Charge<'_> {
        Charge {
            subject: Subject(1),
            counter: CounterId(2),
            rule: "refunds",
            limit: &self.limit,
            cost,
            effect: Effect::Enforce,
            leases: true,
            refundable: true,
        }
    }

    fn take(&mut self, cost: u32, now: i128) {
        let charges = Charges { charges: [self.charge(cost)].into_iter().collect(), ..Charges::default() };
        let mark = self.store.charge_all_now(&charges, timestamp(now)).marks.and_then(|marks| marks[0]);
        drop(charges);
        self.kept.extend(mark.map(|mark| Kept { cost, at: now, mark: Some(mark) }));
    }

    fn give_back(&mut self, position: usize, now: i128) {
        let Kept { cost, mark, .. } = &mut self.kept[position];
        let (cost, Some(mark)) = (*cost, mark.take()) else { return };
        let refund = Refund { charge: self.charge(cost), mark };
        match self.store.refund_now(&[refund], timestamp(now))[0] {
            RefundOutcome::Refunded => {
                self.kept.remove(position);
                self.refunded += 1;
            }
            _ => self.dropped += 1,
        }
    }

    fn remaining(&self, now: i128) -> i128 {
        let charges = Charges { charges: [self.charge(0)].into_iter().collect(), ..Charges::default() };
        self.store.charge_all_now(&charges, timestamp(now)).verdicts[0].remaining.into()
    }

    /// What the model says remains if only the kept charges had been made.
    fn remaining_of_kept(&self, now: i128) -> i128 {
        let mut state = None;
        for Kept { cost, at, .. } in &self.kept {
            let evaluated = model::evaluate(&self.numbers, state.as_ref(), i128::from(*cost), *at);
            let admits = matches!(evaluated.verdict.outcome, ModelOutcome::Admit { .. });
            assert!(admits, "{}: {cost} would not be admitted without the refunded charges", self.limit);
            state = evaluated.charged.or(state);
        }
        model::evaluate(&self.numbers, state.as_ref(), 0, now).verdict.remaining
    }
}

fn timestamp(micros: i128) -> Timestamp {
    Timestamp::from_micros(u64::try_from(micros).unwrap())
}

#[test]
fn refunds_never_free_what_other_charges_took() {
    let (mut refunded, mut dropped) = (0, 0);
    for seed in 0..4_000 {
        let mut random = Random::new(seed);
        let (numbers, limit) = any_limit(&mut random);
        let is_bucket = limit.algorithm().has_burst();
        let store = MemoryCounters::default();
        let mut trace = Trace { store, numbers, limit, kept: Vec::new(), refunded: 0, dropped: 0 };
        let mut now = START;
        for step in 0..40 {
            now += any_step(&mut random, trace.numbers.window, trace.numbers.requests).max(0);
            if random.chance(1, 2) || trace.kept.is_empty() {
                let cost = any_cost(&mut random, trace.limit.capacity());
                trace.take(cost, now);
            } else {
                let latest = i128::try_from(trace.kept.len()).unwrap() - 1;
                let position = random.between((latest - 5).max(0), latest);
                trace.give_back(usize::try_from(position).unwrap(), now);
            }
            let (actual, allowed) = (trace.remaining(now), trace.remaining_of_kept(now));
            let context = format!("seed {seed} step {step}: {}", trace.limit);
            assert!(actual <= allowed, "{context}: {actual} left, of kept charges {allowed}");
            assert!(is_bucket || actual == allowed, "{context}: {actual} left, not {allowed}");
        }
        refunded += trace.refunded;
        dropped += trace.dropped;
    }
    assert!(refunded > 10_000 && dropped > 1_000, "{refunded} refunded, {dropped} dropped");
}

#[test]
fn prompt_refunds_to_a_bucket_restore_it_in_full() {
    for seed in 0..500 {
        let mut random = Random::new(seed);
        let (numbers, limit) = any_limit(&mut random);
        let capacity = i128::from(limit.capacity());
        // Instants end in 2112.
        let is_storable = capacity * numbers.window / numbers.requests.max(1) < START / 2;
        if limit.algorithm() == Algorithm::LeakyBucket || limit.max_delay().is_some() || !is_storable {
            continue;
        }
        let store = MemoryCounters::default();
        let mut trace = Trace { store, numbers, limit, kept: Vec::new(), refunded: 0, dropped: 0 };
        (0..20).for_each(|_| trace.take(any_cost(&mut random, trace.limit.capacity() / 8), START));
        while !trace.kept.is_empty() && trace.dropped == 0 {
            let latest = i128::try_from(trace.kept.len()).unwrap() - 1;
            trace.give_back(usize::try_from(random.between(0, latest)).unwrap(), START);
        }
        assert_eq!((trace.remaining(START), trace.dropped), (capacity, 0), "seed {seed}: {}", trace.limit);
    }
}

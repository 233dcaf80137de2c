//! One trace through the memory store and through the model, compared verdict by verdict.

use smallvec::SmallVec;
use tollgate::algorithms::{Outcome, Verdict};
use tollgate::counters::memory::MemoryBounds;
use tollgate::counters::{Charge, Charges, CounterId, Effect};
use tollgate::identity::Subject;
use tollgate::{Limit, MemoryCounters, Timestamp};

use crate::model::{self, Evaluated, LAST, ModelLimit, ModelOutcome, ModelVerdict, State};
use crate::random::{Random, any_limit, narrow, other_numbers, span};

/// How much was compared.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Compared {
    /// Requests decided by the store and by the model.
    pub(crate) decisions: u64,
    /// Verdicts of single limits.
    pub(crate) verdicts: u64,
    /// Refusals whose `retry_after` was verified, at that instant and a microsecond before.
    pub(crate) retries: u64,
}

/// One limit with its counter in the store and in the model.
#[derive(Debug)]
struct ModelCounter {
    numbers: ModelLimit,
    limit: Limit,
    subject: Subject,
    counter: CounterId,
    effect: Effect,
    state: Option<State>,
}

/// A few limits that are charged together.
pub(crate) struct Trace {
    seed: u64,
    random: Random,
    store: MemoryCounters,
    counters: Vec<ModelCounter>,
    now: i128,
    /// The last reported wait: steps aim at it and just before it.
    announced: i128,
    /// How rarely limits change. In some traces they change with every request, as if its callers held different limits.
    changes_one_in: u64,
    pub(crate) compared: Compared,
}

impl Trace {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let count = random.pick(&[1, 1, 1, 2, 3, 4]);
        let counters = (0..count).map(|_| ModelCounter::any(&mut random)).collect();
        let now = random.between(1_000_000_000_000_000, 1_900_000_000_000_000);
        // Without bounds: every log has its own counter.
        let bounds = MemoryBounds { log_bytes_max: 1 << 30, ..MemoryBounds::default() };
        let (store, compared) = (MemoryCounters::new(bounds), Compared::default());
        let changes_one_in = random.pick(&[25, 25, 25, 2]);
        Trace { seed, random, store, counters, now, announced: 0, changes_one_in, compared }
    }

    /// One request: time advances, limits may change, and everything is charged.
    pub(crate) fn step(&mut self) {
        self.move_time();
        if self.random.chance(1, self.changes_one_in) {
            self.change_numbers();
        }
        let cost = self.any_cost();
        let dry_run = self.random.chance(1, 10);
        let evaluated = self.evaluate(cost, self.now);
        let verdicts = self.charge(cost, self.now, dry_run);
        let admitted = self.admits(&evaluated);
        self.compare(cost, &evaluated, &verdicts, admitted && !dry_run);
        if !dry_run {
            self.remember(evaluated, admitted);
        }
        if admitted && !dry_run && cost > 0 {
            self.check_remaining(cost, &verdicts);
        }
        // A peek repairs nothing, so its wait may belong to a state that the next charge repairs.
        if !admitted && !dry_run && cost > 0 {
            self.check_wait(cost, &verdicts);
        }
    }

    fn evaluate(&self, cost: u32, now: i128) -> Vec<Evaluated> {
        let evaluate = |counter: &ModelCounter| {
            model::evaluate(&counter.numbers, counter.state.as_ref(), i128::from(cost), now)
        };
        self.counters.iter().map(evaluate).collect()
    }

    fn charge(&self, cost: u32, now: i128, dry_run: bool) -> SmallVec<[Verdict; 4]> {
        let charges = self.counters.iter().map(|counter| counter.charge(cost)).collect();
        let charges = Charges { charges, dry_run, ..Charges::default() };
        self.store.charge_all_now(&charges, Timestamp::from_micros(u64::try_from(now).unwrap())).verdicts
    }

    fn compare(&mut self, cost: u32, evaluated: &[Evaluated], verdicts: &[Verdict], charged: bool) {
        assert_eq!(evaluated.len(), verdicts.len());
        self.compared.decisions += 1;
        for ((counter, evaluated), verdict) in self.counters.iter().zip(evaluated).zip(verdicts) {
            self.compared.verdicts += 1;
            let mut expected = verdict_of(&evaluated.verdict, self.now);
            if !charged {
                expected = uncharged(expected, &counter.numbers, counter.state.as_ref(), self.now);
            }
            assert_eq!(
                *verdict, expected,
                "seed {}, now {}, cost {cost}, {:?}, state {:?}",
                self.seed, self.now, counter.numbers, counter.state
            );
        }
    }

    fn admits(&self, evaluated: &[Evaluated]) -> bool {
        let passes = |(counter, evaluated): (&ModelCounter, &Evaluated)| {
            counter.effect == Effect::Shadow
                || matches!(evaluated.verdict.outcome, ModelOutcome::Admit { .. })
        };
        self.counters.iter().zip(evaluated).all(passes)
    }

    /// All are charged or none. A refusal only repairs a state from the future.
    fn remember(&mut self, evaluated: Vec<Evaluated>, admitted: bool) {
        for (counter, evaluated) in self.counters.iter_mut().zip(evaluated) {
            if let ModelOutcome::Refuse { retry_after } = evaluated.verdict.outcome {
                self.announced = retry_after;
            }
            let next = if admitted { evaluated.charged.or(evaluated.repaired) } else { evaluated.repaired };
            if let Some(next) = next {
                counter.state = Some(next);
            }
        }
    }

    /// P2: `remaining` equals what a peek finds, and the previous value less the cost.
    fn check_remaining(&self, cost: u32, verdicts: &[Verdict]) {
        let peeked = self.charge(0, self.now, true);
        for (charged, peeked) in verdicts.iter().zip(&peeked).filter(|(charged, _)| charged.admits()) {
            let seed = self.seed;
            assert_eq!(charged.remaining, peeked.remaining, "seed {seed}: cost {cost}");
            assert_eq!(charged.reset_after, peeked.reset_after, "seed {seed}: cost {cost}");
        }
    }

    /// P1: after the longest reported wait the same request is admitted, a microsecond earlier it is not.
    fn check_wait(&mut self, cost: u32, verdicts: &[Verdict]) {
        let mut longest = 0;
        for (counter, verdict) in self.counters.iter().zip(verdicts) {
            match verdict.outcome {
                Outcome::Never if counter.effect == Effect::Enforce => return,
                Outcome::Refuse { retry_after } if counter.effect == Effect::Enforce => {
                    longest = i128::from(retry_after.as_micros()).max(longest);
                }
                _ => {}
            }
        }
        let refused = |verdicts: SmallVec<[Verdict; 4]>| {
            let mut each = self.counters.iter().zip(&verdicts);
            each.any(|(counter, verdict)| counter.effect == Effect::Enforce && !verdict.admits())
        };
        let (seed, now) = (self.seed, self.now);
        if now + longest >= LAST {
            return;
        }
        assert!(longest > 0, "seed {seed}: refused at {now} without a wait");
        assert!(
            !refused(self.charge(cost, now + longest, true)),
            "seed {seed}: {now} + {longest} is too early for {cost}: {:?}",
            self.counters
        );
        assert!(
            refused(self.charge(cost, now + longest - 1, true)),
            "seed {seed}: {now} + {longest} is too late for {cost}: {:?}",
            self.counters
        );
        self.compared.retries += 1;
    }

    fn change_numbers(&mut self) {
        for counter in &mut self.counters {
            let (algorithm, window) = (counter.numbers.algorithm, counter.numbers.window);
            if let Some((numbers, limit)) = other_numbers(&mut self.random, algorithm, window) {
                (counter.numbers, counter.limit) = (numbers, limit);
            }
        }
    }

    /// Edge cases of the cost: zero, one, what remains, the capacity, and one more than either.
    fn any_cost(&mut self) -> u32 {
        let at = usize::try_from(self.random.next() % self.counters.len() as u64).unwrap();
        let capacity = i128::from(self.counters[at].limit.capacity());
        let left = model::evaluate(&self.counters[at].numbers, self.counters[at].state.as_ref(), 0, self.now);
        let left = left.verdict.remaining;
        let cost = match self.random.between(0, 15) {
            0 => 0,
            1..=7 => 1,
            8 | 9 => self.random.between(1, 4),
            10 => self.random.between(1, capacity / 3 + 1),
            11 => left,
            12 => left + 1,
            13 => capacity,
            14 => capacity + 1,
            _ => self.random.between(1, capacity + 2),
        };
        narrow(cost.min(i128::from(u32::MAX)))
    }

    fn move_time(&mut self) {
        let at = usize::try_from(self.random.next() % self.counters.len() as u64).unwrap();
        let numbers = self.counters[at].numbers.clone();
        let (window, interval) = (numbers.window, numbers.window / numbers.requests.max(1));
        let tolerance = (2 * window).max(60_000_000);
        let random = &mut self.random;
        let step = match random.between(0, 23) {
            0..=5 => 0,
            6 => 1,
            7 | 8 => random.between(0, 2 * interval + 1),
            9 | 10 => self.announced,
            11 | 12 => self.announced - 1,
            13 | 14 => window - self.now % window + random.between(-2, 2),
            15 | 16 => random.between(0, window),
            17 => random.between(0, 3 * window),
            18 => random.between(0, 20 * window),
            19 => -random.between(0, interval),
            20 => -random.between(0, window.min(60_000_000)),
            21 => -random.between(0, tolerance),
            22 => random.between(0, 1_500_000),
            _ if random.chance(1, 4) => -random.between(tolerance - 1, 3 * tolerance),
            _ => 0,
        };
        // Between 1970 and 2100, where no instant is clipped.
        let next = self.now + step;
        self.now = if (100_000_000_000_000..3_900_000_000_000_000).contains(&next) { next } else { self.now };
    }
}

impl ModelCounter {
    fn any(random: &mut Random) -> Self {
        let (numbers, limit) = any_limit(random);
        let effect = if random.chance(1, 6) { Effect::Shadow } else { Effect::Enforce };
        let (subject, counter) = (Subject(random.wide()), CounterId(random.wide()));
        ModelCounter { numbers, limit, subject, counter, effect, state: None }
    }

    fn charge(&self, cost: u32) -> Charge<'_> {
        Charge {
            subject: self.subject,
            counter: self.counter,
            rule: "oracle",
            limit: &self.limit,
            cost,
            effect: self.effect,
            leases: true,
            refundable: false,
        }
    }
}

/// The verdict on a charge that is not taken: what a peek finds.
pub(crate) fn uncharged(verdict: Verdict, numbers: &ModelLimit, state: Option<&State>, now: i128) -> Verdict {
    if !verdict.admits() {
        return verdict;
    }
    let stands = verdict_of(&model::evaluate(numbers, state, 0, now).verdict, now);
    Verdict { outcome: verdict.outcome, ..stands }
}

/// The model's verdict as a library type. Instants are clipped to the last that a counter can hold.
pub(crate) fn verdict_of(verdict: &ModelVerdict, now: i128) -> Verdict {
    let wait = |micros: i128| span(micros.min(LAST - now));
    let outcome = match verdict.outcome {
        ModelOutcome::Admit { delay } => Outcome::Admit { delay: wait(delay) },
        ModelOutcome::Refuse { retry_after } => Outcome::Refuse { retry_after: wait(retry_after) },
        ModelOutcome::Never => Outcome::Never,
    };
    let remaining = u32::try_from(verdict.remaining).unwrap_or(u32::MAX);
    Verdict { outcome, remaining, reset_after: wait(verdict.reset_after) }
}

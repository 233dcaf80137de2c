//! One trace through the memory store and through the model, compared verdict by verdict.

use smallvec::SmallVec;
use tollgate::algorithms::{Outcome, Verdict};
use tollgate::counters::memory::MemoryBounds;
use tollgate::counters::{Charge, Charges, CounterId, Effect};
use tollgate::identity::Subject;
use tollgate::{Limit, MemoryCounters, Timestamp};

use crate::model::{self, Answer, Evaluated, Numbers, State, Told};
use crate::random::{Random, any_limit, narrow, other_numbers, span};

/// The last instant that a counter can carry, in the year 2112.
const LAST: i128 = (1 << 52) - 1;

/// How much was compared.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Compared {
    /// Requests decided by the store and by the model.
    pub(crate) decisions: u64,
    /// Verdicts of single limits among them.
    pub(crate) verdicts: u64,
    /// Refusals whose `retry_after` was tried, at that instant and a microsecond before.
    pub(crate) retries: u64,
}

/// One limit with its counter in the store and in the model.
#[derive(Debug)]
struct Gauge {
    numbers: Numbers,
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
    gauges: Vec<Gauge>,
    now: i128,
    /// The latest wait that was announced: steps aim at it and just before it.
    announced: i128,
    pub(crate) compared: Compared,
}

impl Trace {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let count = random.pick(&[1, 1, 1, 2, 3, 4]);
        let gauges = (0..count).map(|_| Gauge::any(&mut random)).collect();
        let now = random.between(1_000_000_000_000_000, 1_900_000_000_000_000);
        // Bounds are another matter: here every log has a counter of its own.
        let bounds = MemoryBounds { log_bytes_max: 1 << 30, ..MemoryBounds::default() };
        let (store, compared) = (MemoryCounters::new(bounds), Compared::default());
        Trace { seed, random, store, gauges, now, announced: 0, compared }
    }

    /// One request: time moves, numbers may change, and everything is charged.
    pub(crate) fn step(&mut self) {
        self.move_time();
        if self.random.chance(1, 25) {
            self.change_numbers();
        }
        let cost = self.any_cost();
        let dry_run = self.random.chance(1, 10);
        let evaluated = self.evaluate(cost, self.now);
        let told = self.charge(cost, self.now, dry_run);
        let admitted = self.admits(&evaluated);
        self.compare(cost, &evaluated, &told, admitted && !dry_run);
        if !dry_run {
            self.remember(evaluated, admitted);
        }
        if admitted && !dry_run && cost > 0 {
            self.check_what_remains(cost, &told);
        }
        // A look repairs nothing, so its wait may be that of a state which the next charge will repair.
        if !admitted && !dry_run && cost > 0 {
            self.check_the_wait(cost, &told);
        }
    }

    fn evaluate(&self, cost: u32, now: i128) -> Vec<Evaluated> {
        let judge =
            |gauge: &Gauge| model::evaluate(&gauge.numbers, gauge.state.as_ref(), i128::from(cost), now);
        self.gauges.iter().map(judge).collect()
    }

    fn charge(&self, cost: u32, now: i128, dry_run: bool) -> SmallVec<[Verdict; 4]> {
        let charges = self.gauges.iter().map(|gauge| gauge.charge(cost)).collect();
        let charges = Charges { charges, dry_run, ..Charges::default() };
        self.store.charge_all_now(&charges, Timestamp::from_micros(u64::try_from(now).unwrap())).verdicts
    }

    fn compare(&mut self, cost: u32, evaluated: &[Evaluated], told: &[Verdict], charged: bool) {
        assert_eq!(evaluated.len(), told.len());
        self.compared.decisions += 1;
        for ((gauge, evaluated), verdict) in self.gauges.iter().zip(evaluated).zip(told) {
            self.compared.verdicts += 1;
            let mut expected = verdict_of(&evaluated.answer, self.now);
            if !charged {
                expected = uncharged(expected, &gauge.numbers, gauge.state.as_ref(), self.now);
            }
            assert_eq!(
                *verdict, expected,
                "seed {}, now {}, cost {cost}, {:?}, state {:?}",
                self.seed, self.now, gauge.numbers, gauge.state
            );
        }
    }

    fn admits(&self, evaluated: &[Evaluated]) -> bool {
        let passes = |(gauge, evaluated): (&Gauge, &Evaluated)| {
            gauge.effect == Effect::Shadow || matches!(evaluated.answer.told, Told::Admit { .. })
        };
        self.gauges.iter().zip(evaluated).all(passes)
    }

    /// All that admit are charged, or none: a refusal leaves no trace but the repair of an impossible state.
    fn remember(&mut self, evaluated: Vec<Evaluated>, admitted: bool) {
        for (gauge, evaluated) in self.gauges.iter_mut().zip(evaluated) {
            if let Told::Refuse { retry_after } = evaluated.answer.told {
                self.announced = retry_after;
            }
            let next = if admitted { evaluated.charged.or(evaluated.healed) } else { evaluated.healed };
            if let Some(next) = next {
                gauge.state = Some(next);
            }
        }
    }

    /// P2: what was told to remain is what a look finds, and what there was before less the cost.
    fn check_what_remains(&self, cost: u32, told: &[Verdict]) {
        let looked = self.charge(0, self.now, true);
        for (charged, looked) in told.iter().zip(&looked).filter(|(charged, _)| charged.admits()) {
            let seed = self.seed;
            assert_eq!(charged.remaining, looked.remaining, "seed {seed}: cost {cost}");
            assert_eq!(charged.reset_after, looked.reset_after, "seed {seed}: cost {cost}");
        }
    }

    /// P1: after the longest wait that was announced the same request is admitted, a microsecond earlier it is not.
    fn check_the_wait(&mut self, cost: u32, told: &[Verdict]) {
        let mut longest = 0;
        for (gauge, verdict) in self.gauges.iter().zip(told) {
            match verdict.outcome {
                Outcome::Never if gauge.effect == Effect::Enforce => return,
                Outcome::Refuse { retry_after } if gauge.effect == Effect::Enforce => {
                    longest = i128::from(retry_after.as_micros()).max(longest);
                }
                _ => {}
            }
        }
        let refused = |verdicts: SmallVec<[Verdict; 4]>| {
            let mut each = self.gauges.iter().zip(&verdicts);
            each.any(|(gauge, verdict)| gauge.effect == Effect::Enforce && !verdict.admits())
        };
        let (seed, now) = (self.seed, self.now);
        if now + longest >= LAST {
            return;
        }
        assert!(longest > 0, "seed {seed}: refused at {now} with nothing to wait for");
        assert!(
            !refused(self.charge(cost, now + longest, true)),
            "seed {seed}: {now} + {longest} is too early for {cost}: {:?}",
            self.gauges
        );
        assert!(
            refused(self.charge(cost, now + longest - 1, true)),
            "seed {seed}: {now} + {longest} is too late"
        );
        self.compared.retries += 1;
    }

    fn change_numbers(&mut self) {
        for gauge in &mut self.gauges {
            let (algorithm, window) = (gauge.numbers.algorithm, gauge.numbers.window);
            if let Some((numbers, limit)) = other_numbers(&mut self.random, algorithm, window) {
                (gauge.numbers, gauge.limit) = (numbers, limit);
            }
        }
    }

    /// Costs around the edges: nothing, one, what is left, what fits, and one more than either.
    fn any_cost(&mut self) -> u32 {
        let at = usize::try_from(self.random.next() % self.gauges.len() as u64).unwrap();
        let capacity = i128::from(self.gauges[at].limit.capacity());
        let left = model::evaluate(&self.gauges[at].numbers, self.gauges[at].state.as_ref(), 0, self.now);
        let left = left.answer.remaining;
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
        let at = usize::try_from(self.random.next() % self.gauges.len() as u64).unwrap();
        let numbers = self.gauges[at].numbers.clone();
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

impl Gauge {
    fn any(random: &mut Random) -> Self {
        let (numbers, limit) = any_limit(random);
        let effect = if random.chance(1, 6) { Effect::Shadow } else { Effect::Enforce };
        let (subject, counter) = (Subject(random.wide()), CounterId(random.wide()));
        Gauge { numbers, limit, subject, counter, effect, state: None }
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
        }
    }
}

/// The verdict on a charge that is not taken: of a limit that would have admitted it, what a look finds.
pub(crate) fn uncharged(verdict: Verdict, numbers: &Numbers, state: Option<&State>, now: i128) -> Verdict {
    if !verdict.admits() {
        return verdict;
    }
    let stands = verdict_of(&model::evaluate(numbers, state, 0, now).answer, now);
    Verdict { outcome: verdict.outcome, ..stands }
}

/// The model's answer in the library's words. No instant lies beyond the last that a counter can carry.
pub(crate) fn verdict_of(answer: &Answer, now: i128) -> Verdict {
    let wait = |micros: i128| span(micros.min(LAST - now));
    let outcome = match answer.told {
        Told::Admit { delay } => Outcome::Admit { delay: wait(delay) },
        Told::Refuse { retry_after } => Outcome::Refuse { retry_after: wait(retry_after) },
        Told::Never => Outcome::Never,
    };
    let remaining = u32::try_from(answer.remaining).unwrap_or(u32::MAX);
    Verdict { outcome, remaining, reset_after: wait(answer.reset_after) }
}

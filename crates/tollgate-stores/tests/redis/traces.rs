//! The script decides as the memory store does: the same random charges go through both, at the server's instants, and
//! every verdict is compared to the microsecond.
//!
//! Time passes on the real clock. Windows of a few milliseconds fill and empty many times while a trace runs; windows of
//! days and months, and limits counted in milliseconds or seconds, are mixed in.

use std::sync::Arc;
use std::time::Instant;

use tollgate::algorithms::Outcome;
use tollgate::calendar::{Calendar, CalendarUnit};
use tollgate::counters::memory::MemoryCounters;
use tollgate::counters::{Charges, Effect, Verdicts};
use tollgate::identity::Subject;
use tollgate::limit::{Algorithm, Limit, Window};
use tollgate::penalties::PenaltyPolicy;
use tollgate::{Span, Timestamp};
use tollgate_stores::redis::RedisCounters;
use tollgate_testkit::RedisServer;

use crate::harness::limits::{Dice, Gauge, Watched, unique};
use crate::harness::{exact, now, open, runtime, single};

const OPERATIONS: usize = 100_000;
/// Concurrent traces, so that the server is never idle.
const AT_ONCE: usize = 64;
/// Charges of one trace; then new clients follow.
const TRACE_LENGTH: usize = 125;

#[test]
fn script_agrees_with_memory_store_on_random_traces() {
    let server = RedisServer::start();
    let started = Instant::now();
    let seen = runtime().block_on(async {
        let store = open(&exact(single(server.address()))).await;
        let memory = Arc::new(MemoryCounters::default());
        let tasks: Vec<_> = (0..AT_ONCE)
            .map(|task| {
                let (store, memory) = (store.clone(), Arc::clone(&memory));
                tokio::spawn(run_traces(store, memory, task, OPERATIONS.div_ceil(AT_ONCE)))
            })
            .collect();
        let mut seen = Seen::default();
        for task in tasks {
            seen.add(&task.await.unwrap());
        }
        seen
    });
    eprintln!("{seen:?} in {:?}, 0 differences", started.elapsed());
    // Otherwise the comparison would prove little.
    assert!(seen.operations >= OPERATIONS);
    for count in [seen.admitted, seen.refused, seen.in_cooldown, seen.changed] {
        assert!(count >= 20, "too few of some kind: {seen:?}");
    }
}

/// What the traces contained.
#[derive(Clone, Debug, Default)]
struct Seen {
    operations: usize,
    admitted: usize,
    refused: usize,
    in_cooldown: usize,
    /// Charges after a limit was changed.
    changed: usize,
}

impl Seen {
    fn add(&mut self, other: &Seen) {
        self.operations += other.operations;
        self.admitted += other.admitted;
        self.refused += other.refused;
        self.in_cooldown += other.in_cooldown;
        self.changed += other.changed;
    }
}

async fn run_traces(store: RedisCounters, memory: Arc<MemoryCounters>, task: usize, count: usize) -> Seen {
    let mut seen = Seen::default();
    let mut dice = Dice::new(task as u64);
    while seen.operations < count {
        let trace = Trace::new(&memory, &mut dice);
        trace.run(&store, &mut dice, &mut seen).await;
    }
    seen
}

/// Some limits of some clients, in both stores.
struct Trace {
    memory: Arc<MemoryCounters>,
    gauges: Vec<Gauge>,
    watched: Option<Watched>,
    /// Limits before the last change, until each was charged under the new one.
    before: Vec<Option<Limit>>,
}

impl Trace {
    fn new(memory: &Arc<MemoryCounters>, dice: &mut Dice) -> Self {
        // Records live as long as violations count: limits of days would outlast short policies.
        let watched = dice.one_in(2).then(|| Watched::new(random_policy(dice)));
        let subjects = [(); 3].map(|()| Subject(unique()));
        let gauges: Vec<Gauge> = (0..dice.between(1, 6))
            .map(|_| Gauge::of(*dice.pick(&subjects), random_limit(dice, watched.is_some())))
            .collect();
        let before = vec![None; gauges.len()];
        Trace { memory: Arc::clone(memory), gauges, watched, before }
    }

    async fn run(mut self, store: &RedisCounters, dice: &mut Dice, seen: &mut Seen) {
        let change_at = dice.between(1, 40);
        let mut changed = false;
        for step in 0..TRACE_LENGTH {
            if step > 0 && dice.one_in(change_at) {
                changed |= self.change_one(dice);
            }
            let chosen = self.choose(dice);
            let charges = self.charges(&chosen, dice);
            let (result, at) = store.charge_all_timed(&charges, now()).await.unwrap();
            let at = at.unwrap();
            if self.may_be_forgotten(&chosen, at) {
                return;
            }
            let expected = Verdicts { shared: true, ..self.memory.charge_all_now(&charges, at) };
            let result = self.without_waits_of_lowered_limits(&chosen, result);
            let expected = self.without_waits_of_lowered_limits(&chosen, expected);
            assert_eq!(result, expected, "step {step} at {at:?}: {charges:#?}");
            seen.operations += 1;
            seen.changed += usize::from(changed);
            if result.in_cooldown {
                seen.in_cooldown += 1;
            } else if result.admitted(&charges) {
                seen.admitted += 1;
            } else {
                seen.refused += 1;
            }
            // A dry run, a refusal or a peek writes nothing: until then the state follows the old limit.
            let written = result.admitted(&charges) && !charges.dry_run;
            let judged = charges.charges.iter().zip(&result.verdicts);
            let taken: Vec<bool> =
                judged.map(|(charge, verdict)| written && charge.cost > 0 && verdict.admits()).collect();
            drop(charges);
            for (position, taken) in chosen.into_iter().zip(taken) {
                self.before[position].take_if(|_| taken);
            }
        }
    }

    /// One to four limits, each once.
    fn choose(&self, dice: &mut Dice) -> Vec<usize> {
        let mut rest: Vec<usize> = (0..self.gauges.len()).collect();
        let count = (dice.between(1, 4) as usize).min(rest.len());
        (0..count)
            .map(|_| rest.swap_remove(dice.below(u32::try_from(rest.len()).unwrap()) as usize))
            .collect()
    }

    fn charges(&self, chosen: &[usize], dice: &mut Dice) -> Charges<'_> {
        let charges = chosen.iter().map(|position| {
            let effect = if dice.one_in(6) { Effect::Shadow } else { Effect::Enforce };
            tollgate::counters::Charge { effect, ..self.gauges[*position].charge(dice.below(6)) }
        });
        let charges = charges.collect();
        let client_charges = if dice.one_in(2) { u32::MAX } else { dice.below(16) };
        let penalty = self.watched.as_ref().map(|watched| watched.penalty(client_charges));
        Charges { charges, penalty, dry_run: dice.one_in(10), tenant: None }
    }

    /// Changes one limit. Never its window or algorithm: those make another counter.
    fn change_one(&mut self, dice: &mut Dice) -> bool {
        let position = dice.below(u32::try_from(self.gauges.len()).unwrap()) as usize;
        let old = &self.gauges[position].limit;
        let Some(limit) = with_random_numbers(old.algorithm(), old.window().clone(), dice) else {
            return false;
        };
        let old = std::mem::replace(&mut self.gauges[position].limit, limit);
        self.before[position].get_or_insert(old);
        true
    }

    /// After a limit was lowered, a bucket refuses until it is restored under the limit before at most, which the two stores
    /// know to a different precision.
    fn without_waits_of_lowered_limits(&self, chosen: &[usize], mut verdicts: Verdicts) -> Verdicts {
        for (position, verdict) in chosen.iter().zip(&mut verdicts.verdicts) {
            let is_lowered =
                self.before[*position].as_ref().is_some_and(|limit| limit.algorithm().has_burst());
            if is_lowered && matches!(verdict.outcome, Outcome::Refuse { .. }) {
                verdict.outcome = Outcome::Refuse { retry_after: Span::ZERO };
                verdict.reset_after = Span::ZERO;
            }
        }
        verdicts
    }

    /// Whether a bucket was full under the limit it was written with. Redis has expired it by then, or does within two
    /// milliseconds; under a lower limit it would still owe something. Which of the two happens cannot be known here, and
    /// both are correct.
    fn may_be_forgotten(&self, chosen: &[usize], at: Timestamp) -> bool {
        chosen.iter().any(|position| {
            let Some(limit) = &self.before[*position] else { return false };
            let gauge = Gauge { limit: limit.clone(), ..self.gauges[*position].clone() };
            let peek = Charges { dry_run: true, ..crate::harness::limits::charges([&gauge], 0) };
            limit.algorithm().has_burst()
                && self.memory.charge_all_now(&peek, at).verdicts[0].reset_after.is_zero()
        })
    }
}

fn random_policy(dice: &mut Dice) -> PenaltyPolicy {
    PenaltyPolicy {
        detection_window: Span::from_millis(u64::from(dice.between(200, 600))),
        violation_threshold: dice.between(1, 3),
        base_cooldown: Span::from_micros(u64::from(dice.between(500, 60_000))),
        multipliers: (0..dice.below(5)).map(|level| 1 << level).collect(),
        cooldown_max: Span::from_millis(u64::from(dice.between(5, 150))),
    }
}

fn random_limit(dice: &mut Dice, short: bool) -> Limit {
    loop {
        let algorithm = *dice.pick(&Algorithm::ALL);
        if let Some(limit) = with_random_numbers(algorithm, random_window(algorithm, dice, short), dice) {
            return limit;
        }
    }
}

fn random_window(algorithm: Algorithm, dice: &mut Dice, short: bool) -> Window {
    if !short && algorithm == Algorithm::FixedWindow && dice.one_in(3) {
        let unit = *dice.pick(&[CalendarUnit::Day, CalendarUnit::Month(1), CalendarUnit::Month(31)]);
        let zone = *dice.pick(&["UTC", "Europe/Berlin", "Pacific/Apia", "America/New_York"]);
        return Window::Calendar(Arc::new(Calendar::new(unit, zone).unwrap()));
    }
    let micros = match dice.below(if short { 3 } else { 5 }) {
        0 => dice.between(1_000, 10_000),
        1 => dice.between(10_000, 200_000),
        2 => dice.between(1, 200) * 1_000,
        3 => dice.between(1, 4_000) * 1_000_000,
        _ => dice.between(1_000, 2_000_000_000),
    };
    Window::Length(Span::from_micros(u64::from(micros)))
}

/// None if these numbers make no valid limit.
fn with_random_numbers(algorithm: Algorithm, window: Window, dice: &mut Dice) -> Option<Limit> {
    let requests = match dice.below(20) {
        0 => 0,
        1 => dice.between(100, 10_000),
        2 => dice.between(1_000_000, u32::MAX - 1),
        _ => dice.between(1, 15),
    };
    let bucket = algorithm.has_burst();
    let burst = (bucket && dice.one_in(3)).then(|| dice.between(1, 25));
    let delay = (bucket && dice.one_in(3)).then(|| Span::from_micros(u64::from(dice.between(0, 100_000))));
    Limit::with_options(algorithm, requests, window, burst, delay).ok()
}

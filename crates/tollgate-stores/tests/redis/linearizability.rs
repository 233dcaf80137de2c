//! Every history of a counter is linearizable.
//!
//! Clients record when they asked, when the reply came, the verdict, and the server's instant. The instants give the
//! order; calls of one microsecond may be in any order. The history must match the pure functions in that order, and no
//! call may come before one that had ended when it began.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tollgate::algorithms::{Outcome, Verdict};
use tollgate::counters::conformance::Reference;
use tollgate::limit::{Algorithm, Limit};
use tollgate::{Span, Timestamp};
use tollgate_stores::redis::RedisCounters;
use tollgate_testkit::RedisServer;

use crate::harness::limits::{Dice, Gauge, charges, limit};
use crate::harness::{exact, now, open, runtime, single};

const CLIENTS: u64 = 48;
const KEYS: usize = 8;
const CALLS_PER_CLIENT: usize = 250;

/// One call as the client saw it.
#[derive(Copy, Clone, Debug)]
struct Call {
    key: usize,
    cost: u32,
    asked: Instant,
    answered: Instant,
    /// The server's instant of the decision.
    decided: Timestamp,
    verdict: Verdict,
}

/// Why a history is not linearizable.
#[derive(Debug, PartialEq, Eq)]
enum Broken {
    /// No order of the calls of one instant gives these verdicts.
    Answers(Timestamp),
    /// Decided before a call that had ended when it began.
    RealTime(Timestamp),
}

/// Checks the history of one counter.
fn check(limit: &Limit, history: &[Call]) -> Result<(), Broken> {
    let mut history = history.to_vec();
    history.sort_by_key(|call| (call.decided, call.asked));
    check_real_time(&history)?;
    let mut model = Reference::default();
    for same in history.chunk_by(|one, other| one.decided == other.decided) {
        model = in_some_order(&model, limit, same).ok_or(Broken::Answers(same[0].decided))?;
    }
    Ok(())
}

/// In the order of decisions, no reply may precede an earlier request. There is one server and one clock, so no
/// tolerance is needed.
fn check_real_time(history: &[Call]) -> Result<(), Broken> {
    let mut first_answer_later: Option<Instant> = None;
    for same in history.chunk_by(|one, other| one.decided == other.decided).rev() {
        let over = |call: &Call| first_answer_later.is_some_and(|answered| answered < call.asked);
        if same.iter().any(over) {
            return Err(Broken::RealTime(same[0].decided));
        }
        first_answer_later = same.iter().map(|call| call.answered).chain(first_answer_later).min();
    }
    Ok(())
}

/// The model after these calls in an order that gives their verdicts, if there is one.
fn in_some_order(model: &Reference, limit: &Limit, calls: &[Call]) -> Option<Reference> {
    if calls.is_empty() {
        return Some(model.clone());
    }
    (0..calls.len()).find_map(|first| {
        let mut after = model.clone();
        let mut rest = calls.to_vec();
        let call = rest.remove(first);
        let result = after.charge(limit, call.cost, call.decided);
        (result == call.verdict).then(|| in_some_order(&after, limit, &rest))?
    })
}

/// Eight counters of all algorithms with short windows.
fn gauges() -> Vec<Gauge> {
    let windows = [20, 50, 80, 110, 35, 65, 150, 500].map(Span::from_millis);
    (0..KEYS)
        .map(|key| Gauge::new(limit(Algorithm::ALL[key % Algorithm::ALL.len()], 40, windows[key])))
        .collect()
}

async fn record(store: RedisCounters, gauges: Arc<Vec<Gauge>>, client: u64) -> Vec<Call> {
    let mut dice = Dice::new(client);
    let mut calls = Vec::new();
    for _ in 0..CALLS_PER_CLIENT {
        let key = dice.below(8) as usize;
        let cost = dice.below(4);
        let asked = Instant::now();
        let result = store.charge_all_timed(&charges([&gauges[key]], cost), now()).await.unwrap();
        let answered = Instant::now();
        calls.push(Call {
            key,
            cost,
            asked,
            answered,
            decided: result.1.unwrap(),
            verdict: result.0.verdicts[0],
        });
    }
    calls
}

fn histories(gauges: &Arc<Vec<Gauge>>) -> Vec<Vec<Call>> {
    let server = RedisServer::start();
    let calls = runtime().block_on(async {
        let settings = exact(single(server.address()));
        let nodes = [open(&settings).await, open(&settings).await, open(&settings).await];
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let node = nodes[usize::try_from(client).unwrap() % nodes.len()].clone();
                tokio::spawn(record(node, Arc::clone(gauges), client))
            })
            .collect();
        let mut calls = Vec::new();
        for client in clients {
            calls.extend(client.await.unwrap());
        }
        calls
    });
    (0..KEYS).map(|key| calls.iter().filter(|call| call.key == key).copied().collect()).collect()
}

#[test]
fn recorded_histories_are_linearizable() {
    let gauges = Arc::new(gauges());
    let histories = histories(&gauges);
    let (mut calls, mut admitted, mut refused) = (0, 0, 0);
    for (gauge, history) in gauges.iter().zip(&histories) {
        assert_eq!(check(&gauge.limit, history), Ok(()), "{}", gauge.limit);
        calls += history.len();
        admitted += history.iter().filter(|call| call.cost > 0 && call.verdict.admits()).count();
        refused += history.iter().filter(|call| !call.verdict.admits()).count();
    }
    eprintln!(
        "{calls} calls by {CLIENTS} clients to {KEYS} counters: {admitted} admitted, {refused} refused"
    );
    assert!(admitted > calls / 50 && refused > calls / 50, "a history of one kind proves little");
    for (gauge, history) in gauges.iter().zip(&histories) {
        the_checker_finds_a_lie(&gauge.limit, history);
    }
}

/// The control: one verdict of a real history is changed, and the checker must notice.
fn the_checker_finds_a_lie(limit: &Limit, history: &[Call]) {
    for position in (0..history.len()).step_by(history.len() / 40 + 1) {
        let mut forged = history.to_vec();
        let verdict = &mut forged[position].verdict;
        verdict.outcome = match verdict.outcome {
            Outcome::Refuse { .. } => Outcome::Admit { delay: Span::ZERO },
            _ => Outcome::Refuse { retry_after: Span::from_micros(1) },
        };
        assert!(
            check(limit, &forged).is_err(),
            "{limit}: {:?} instead of {:?}",
            forged[position],
            history[position]
        );
    }
}

/// The history of a store that reads and writes in two steps.
fn history_of_check_then_act(limit: &Limit) -> Vec<Call> {
    let begun = Instant::now();
    let at = |step: u64| Timestamp::from_secs(1_800_000_000) + Span::from_micros(step);
    let mut model = Reference::default();
    let mut history = Vec::new();
    for step in 0..2 * u64::from(limit.requests()) {
        let stale = &mut model.clone();
        // Two callers read the same state; the second write hides the first.
        for caller in 0..2 {
            let decided = at(2 * step + caller);
            let mut read = stale.clone();
            let verdict = read.charge(limit, 1, decided);
            let answered = begun + Duration::from_secs(1);
            history.push(Call { key: 0, cost: 1, asked: begun, answered, decided, verdict });
            model = read;
        }
    }
    history
}

#[test]
fn checker_rejects_read_then_write() {
    for algorithm in Algorithm::ALL {
        let limit = limit(algorithm, 5, Span::from_secs(86_400));
        let history = history_of_check_then_act(&limit);
        assert!(matches!(check(&limit, &history), Err(Broken::Answers(_))), "{algorithm}");
    }
}

#[test]
fn checker_rejects_stale_replies() {
    let limit = limit(Algorithm::TokenBucket, 5, Span::from_secs(86_400));
    let (begun, second) = (Instant::now(), Duration::from_secs(1));
    let now = Timestamp::from_secs(1_800_000_000);
    let verdict = Reference::default().charge(&limit, 0, now);
    let call = |turn: u32, decided| {
        let asked = begun + second * turn;
        Call { key: 0, cost: 0, asked, answered: asked + second / 2, decided, verdict }
    };
    let earlier = now - Span::from_micros(1);
    assert_eq!(check(&limit, &[call(0, earlier), call(1, now)]), Ok(()));
    assert_eq!(check(&limit, &[call(0, now), call(1, earlier)]), Err(Broken::RealTime(earlier)));
}

//! The locking of the memory store, in every interleaving of threads.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p tollgate --release --test loom`. The store has two shards here, so that
//! pairs of limits in both shards are locked in either order. Loom detects deadlocks.
#![cfg(loom)]
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test may panic and print")]

use std::sync::atomic::{AtomicUsize, Ordering};

use loom::sync::Arc;
use loom::thread;
use tollgate::algorithms::Verdict;
use tollgate::counters::conformance::block_on;
use tollgate::counters::memory::MemoryCounters;
use tollgate::counters::{Charge, Charges, CounterAdmin, CounterId, Effect, PenaltyCharge};
use tollgate::identity::Subject;
use tollgate::penalties::PenaltyPolicy;
use tollgate::{Algorithm, Client, Id, Limit, Seed, Span, Timestamp, Window};

const NOW: Timestamp = Timestamp::from_secs(1_767_225_600);

/// A counter in the first shard, one in the second, and another in the first.
const ONE: Subject = Subject(1 << 64);
const TWO: Subject = Subject(2 << 64 | 1);
const THREE: Subject = Subject(3 << 64);

fn limit(algorithm: Algorithm, requests: u32) -> Limit {
    Limit::new(algorithm, requests, Window::Length(Span::from_secs(86_400))).unwrap()
}

fn charges<'a>(limit: &'a Limit, subjects: &[Subject], cost: u32) -> Charges<'a> {
    let one = |subject: &Subject| Charge {
        subject: *subject,
        counter: CounterId(0),
        rule: "loom",
        limit,
        cost,
        effect: Effect::Enforce,
        leases: true,
        refundable: false,
    };
    Charges { charges: subjects.iter().map(one).collect(), ..Charges::default() }
}

fn admits(store: &MemoryCounters, limit: &Limit, subjects: &[Subject]) -> bool {
    let charges = charges(limit, subjects, 1);
    store.charge_all_now(&charges, NOW).admitted(&charges)
}

fn remaining(store: &MemoryCounters, limit: &Limit, subject: Subject) -> u32 {
    let verdicts = store.charge_all_now(&charges(limit, &[subject], 0), NOW).verdicts;
    let [Verdict { remaining, .. }] = verdicts.as_slice() else { panic!("one charge, one verdict") };
    *remaining
}

/// Runs the model in all interleavings and prints their number.
fn explore(name: &str, model: impl Fn() + Sync + Send + 'static) {
    let executions = std::sync::Arc::new(AtomicUsize::new(0));
    let counted = std::sync::Arc::clone(&executions);
    loom::model(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        model();
    });
    println!("{name}: {} executions", executions.load(Ordering::Relaxed));
}

/// Two threads, each charging its subjects once in its order. Returns which were admitted.
fn race(store: &Arc<MemoryCounters>, limit: &Limit, orders: [&'static [Subject]; 2]) -> [bool; 2] {
    let [mine, theirs] = orders;
    let other = thread::spawn({
        let (store, limit) = (Arc::clone(store), limit.clone());
        move || admits(&store, &limit, theirs)
    });
    let first = admits(store, limit, mine);
    [first, other.join().unwrap()]
}

#[test]
fn pairs_in_either_order_neither_deadlock_nor_exceed() {
    for algorithm in [Algorithm::TokenBucket, Algorithm::SlidingWindowLog] {
        explore(&format!("one unit, two orders, {algorithm}"), move || {
            let (store, limit) = (Arc::new(MemoryCounters::default()), limit(algorithm, 1));
            let admitted = race(&store, &limit, [&[ONE, TWO], &[TWO, ONE]]);
            assert!(admitted[0] != admitted[1], "exactly one is admitted: {admitted:?}");
            assert_eq!([ONE, TWO].map(|subject| remaining(&store, &limit, subject)), [0, 0]);
        });
    }
}

#[test]
fn refusal_by_a_shared_limit_charges_nothing_else() {
    explore("overlapping pairs", || {
        let (store, limit) = (Arc::new(MemoryCounters::default()), limit(Algorithm::FixedWindow, 1));
        let [first, second] = race(&store, &limit, [&[ONE, TWO], &[TWO, THREE]]);
        assert!(first != second);
        let left = [ONE, TWO, THREE].map(|subject| remaining(&store, &limit, subject));
        assert_eq!(left, if first { [0, 0, 1] } else { [1, 0, 0] });
    });
}

#[test]
fn three_threads_admit_exactly_the_limit() {
    explore("three threads, two units", || {
        let (store, limit) = (Arc::new(MemoryCounters::default()), limit(Algorithm::Gcra, 2));
        let orders: [&'static [Subject]; 2] = [&[TWO, ONE], &[ONE, TWO]];
        let others = orders.map(|order| {
            let (store, limit) = (Arc::clone(&store), limit.clone());
            thread::spawn(move || admits(&store, &limit, order))
        });
        let mine = usize::from(admits(&store, &limit, &[ONE]));
        let theirs: usize = others.into_iter().map(|other| usize::from(other.join().unwrap())).sum();
        assert!(mine + theirs == 2 && remaining(&store, &limit, ONE) == 0);
        assert_eq!(remaining(&store, &limit, TWO) as usize, 2 - theirs, "charged as often as admitted");
    });
}

#[test]
fn five_requests_of_three_threads_admit_exactly_the_limit() {
    explore("three threads, five requests, three units", || {
        let (store, limit) = (Arc::new(MemoryCounters::default()), limit(Algorithm::TokenBucket, 3));
        let orders: [(usize, &'static [Subject]); 3] =
            [(2, &[TWO, ONE]), (2, &[ONE, TWO]), (1, &[THREE, TWO])];
        let threads = orders.map(|(times, order)| {
            let (store, limit) = (Arc::clone(&store), limit.clone());
            thread::spawn(move || (0..times).filter(|_| admits(&store, &limit, order)).count())
        });
        let [first, second, third] = threads.map(|thread| u32::try_from(thread.join().unwrap()).unwrap());
        assert_eq!(first + second + third, 3);
        let left = [ONE, TWO, THREE].map(|subject| remaining(&store, &limit, subject));
        assert_eq!(left, [3 - first - second, 0, 3 - third]);
    });
}

#[test]
fn reset_is_atomic_with_respect_to_charges() {
    explore("reset and charge", || {
        let (store, limit) = (Arc::new(MemoryCounters::default()), limit(Algorithm::TokenBucket, 1));
        let other = thread::spawn({
            let (store, limit) = (Arc::clone(&store), limit.clone());
            move || block_on(store.reset(&charges(&limit, &[TWO, ONE], 1))).unwrap()
        });
        assert!(admits(&store, &limit, &[ONE, TWO]));
        let forgotten = other.join().unwrap();
        let left = [ONE, TWO].map(|subject| remaining(&store, &limit, subject));
        match forgotten {
            0 => assert_eq!(left, [0, 0], "reset, then charged"),
            2 => assert_eq!(left, [1, 1], "charged, then reset"),
            other => panic!("a reset in the middle: {other} counters, {left:?} left"),
        }
    });
}

#[test]
fn parallel_refusals_are_one_violation() {
    explore("penalties", || {
        let one = Arc::new((MemoryCounters::default(), limit(Algorithm::FixedWindow, 1)));
        let ask = |shared: &(MemoryCounters, Limit)| {
            let policy = PenaltyPolicy { violation_threshold: 2, ..PenaltyPolicy::default() };
            let client = Client::User(Id::parse("alice").unwrap());
            let penalty = Some(PenaltyCharge {
                subject: TWO,
                client: client.into(),
                policy: &policy,
                client_charges: u32::MAX,
            });
            let both = Charges { penalty, ..charges(&shared.1, &[ONE, THREE], 1) };
            shared.0.charge_all_now(&both, NOW).admitted(&both)
        };
        let other = thread::spawn({
            let shared = Arc::clone(&one);
            move || (0..2).filter(|_| ask(&shared)).count()
        });
        let admitted = usize::from(ask(&one)) + other.join().unwrap();
        assert_eq!(admitted, 1);
        let listed = block_on(one.0.penalized_clients(9, NOW)).unwrap();
        assert_eq!(listed.iter().map(|listed| listed.violations).collect::<Vec<_>>(), [1]);
    });
}

#[test]
fn concurrent_snapshot_is_readable() {
    explore("snapshot and charge", || {
        let (store, limit) = (Arc::new(MemoryCounters::default()), limit(Algorithm::SlidingWindowCounter, 1));
        let other = thread::spawn({
            let store = Arc::clone(&store);
            move || {
                let mut bytes = Vec::new();
                store.save(Seed([7; 16]), NOW, &mut bytes).unwrap();
                bytes
            }
        });
        assert!(admits(&store, &limit, &[ONE, TWO]));
        let restored = MemoryCounters::default();
        restored.restore(other.join().unwrap().as_slice()).unwrap();
        assert!(restored.len() <= 2);
    });
}

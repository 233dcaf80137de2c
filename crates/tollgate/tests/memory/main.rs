//! The memory store: bounded against fake client ids, exact under concurrency, restored after a restart.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod eviction;
mod tenants;

use std::num::NonZeroUsize;
use std::sync::Barrier;
use std::thread;

use tollgate::algorithms::{Outcome, Verdict};
use tollgate::counters::memory::{MemoryBounds, MemoryCounters, SnapshotError};
use tollgate::counters::{Charge, Charges, CounterAdmin, CounterId, Effect, PenaltyCharge, conformance};
use tollgate::identity::Subject;
use tollgate::penalties::PenaltyPolicy;
use tollgate::record::NoRecords;
use tollgate::{
    Algorithm, Client, Endpoint, Id, Limit, Limiter, Request, RuleSet, Seed, Span, Timestamp, Window,
};

const SHARDS: usize = 256;
const DAY: Span = Span::from_secs(86_400);
const NOW: Timestamp = Timestamp::from_secs(1_767_225_600);

/// The subject with this number, distributed like a hash.
fn subject(number: u64) -> Subject {
    let mix = |mut z: u64| {
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let low = mix(number.wrapping_add(0x9e37_79b9_7f4a_7c15));
    Subject(u128::from(mix(!low)) << 64 | u128::from(low))
}

fn limit(algorithm: Algorithm, requests: u32, window: Span) -> Limit {
    Limit::new(algorithm, requests, Window::Length(window)).unwrap()
}

/// Each algorithm has its own counter, as in a rule set.
fn counter(limit: &Limit) -> CounterId {
    let number = Algorithm::ALL.iter().position(|algorithm| *algorithm == limit.algorithm()).unwrap();
    CounterId(subject(u64::MAX - number as u64).0)
}

fn one(limit: &Limit, subject: Subject, cost: u32) -> Charge<'_> {
    Charge {
        subject,
        counter: counter(limit),
        rule: "memory",
        limit,
        cost,
        effect: Effect::Enforce,
        leases: true,
        refundable: false,
    }
}

fn charges<'a>(all: impl IntoIterator<Item = Charge<'a>>) -> Charges<'a> {
    Charges { charges: all.into_iter().collect(), ..Charges::default() }
}

fn charge(store: &MemoryCounters, limit: &Limit, subject: Subject, cost: u32, now: Timestamp) -> Verdict {
    store.charge_all_now(&charges([one(limit, subject, cost)]), now).verdicts[0]
}

fn bounded(keys_max: usize) -> MemoryCounters {
    let keys_max = NonZeroUsize::new(keys_max).unwrap();
    MemoryCounters::new(MemoryBounds { keys_max, log_bytes_max: 4 << 20, penalties_max: 1_000 })
}

#[test]
fn evicting_restored_counters_changes_no_verdict() {
    for algorithm in Algorithm::ALL {
        let (swept, kept) = (MemoryCounters::default(), MemoryCounters::default());
        let limit = limit(algorithm, 7, Span::from_millis(100));
        let mut now = NOW;
        for step in 0..20_000_u64 {
            // Steps of up to two and a half windows, most of them short.
            now = now + Span::from_micros((subject(step).0 % 250_000) as u64 >> (step % 9));
            let (who, cost) = (subject(step % 5), u32::try_from(step % 4).unwrap());
            swept.sweep(now);
            let verdicts = [&swept, &kept].map(|store| charge(store, &limit, who, cost, now));
            assert_eq!(verdicts[0], verdicts[1], "{algorithm} at step {step}");
        }
    }
}

#[test]
fn parallel_requests_admit_exactly_the_limit() {
    const CALLERS: usize = 4;
    const EACH: usize = 500;
    let barrier = Barrier::new(CALLERS);
    for round in 0..50 {
        for algorithm in Algorithm::ALL {
            let store = MemoryCounters::default();
            let hundred = limit(algorithm, 100, DAY);
            let caller = || {
                barrier.wait();
                (0..EACH).filter(|_| charge(&store, &hundred, subject(round), 1, NOW).admits()).count()
            };
            let admitted: usize = thread::scope(|scope| {
                let callers = [(); CALLERS].map(|()| scope.spawn(caller));
                callers.into_iter().map(|caller| caller.join().unwrap()).sum()
            });
            assert_eq!(admitted, 100, "{algorithm}, round {round}");
        }
    }
}

#[test]
fn parallel_requests_charge_all_limits_or_none() {
    let barrier = Barrier::new(4);
    for round in 0..50 {
        let store = MemoryCounters::default();
        let limits: Vec<Limit> = Algorithm::ALL
            .into_iter()
            .zip([90, 120, 80, 100, 60, 70])
            .map(|(a, n)| limit(a, n, DAY))
            .collect();
        let caller = |first: usize| {
            barrier.wait();
            // Each caller charges the same three limits in another order, and one limit of its own.
            let order = [0, 2, 4].map(|n| &limits[(n + 2 * first) % 6]);
            let all = charges(order.iter().map(|limit| one(limit, subject(round), 1)));
            (0..50).filter(|_| store.charge_all_now(&all, NOW).admitted(&all)).count()
        };
        let admitted: usize = thread::scope(|scope| {
            let callers = [0, 1, 2, 1].map(|first| scope.spawn(move || caller(first)));
            callers.into_iter().map(|caller| caller.join().unwrap()).sum()
        });
        assert_eq!(admitted, 60, "the tightest of the three, round {round}");
        for (limit, left) in [(&limits[0], 30), (&limits[2], 20), (&limits[4], 0)] {
            assert_eq!(charge(&store, limit, subject(round), 0, NOW).remaining, left, "round {round}");
        }
    }
}

/// A store with counters, logs and penalty records.
fn used_store() -> (MemoryCounters, Vec<Limit>) {
    let store = MemoryCounters::default();
    let limits: Vec<Limit> =
        Algorithm::ALL.into_iter().map(|algorithm| limit(algorithm, 9, Span::from_secs(3_600))).collect();
    for (number, cost) in (0..40).zip((1..=9).cycle()) {
        for (limit, step) in limits.iter().zip(0..) {
            charge(&store, limit, subject(number), cost, NOW + Span::from_secs(step * 60));
            charge(&store, limit, subject(number), 1, NOW + Span::from_secs(step * 90));
        }
    }
    for (number, name) in (0..5).zip(["alice", "bob", "carol", "dave", "é"]) {
        refuse_watched(&store, &limits[4], subject(number), name);
    }
    (store, limits)
}

/// Refuses a client until it is in cooldown.
fn refuse_watched(store: &MemoryCounters, limit: &Limit, subject: Subject, name: &str) {
    let policy = PenaltyPolicy { violation_threshold: 1, ..PenaltyPolicy::default() };
    let client = Client::User(Id::parse(name).unwrap());
    let penalty =
        Some(PenaltyCharge { subject, client: client.into(), policy: &policy, client_charges: u32::MAX });
    let all = Charges { penalty, ..charges([one(limit, subject, 9)]) };
    while store.charge_all_now(&all, NOW).cooldown.is_none() {}
}

fn saved(store: &MemoryCounters) -> Vec<u8> {
    let mut bytes = Vec::new();
    store.save(Seed([7; 16]), NOW, &mut bytes).unwrap();
    bytes
}

fn penalized_clients(store: &MemoryCounters) -> Vec<tollgate::counters::PenalizedClient> {
    conformance::block_on(store.penalized_clients(usize::MAX, NOW)).unwrap()
}

#[test]
fn snapshot_restores_counters_logs_and_penalties() {
    let (store, limits) = used_store();
    let restored = MemoryCounters::default();
    assert_eq!(restored.restore(saved(&store).as_slice()).unwrap(), Seed([7; 16]));
    assert_eq!((restored.len(), penalized_clients(&restored)), (store.len(), penalized_clients(&store)));
    assert_eq!(penalized_clients(&store).len(), 5);
    for later in [0, 600, 1_800, 3_600, 7_200].map(|secs| NOW + Span::from_secs(secs)) {
        for (limit, number) in limits.iter().flat_map(|limit| (0..41).map(move |number| (limit, number))) {
            let (before, after) =
                [&store, &restored].map(|store| charge(store, limit, subject(number), 2, later)).into();
            assert_eq!(before, after, "{} of subject {number}", limit.algorithm());
        }
    }
}

#[test]
fn snapshot_omits_restored_counters() {
    let (store, _) = used_store();
    let mut bytes = Vec::new();
    store.save(Seed([7; 16]), NOW + Span::from_secs(86_400), &mut bytes).unwrap();
    let restored = MemoryCounters::default();
    restored.restore(bytes.as_slice()).unwrap();
    assert!(restored.is_empty() && penalized_clients(&restored).is_empty());
}

#[test]
fn snapshot_restores_overflow_counters() {
    let store = bounded(SHARDS);
    let day = limit(Algorithm::FixedWindow, 3, DAY);
    for number in 0..100_000 {
        charge(&store, &day, subject(number), 1, NOW);
    }
    let restored = bounded(SHARDS);
    restored.restore(saved(&store).as_slice()).unwrap();
    let admitted = (0..100_000).filter(|number| charge(&restored, &day, subject(*number), 3, NOW).admits());
    assert_eq!(admitted.count(), 0, "a restart grants no new allowance");
}

#[test]
fn restart_does_not_restore_limits() {
    let rules = || RuleSet::from_toml("default_limit = 5\ndefault_window = \"1h\"").unwrap();
    let user = Some(Id::parse("alice").unwrap());
    let request = Request { user, cost: 5, ..Request::new(Endpoint::parse("/").unwrap()) };
    let before = Limiter::new(rules(), MemoryCounters::default());
    assert!(before.check_now(&request, NOW).admits());
    let mut bytes = Vec::new();
    before.counters().save(before.seed(), NOW, &mut bytes).unwrap();

    let counters = MemoryCounters::default();
    let seed = counters.restore(bytes.as_slice()).unwrap();
    let after = Limiter::with_records(rules(), counters, NoRecords, seed);
    assert!(!after.check_now(&request, NOW).admits());
    let stranger = Limiter::with_records(rules(), MemoryCounters::default(), NoRecords, Seed([1; 16]));
    stranger.counters().restore(bytes.as_slice()).unwrap();
    assert!(stranger.check_now(&request, NOW).admits(), "another seed finds no counter");
}

#[test]
fn truncated_snapshot_is_rejected() {
    let bytes = saved(&used_store().0);
    for length in 0..bytes.len() {
        let cut = MemoryCounters::default().restore(&bytes[..length]);
        assert!(cut.is_err(), "{length} of {} bytes were accepted as a snapshot", bytes.len());
    }
    let longer = [bytes.as_slice(), &[0]].concat();
    assert!(matches!(MemoryCounters::default().restore(longer.as_slice()), Err(SnapshotError::Corrupt)));
}

#[test]
fn snapshot_with_a_flipped_bit_is_rejected() {
    let bytes = saved(&used_store().0);
    let mut turned = bytes.clone();
    // Every bit of the first kilobyte, then one bit of every byte.
    let bits = (0..8 * 1_024).chain((8 * 1_024..8 * bytes.len()).step_by(7));
    for bit in bits {
        turned[bit / 8] ^= 1 << (bit % 8);
        let damaged = MemoryCounters::default().restore(turned.as_slice());
        assert!(damaged.is_err(), "flipped bit {bit} was not detected");
        turned[bit / 8] = bytes[bit / 8];
    }
}

#[test]
fn file_of_another_format_is_rejected() {
    for other in [b"tollgat1aaaaaaaaaaaaaaaaaaaaaaaa".as_slice(), b"SQLite format 3\0", &[0xff; 4_096]] {
        assert!(matches!(MemoryCounters::default().restore(other), Err(SnapshotError::UnknownFormat)));
    }
    assert!(matches!(MemoryCounters::default().restore([].as_slice()), Err(SnapshotError::Io(_))));
}

#[test]
fn peek_with_a_wrong_clock_changes_nothing() {
    for algorithm in Algorithm::ALL {
        let store = MemoryCounters::default();
        let hour = limit(algorithm, 3, Span::from_secs(3_600));
        assert!(charge(&store, &hour, subject(1), 3, NOW).admits());
        let long_ago = NOW - Span::from_secs(10 * 86_400);
        assert!(!charge(&store, &hour, subject(1), 0, long_ago).admits());
        let dry = Charges { dry_run: true, ..charges([one(&hour, subject(1), 1)]) };
        assert!(!store.charge_all_now(&dry, long_ago).verdicts[0].admits());
        assert!(!charge(&store, &hour, subject(1), 1, NOW).admits(), "{algorithm} was restored by a peek");
    }
}

#[test]
fn state_ahead_by_the_tolerance_is_kept() {
    let store = MemoryCounters::default();
    let bucket = limit(Algorithm::TokenBucket, 1, Span::from_secs(3_600));
    assert!(charge(&store, &bucket, subject(1), 1, NOW).admits());
    let verdict_after = |ago: Span| {
        let dry = Charges { dry_run: true, ..charges([one(&bucket, subject(1), 1)]) };
        store.charge_all_now(&dry, NOW - ago).verdicts[0].outcome
    };
    let tolerance = Span::from_secs(2 * 3_600);
    let until_restored = Outcome::Refuse { retry_after: Span::from_secs(3 * 3_600) };
    assert_eq!(verdict_after(tolerance), until_restored, "nothing is restored until the clock catches up");
    let as_if_charged_now = Outcome::Refuse { retry_after: Span::from_secs(3_600) };
    assert_eq!(verdict_after(tolerance + Span::from_micros(1)), as_if_charged_now);
}

#[test]
fn state_from_the_future_delays_one_window_at_most() {
    for algorithm in Algorithm::ALL {
        let store = MemoryCounters::default();
        let hour = limit(algorithm, 3, Span::from_secs(3_600));
        assert!(charge(&store, &hour, subject(1), 3, NOW + Span::from_secs(10 * 86_400)).admits());
        let Outcome::Refuse { retry_after } = charge(&store, &hour, subject(1), 1, NOW).outcome else {
            panic!("{algorithm}: what was used is kept");
        };
        assert!(retry_after <= Span::from_secs(2 * 3_600), "{algorithm}: {retry_after}");
        assert!(charge(&store, &hour, subject(1), 1, NOW + retry_after).admits(), "{algorithm}");
    }
}

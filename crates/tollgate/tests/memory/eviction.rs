//! What happens when the table is full (threat 16).

use tollgate::counters::memory::{MemoryBounds, MemoryCounters};
use tollgate::identity::Subject;
use tollgate::{Algorithm, Span};

use crate::{DAY, NOW, SHARDS, bounded, charge, limit, subject};

#[test]
fn newcomers_of_a_full_table_share_overflow_counters() {
    let store = bounded(SHARDS);
    let day = limit(Algorithm::FixedWindow, 3, DAY);
    let admitted =
        (0..100_000).filter(|number| charge(&store, &day, subject(*number), 1, NOW).admits()).count();
    assert!(store.len() <= 2 * SHARDS, "{} counters", store.len());
    // One ordinary and one overflow counter per shard, not an allowance per fake client id.
    assert_eq!(admitted, SHARDS + 3 * SHARDS);
}

#[test]
fn full_table_never_exceeds_its_bound() {
    for keys_max in [2 * SHARDS, 1_000, 1_023, 1_024, 1_025, 10_000, 100_003] {
        let store = bounded(keys_max);
        let day = limit(Algorithm::FixedWindow, 3, DAY);
        for number in 0..8 * keys_max as u64 {
            charge(&store, &day, subject(number), 1, NOW);
        }
        assert!(store.len() <= keys_max, "{} counters of at most {keys_max}", store.len());
        // Little is kept free, for overflow counters and other tenants.
        assert!(store.len() >= keys_max * 7 / 8, "{} of {keys_max} counters", store.len());
        assert!(store.overflow_charges() > 0);
    }
}

#[test]
fn smallest_table_holds_two_counters_per_shard() {
    let store = bounded(1);
    let day = limit(Algorithm::FixedWindow, 3, DAY);
    for number in 0..10_000 {
        charge(&store, &day, subject(number), 1, NOW);
    }
    assert_eq!(store.len(), 2 * SHARDS, "one ordinary and one overflow counter per shard");
}

#[test]
fn eviction_takes_restored_counters_only() {
    let store = bounded(40_000);
    let (second, day) =
        (limit(Algorithm::FixedWindow, 1, Span::from_secs(1)), limit(Algorithm::TokenBucket, 1, DAY));
    let (expiring, mut active, mut newcomers) = (0..16_000, 20_000..28_000, 30_000..46_000);
    assert!(expiring.into_iter().all(|number| charge(&store, &second, subject(number), 1, NOW).admits()));
    assert!(active.clone().all(|number| charge(&store, &day, subject(number), 1, NOW).admits()));
    assert_eq!((store.len(), store.overflow_charges()), (24_000, 0));

    let later = NOW + Span::from_secs(5);
    assert!(newcomers.all(|number| charge(&store, &day, subject(number), 1, later).admits()));
    assert_eq!(store.overflow_charges(), 0, "each has its own counter");
    assert!(store.len() < 40_000, "restored counters were evicted");
    assert!(active.all(|number| !charge(&store, &day, subject(number), 1, later).admits()));
}

#[test]
fn repaired_counter_can_be_evicted() {
    // Written by a clock a year ahead and repaired by the next charge.
    let store = bounded(SHARDS);
    let second = limit(Algorithm::TokenBucket, 1, Span::from_secs(1));
    let ahead = NOW + Span::from_secs(365 * 86_400);
    let same_shard = |number: u64| Subject(subject(number).0 << 8);
    assert!(charge(&store, &second, same_shard(1), 1, ahead).admits());
    assert!(charge(&store, &second, same_shard(2), 0, ahead).admits(), "nothing can be evicted for a year");
    assert!(!charge(&store, &second, same_shard(1), 1, NOW).admits());
    let overflow_charges = store.overflow_charges();
    assert!(charge(&store, &second, same_shard(3), 1, NOW + Span::from_secs(2)).admits());
    assert_eq!(store.overflow_charges(), overflow_charges, "the repaired counter was evicted");
}

#[test]
fn logs_stay_within_their_byte_bound() {
    let log_bytes_max = 2 << 20;
    let store = MemoryCounters::new(MemoryBounds { log_bytes_max, ..MemoryBounds::default() });
    let wide = limit(Algorithm::SlidingWindowLog, 100, DAY);
    for number in 0..5_000 {
        for step in 0..20 {
            charge(&store, &wide, subject(number), 1, NOW + Span::from_micros(step));
        }
    }
    // Each shard may have one overflow log beyond its part of the bound.
    assert!(store.bytes() <= log_bytes_max + SHARDS * 8_192, "{} bytes", store.bytes());
    assert!(store.overflow_charges() > 0);
}

#[test]
fn minimum_log_bytes_fit_one_log_per_shard() {
    for requests in [1, 7, 100, 10_000] {
        let logged = limit(Algorithm::SlidingWindowLog, requests, DAY);
        let overflow_charges = |log_bytes_max| {
            let store = MemoryCounters::new(MemoryBounds { log_bytes_max, ..MemoryBounds::default() });
            assert!(charge(&store, &logged, subject(1), 1, NOW).admits());
            store.overflow_charges()
        };
        let least = MemoryBounds::log_bytes_min(requests);
        assert_eq!(
            (overflow_charges(least), overflow_charges(least - 2 * SHARDS)),
            (0, 1),
            "{requests} requests"
        );
    }
}

#[test]
fn restored_logs_are_evicted() {
    let store = MemoryCounters::new(MemoryBounds { log_bytes_max: 1 << 20, ..MemoryBounds::default() });
    let second = limit(Algorithm::SlidingWindowLog, 10, Span::from_secs(1));
    let mut now = NOW;
    for round in 0..20 {
        for number in 0..500 {
            assert!(charge(&store, &second, subject(round * 1_000 + number), 10, now).admits());
        }
        now = now + Span::from_secs(2);
    }
    assert_eq!(store.overflow_charges(), 0, "the logs of one second always fit");
}

#[test]
fn sweep_releases_memory() {
    let store = MemoryCounters::default();
    let second = limit(Algorithm::SlidingWindowCounter, 5, Span::from_secs(1));
    for number in 0..100_000 {
        charge(&store, &second, subject(number), 1, NOW);
    }
    let full = store.bytes();
    store.sweep(NOW);
    assert_eq!(store.len(), 100_000, "nothing is restored yet");
    store.sweep(NOW + Span::from_secs(3));
    assert!(store.is_empty() && store.bytes() < full / 10, "{} of {full} bytes kept", store.bytes());
}

#[test]
fn churning_clients_keep_their_own_counters() {
    // Each is restored after a second, and many more clients come than fit at once.
    let store = bounded(SHARDS * 1_000);
    let second = limit(Algorithm::TokenBucket, 1, Span::from_secs(1));
    let spread = |number: u64| NOW + Span::from_micros(number * 8);
    let admitted = (0..20_000_000_u64 / 40)
        .filter(|number| charge(&store, &second, subject(*number), 1, spread(*number)).admits())
        .count();
    assert_eq!((admitted, store.overflow_charges()), (500_000, 0));
    assert!(store.len() <= SHARDS * 1_000);
}

//! Room in a bounded table: who finds some, and what newcomers share when there is none (threat 16).

use tollgate::counters::memory::{MemoryBounds, MemoryCounters};
use tollgate::identity::Subject;
use tollgate::{Algorithm, Span};

use crate::{DAY, NOW, SHARDS, bounded, charge, limit, subject};

#[test]
fn t16_newcomers_of_a_full_table_share_one_counter_per_shard() {
    let store = bounded(SHARDS);
    let day = limit(Algorithm::FixedWindow, 3, DAY);
    let admitted =
        (0..100_000).filter(|number| charge(&store, &day, subject(*number), 1, NOW).admits()).count();
    assert!(store.len() <= 2 * SHARDS, "{} counters", store.len());
    // Each shard has one counter of its own and the shared one: far from an allowance for each invented client.
    assert_eq!(admitted, SHARDS + 3 * SHARDS);
}

#[test]
fn t16_a_full_table_holds_as_many_counters_as_it_may_and_not_one_more() {
    for keys_max in [2 * SHARDS, 1_000, 1_023, 1_024, 1_025, 10_000, 100_003] {
        let store = bounded(keys_max);
        let day = limit(Algorithm::FixedWindow, 3, DAY);
        for number in 0..8 * keys_max as u64 {
            charge(&store, &day, subject(number), 1, NOW);
        }
        assert!(store.len() <= keys_max, "{} counters, and at most {keys_max} may be", store.len());
        // What is kept free is little: for counters that newcomers share, and for other tenants.
        assert!(store.len() >= keys_max * 7 / 8, "{} of {keys_max} counters", store.len());
        assert!(store.overflow_charges() > 0);
    }
}

#[test]
fn t16_a_table_for_fewer_counters_than_it_has_shards_has_room_for_one_in_each() {
    let store = bounded(1);
    let day = limit(Algorithm::FixedWindow, 3, DAY);
    for number in 0..10_000 {
        charge(&store, &day, subject(number), 1, NOW);
    }
    assert_eq!(store.len(), 2 * SHARDS, "one of its own and the one that newcomers share");
}

#[test]
fn t16_restored_counters_make_room_and_used_ones_stay() {
    let store = bounded(40_000);
    let (second, day) =
        (limit(Algorithm::FixedWindow, 1, Span::from_secs(1)), limit(Algorithm::TokenBucket, 1, DAY));
    let (passing, mut staying, mut newcomers) = (0..16_000, 20_000..28_000, 30_000..46_000);
    assert!(passing.into_iter().all(|number| charge(&store, &second, subject(number), 1, NOW).admits()));
    assert!(staying.clone().all(|number| charge(&store, &day, subject(number), 1, NOW).admits()));
    assert_eq!((store.len(), store.overflow_charges()), (24_000, 0));

    let later = NOW + Span::from_secs(5);
    assert!(newcomers.all(|number| charge(&store, &day, subject(number), 1, later).admits()));
    assert_eq!(store.overflow_charges(), 0, "each has a counter of its own");
    assert!(store.len() < 40_000, "those that were as good as new are gone");
    assert!(staying.all(|number| !charge(&store, &day, subject(number), 1, later).admits()));
}

#[test]
fn t16_a_repaired_counter_can_make_room_as_soon_as_it_is_restored() {
    // Written by a clock a year ahead, repaired on the next charge: from then on its time runs as it should.
    let store = bounded(SHARDS);
    let second = limit(Algorithm::TokenBucket, 1, Span::from_secs(1));
    let ahead = NOW + Span::from_secs(365 * 86_400);
    let same_shard = |number: u64| Subject(subject(number).0 << 8);
    assert!(charge(&store, &second, same_shard(1), 1, ahead).admits());
    assert!(
        charge(&store, &second, same_shard(2), 0, ahead).admits(),
        "a look finds no room, for a year to come"
    );
    assert!(!charge(&store, &second, same_shard(1), 1, NOW).admits());
    let overflow_charges = store.overflow_charges();
    assert!(charge(&store, &second, same_shard(3), 1, NOW + Span::from_secs(2)).admits());
    assert_eq!(store.overflow_charges(), overflow_charges, "the repaired one was dropped for the newcomer");
}

#[test]
fn t16_logs_stay_within_the_bytes_set_aside_for_them() {
    let log_bytes_max = 2 << 20;
    let store = MemoryCounters::new(MemoryBounds { log_bytes_max, ..MemoryBounds::default() });
    let wide = limit(Algorithm::SlidingWindowLog, 100, DAY);
    for number in 0..5_000 {
        for step in 0..20 {
            charge(&store, &wide, subject(number), 1, NOW + Span::from_micros(step));
        }
    }
    // One log may be shared per shard beyond the bound, which is divided among them.
    assert!(store.bytes() <= log_bytes_max + SHARDS * 8_192, "{} bytes", store.bytes());
    assert!(store.overflow_charges() > 0);
}

#[test]
fn t16_the_least_bytes_of_logs_are_room_for_one_in_each_shard() {
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
fn t16_logs_that_are_restored_make_room_for_others() {
    let store = MemoryCounters::new(MemoryBounds { log_bytes_max: 1 << 20, ..MemoryBounds::default() });
    let second = limit(Algorithm::SlidingWindowLog, 10, Span::from_secs(1));
    let mut now = NOW;
    for round in 0..20 {
        for number in 0..500 {
            assert!(charge(&store, &second, subject(round * 1_000 + number), 10, now).admits());
        }
        now = now + Span::from_secs(2);
    }
    assert_eq!(store.overflow_charges(), 0, "there was always room for those of one second");
}

#[test]
fn t16_sweeping_gives_memory_back() {
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
fn t16_clients_that_come_and_go_find_room_again_though_not_each_has_it_looked_for() {
    // Each is as good as new after a second, and a hundred times as many come as there is room for at once.
    let store = bounded(SHARDS * 1_000);
    let second = limit(Algorithm::TokenBucket, 1, Span::from_secs(1));
    let spread = |number: u64| NOW + Span::from_micros(number * 8);
    let admitted = (0..20_000_000_u64 / 40)
        .filter(|number| charge(&store, &second, subject(*number), 1, spread(*number)).admits())
        .count();
    assert_eq!((admitted, store.overflow_charges()), (500_000, 0));
    assert!(store.len() <= SHARDS * 1_000);
}

//! Counters of one limit share hashes on the server, and none knows of the others.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test may panic, and tells what it measured")]

mod harness;

use std::time::Duration;

use futures_util::future::join_all;
use tollgate::counters::CounterAdmin;
use tollgate::identity::Subject;
use tollgate::{Algorithm, Span};
use tollgate_stores::redis::RedisCounters;
use tollgate_testkit::{RedisServer, wait_until};

use self::harness::limits::{Gauge, charges, limit, unique};
use self::harness::{exact, now, open, runtime, single};

/// Another client of the same limit.
fn neighbour(gauge: &Gauge, subject: u128) -> Gauge {
    Gauge { subject: Subject(subject), ..gauge.clone() }
}

/// One whose counter is in the same hash: the first 15 bits of the subject say which.
fn roommate(gauge: &Gauge) -> Gauge {
    let own = unique() >> 15;
    neighbour(gauge, gauge.subject.0 >> 113 << 113 | own)
}

async fn remaining(store: &RedisCounters, gauges: &[&Gauge], cost: u32) -> Vec<u32> {
    let charges = charges(gauges.iter().copied(), cost);
    let verdicts = store.charge_all_timed(&charges, now()).await.unwrap().0.verdicts;
    verdicts.iter().map(|verdict| verdict.remaining).collect()
}

async fn all_once(store: &RedisCounters, crowd: &[Gauge]) {
    join_all(crowd.iter().map(async |gauge| remaining(store, &[gauge], 1).await)).await;
}

fn number(server: &RedisServer, command: &[&str]) -> i64 {
    server.cli(command).parse().unwrap()
}

fn only_key(server: &RedisServer) -> String {
    let keys = server.cli(&["KEYS", "rl:1*"]);
    assert_eq!(keys.lines().count(), 1, "{keys}");
    keys
}

/// All that share a hash.
const SHARED: [Algorithm; 5] = [
    Algorithm::TokenBucket,
    Algorithm::Gcra,
    Algorithm::LeakyBucket,
    Algorithm::FixedWindow,
    Algorithm::SlidingWindowCounter,
];

#[test]
fn counters_in_one_hash_are_counted_and_reset_each_for_itself() {
    for algorithm in SHARED {
        let server = RedisServer::start();
        runtime().block_on(async {
            let store = open(&exact(single(server.address()))).await;
            let one = Gauge::a_day(algorithm, 100);
            let other = roommate(&one);
            assert_eq!(remaining(&store, &[&one], 30).await, [70], "{algorithm}");
            assert_eq!(remaining(&store, &[&other], 10).await, [90], "{algorithm}");
            assert_eq!(remaining(&store, &[&one, &other], 5).await, [65, 85], "{algorithm}");
            assert_eq!(number(&server, &["HLEN", &only_key(&server)]), 3, "{algorithm}");
            assert_eq!(store.reset(&charges([&one], 1)).await, Ok(1));
            assert_eq!(store.reset(&charges([&one], 1)).await, Ok(0), "it is gone");
            assert_eq!(remaining(&store, &[&one, &other], 0).await, [100, 85], "{algorithm}");
        });
    }
}

/// Of two that are written by one call, whichever is written last: the one that is needed longer decides.
#[test]
fn a_hash_outlives_each_of_its_counters() {
    let server = RedisServer::start();
    runtime().block_on(async {
        let store = open(&exact(single(server.address()))).await;
        let heavy = Gauge::a_day(Algorithm::TokenBucket, 1_000);
        let light = roommate(&heavy);
        remaining(&store, &[&heavy], 900).await; // a counter of 21 hours and a half
        let key = only_key(&server);
        let needed = 86_400 * 9 / 10;
        let left = || number(&server, &["TTL", &key]);
        assert!(left() >= needed - 60, "{}", left());
        remaining(&store, &[&light], 1).await;
        assert!(left() >= needed - 60, "{}", left());
        assert!(left() <= needed * 5 / 4 + 60, "{}", left());

        // Both by one call, and nobody has said yet when the hash ends.
        for both in [[&heavy, &light], [&light, &heavy]] {
            assert_eq!(number(&server, &["HDEL", &key, ""]), 1);
            assert_eq!(number(&server, &["EXPIRE", &key, "100"]), 1);
            remaining(&store, &both, 1).await;
            assert!(left() >= needed - 60, "{}", left());
        }
    });
}

#[test]
fn counters_that_say_nothing_any_more_make_room_for_newcomers() {
    let server = RedisServer::start();
    runtime().block_on(async {
        let store = open(&exact(single(server.address()))).await;
        let first = Gauge::new(limit(Algorithm::FixedWindow, 5, Span::from_secs(1)));
        let deadline = std::time::Instant::now() + Duration::from_secs(30);
        let (mut come, mut most) = (0, 0);
        // As many again and again as live within two seconds, which is as long as one of them may say something.
        while come < 20_000 && std::time::Instant::now() < deadline {
            let crowd: Vec<Gauge> = (0..100).map(|_| roommate(&first)).collect();
            all_once(&store, &crowd).await;
            come += crowd.len();
            most = most.max(number(&server, &["HLEN", &only_key(&server)]));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        eprintln!("{come} came, {most} were there at most");
        let there = number(&server, &["HLEN", &only_key(&server)]);
        assert!(there * 3 < i64::try_from(come).unwrap() * 2, "{there} of {come} are still there");
    });
    let gone = wait_until(Duration::from_secs(60), || server.cli(&["KEYS", "rl:1*"]).is_empty());
    assert!(gone, "a hash that nobody writes to ends");
}

/// A counter that is stale is none, whether it was tidied away or not: what a client may do is no matter of chance.
#[test]
fn a_stale_counter_is_none_whatever_the_numbers_are_by_now() {
    let server = RedisServer::start();
    runtime().block_on(async {
        let store = open(&exact(single(server.address()))).await;
        let window = Span::from_secs(100);
        let quick = Gauge::new(limit(Algorithm::TokenBucket, 1_000_000, window));
        // A name has the window in it: numbers change, and it stays the same counter.
        let slow = Gauge { limit: limit(Algorithm::TokenBucket, 10, window), ..quick.clone() };
        assert_eq!(remaining(&store, &[&quick], 1_000).await, [999_000]);
        assert_eq!(remaining(&store, &[&slow], 0).await, [0], "what is owed is owed under the new numbers");
        tokio::time::sleep(Duration::from_millis(2_100)).await;
        assert_eq!(number(&server, &["HLEN", &only_key(&server)]), 2, "it is still there");
        assert_eq!(remaining(&store, &[&slow], 0).await, [10]);
    });
}

#[test]
fn a_bucket_takes_no_more_than_120_bytes_of_the_server() {
    let server = RedisServer::start();
    runtime().block_on(async {
        let store = open(&exact(single(server.address()))).await;
        let gauge = Gauge::a_day(Algorithm::TokenBucket, 100);
        remaining(&store, &[&gauge], 1).await;
        let before = server.memory_used();
        let count = 200_000;
        let crowd: Vec<Gauge> = (0..count).map(|_| neighbour(&gauge, unique())).collect();
        for some in crowd.chunks(2_000) {
            all_once(&store, some).await;
        }
        let each = (server.memory_used() - before) / count;
        eprintln!("{each} bytes for each of {count} buckets");
        assert!(each <= 120, "{each}");
    });
}

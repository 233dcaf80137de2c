//! Counters of one limit share hashes on the server and are independent of each other.

use futures_util::future::join_all;
use tollgate::counters::{Charges, CounterAdmin, StoreError};
use tollgate::identity::Subject;
use tollgate::{Algorithm, Span};
use tollgate_stores::redis::RedisCounters;
use tollgate_testkit::RedisServer;

use crate::harness::limits::{Gauge, charges, limit, unique};
use crate::harness::{exact, now, open, runtime, single};

/// Another client of the same limit.
fn neighbour(gauge: &Gauge, subject: u128) -> Gauge {
    Gauge { subject: Subject(subject), ..gauge.clone() }
}

/// A client whose counter is in the same hash: the first 15 bits of the subject select it.
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
    for some in crowd.chunks(200) {
        join_all(some.iter().map(async |gauge| remaining(store, &[gauge], 1).await)).await;
    }
}

fn number(server: &RedisServer, command: &[&str]) -> i64 {
    server.cli(command).parse().unwrap()
}

/// The hash of a gauge with a unique rule.
fn key_of(server: &RedisServer, gauge: &Gauge) -> String {
    let keys = server.cli(&["KEYS", &format!("rl:1*:{}:*", gauge.rule)]);
    assert_eq!(keys.lines().count(), 1, "{keys}");
    keys
}

fn only_key(server: &RedisServer) -> String {
    let keys = server.cli(&["KEYS", "rl:1*"]);
    assert_eq!(keys.lines().count(), 1, "{keys}");
    keys
}

/// All gauges that share a hash.
const SHARED: [Algorithm; 5] = [
    Algorithm::TokenBucket,
    Algorithm::Gcra,
    Algorithm::LeakyBucket,
    Algorithm::FixedWindow,
    Algorithm::SlidingWindowCounter,
];

#[test]
fn counters_of_one_hash_are_independent() {
    for algorithm in SHARED {
        let server = RedisServer::start();
        runtime().block_on(async {
            let store = open(&exact(single(server.address()))).await;
            let one = Gauge::a_day(algorithm, 100);
            let other = roommate(&one);
            assert_eq!(remaining(&store, &[&one], 30).await, [70], "{algorithm}");
            assert_eq!(remaining(&store, &[&other], 10).await, [90], "{algorithm}");
            assert_eq!(remaining(&store, &[&one, &other], 5).await, [65, 85], "{algorithm}");
            assert_eq!(number(&server, &["HLEN", &only_key(&server)]), 2, "{algorithm}");
            assert_eq!(store.reset(&charges([&one], 1)).await, Ok(1));
            assert_eq!(store.reset(&charges([&one], 1)).await, Ok(0), "it is gone");
            assert_eq!(remaining(&store, &[&one, &other], 0).await, [100, 85], "{algorithm}");
        });
    }
}

/// Of two counters written by one call, in either order, the one that lasts longer decides.
#[test]
fn hash_outlives_its_counters() {
    let server = RedisServer::start();
    runtime().block_on(async {
        let store = open(&exact(single(server.address()))).await;
        let heavy = Gauge::a_day(Algorithm::TokenBucket, 1_000);
        let light = roommate(&heavy);
        remaining(&store, &[&heavy], 900).await; // lasts 21.5 hours
        let key = only_key(&server);
        let needed = i64::try_from(heavy.limit.window_length().as_secs_ceil()).unwrap() * 9 / 10;
        let left = || number(&server, &["TTL", &key]);
        assert!(left() >= needed - 60, "{}", left());
        remaining(&store, &[&light], 1).await;
        assert!(left() >= needed - 60, "{}", left());
        assert!(left() <= needed * 5 / 4 + 60, "{}", left());

        // Two new counters by one call, in either order.
        for light_first in [false, true] {
            server.flush_all();
            let (heavy, light) = (roommate(&heavy), roommate(&light));
            let mut charges = Charges::default();
            charges.charges.extend([heavy.charge(900), light.charge(1)]);
            charges.charges.rotate_left(usize::from(light_first));
            assert!(store.charge_all_timed(&charges, now()).await.unwrap().0.admitted(&charges));
            assert!(left() >= needed - 60, "{}", left());
        }
    });
}

/// Expires every counter in a hash a second ago.
fn age(server: &RedisServer, key: &str) {
    let age = "local over = struct.pack('>I5', redis.call('TIME')[1] - 1)
        for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
            redis.call('HSET', KEYS[1], field, over .. redis.call('HGET', KEYS[1], field):sub(6))
        end
        return redis.call('HLEN', KEYS[1])";
    assert!(number(server, &["EVAL", age, "1", key]) > 0);
}

/// A used-up counter lasts longer than a new one.
#[test]
fn hash_outlives_a_counter_that_lasts_longer() {
    let server = RedisServer::start();
    runtime().block_on(async {
        let store = open(&exact(single(server.address()))).await;
        for algorithm in SHARED {
            let gauge = Gauge::a_day(algorithm, 1_000);
            // A window of a day ends at midnight, and so does its counter.
            for (cost, again) in [(1, false), (900, true)] {
                let charges = charges([&gauge], cost);
                let result = store.charge_all_timed(&charges, now()).await.unwrap().0.verdicts[0];
                let needed = i64::try_from(result.reset_after.as_secs_ceil()).unwrap();
                let left = number(&server, &["TTL", &key_of(&server, &gauge)]);
                assert!(left >= needed - 60, "{algorithm}, again: {again}: {left} of {needed}");
            }
        }
    });
}

/// Otherwise a hash would never shrink.
#[test]
fn expired_counters_are_removed_without_new_clients() {
    let server = RedisServer::start();
    runtime().block_on(async {
        let store = open(&exact(single(server.address()))).await;
        let regular = Gauge::a_day(Algorithm::TokenBucket, 1_000_000);
        all_once(&store, &(0..500).map(|_| roommate(&regular)).collect::<Vec<_>>()).await;
        let key = only_key(&server);
        age(&server, &key);
        for _ in 0..5_000 {
            // Its last request is long ago each time.
            assert_eq!(remaining(&store, &[&regular], 1).await, [999_999]);
            if number(&server, &["HLEN", &key]) <= 50 {
                return;
            }
            age(&server, &key);
        }
        panic!("expired counters stay");
    });
}

#[test]
fn full_server_removes_expired_counters() {
    let server = RedisServer::with(&["--maxmemory-policy", "noeviction"]);
    runtime().block_on(async {
        let store = open(&exact(single(server.address()))).await;
        for algorithm in SHARED {
            server.flush_all();
            let first = Gauge::a_day(algorithm, 1_000);
            all_once(&store, &(0..300).map(|_| roommate(&first)).collect::<Vec<_>>()).await;
            let full = charges([&first], 1);
            let charge =
                async || store.charge_all_timed(&full, now()).await.map(|result| result.0.admitted(&full));
            let full = (server.memory_used() / 2).to_string();
            assert_eq!(server.cli(&["CONFIG", "SET", "maxmemory", &full]), "OK");
            assert_eq!(charge().await, Err(StoreError::Unreachable), "{algorithm}");
            // Changing the expiry is a write, too.
            assert_eq!(server.cli(&["CONFIG", "SET", "maxmemory", "0"]), "OK");
            age(&server, &only_key(&server));
            assert_eq!(server.cli(&["CONFIG", "SET", "maxmemory", &full]), "OK");
            // The breaker may be open for a moment.
            let mut result = charge().await;
            for _ in 0..500 {
                if result.is_ok() {
                    break;
                }
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
                result = charge().await;
            }
            assert_eq!(result, Ok(true), "{algorithm}");
            assert_eq!(server.cli(&["CONFIG", "SET", "maxmemory", "0"]), "OK");
        }
    });
}

#[test]
fn expired_counters_make_room_for_new_ones() {
    let server = RedisServer::start();
    runtime().block_on(async {
        let store = open(&exact(single(server.address()))).await;
        let first = Gauge::a_day(Algorithm::TokenBucket, 5);
        let crowd = || (0..500).map(|_| roommate(&first)).collect::<Vec<_>>();
        all_once(&store, &crowd()).await;
        let key = only_key(&server);
        age(&server, &key);
        let mut come = 0;
        while number(&server, &["HLEN", &key]) > come + 50 {
            assert!(come < 50_000, "expired counters stay");
            all_once(&store, &crowd()).await;
            come += 500;
        }
        eprintln!("nearly all of 500 that are over are gone when {come} have come");
    });
}

#[test]
fn unused_hash_expires() {
    let server = RedisServer::start();
    runtime().block_on(async {
        let store = open(&exact(single(server.address()))).await;
        remaining(&store, &[&Gauge::new(limit(Algorithm::FixedWindow, 5, Span::from_secs(1)))], 1).await;
    });
    let left = number(&server, &["TTL", &only_key(&server)]);
    assert!((0..=32).contains(&left), "{left}");
}

/// An expired counter counts as absent, whether or not it was removed.
#[test]
fn expired_counter_is_absent_after_limit_change() {
    let server = RedisServer::start();
    runtime().block_on(async {
        let store = open(&exact(single(server.address()))).await;
        for algorithm in SHARED {
            server.flush_all();
            let gauge = Gauge::a_day(algorithm, 10);
            remaining(&store, &[&gauge], 5).await;
            assert_eq!(remaining(&store, &[&gauge], 0).await, [5], "{algorithm}");
            age(&server, &only_key(&server));
            assert_eq!(remaining(&store, &[&gauge], 0).await, [10], "{algorithm}");
            assert_eq!(remaining(&store, &[&gauge], 1).await, [9], "{algorithm}");
            assert_eq!(remaining(&store, &[&gauge], 1).await, [8], "{algorithm}");
        }
    });
}

#[test]
fn bucket_takes_at_most_120_bytes() {
    let server = RedisServer::start();
    runtime().block_on(async {
        let store = open(&exact(single(server.address()))).await;
        let gauge = Gauge::a_day(Algorithm::TokenBucket, 100);
        remaining(&store, &[&gauge], 1).await;
        let before = server.memory_used();
        let count = 200_000;
        let crowd: Vec<Gauge> = (0..count).map(|_| neighbour(&gauge, unique())).collect();
        all_once(&store, &crowd).await;
        let each = (server.memory_used() - before) / count;
        eprintln!("{each} bytes for each of {count} buckets");
        assert!(each <= 120, "{each}");
    });
}

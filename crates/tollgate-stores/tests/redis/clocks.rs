//! The server's clock decides, however wrong a node's clock is.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tollgate::calendar::{Calendar, CalendarUnit};
use tollgate::counters::conformance::Harness;
use tollgate::counters::{Charges, CounterStore};
use tollgate::penalties::PenaltyPolicy;
use tollgate::{Algorithm, Limit, Span, Window};
use tollgate_testkit::RedisServer;

use crate::harness::limits::{Gauge, Watched, charges};
use crate::harness::{Shared, exact, now, open, runtime, single};

/// The caller sends the boundaries of calendar windows around its own clock.
#[test]
fn node_with_slow_clock_grants_no_second_quota() {
    let shared = Shared::single();
    let calendar = Calendar::new(CalendarUnit::Day, "UTC").unwrap();
    let limit = Limit::new(Algorithm::FixedWindow, 5, Window::Calendar(Arc::new(calendar))).unwrap();
    for days in [0_u64, 1, 2, 3, 40] {
        let gauge = Gauge::new(limit.clone());
        let behind = Span::from_secs(86_400 * days);
        let admits = || {
            thread::sleep(Duration::from_millis(5));
            let charges = charges([&gauge], 1);
            let result = shared.block_on(shared.store.charge_all(&charges, shared.now() - behind)).unwrap();
            result.admitted(&charges)
        };
        assert_eq!((0..15).filter(|_| admits()).count(), 5, "{days} days behind");
    }
}

/// With a record from a clock a year ahead, all refusals of that year would belong to its last violation.
#[test]
fn violation_from_fast_clock_keeps_penalties() {
    let server = RedisServer::start();
    runtime().block_on(async {
        let store = open(&exact(single(server.address()))).await;
        let policy = PenaltyPolicy { violation_threshold: 2, ..PenaltyPolicy::default() };
        let (client, gauge) = (Watched::new(policy), Gauge::a_day(Algorithm::FixedWindow, 1));
        let ask = async || {
            let charges = Charges { penalty: Some(client.penalty(u32::MAX)), ..charges([&gauge], 1) };
            store.charge_all(&charges, now()).await.unwrap()
        };
        let first = (ask().await, ask().await).1;
        assert_eq!(first.cooldown, None, "the first violation");
        let script = "local key = redis.call('KEYS', 'rl:1p*')[1] local value = redis.call('GET', key) \
                      local count, episode, cooldown, at = struct.unpack('>BI7I7I7', value) \
                      local year = 31536000 * 1000000 redis.call('SET', key, struct.pack('>BI7I7I7', count, \
                      episode + year, cooldown, at + year) .. value:sub(23)) return count";
        assert_eq!(server.cli(&["EVAL", script, "0"]), "1");
        let second = ask().await;
        assert_eq!(second.cooldown.map(Span::as_micros), Some(60_000_000), "{second:?}");
        let left = server.cli(&["EVAL", "return redis.call('PTTL', redis.call('KEYS', 'rl:1p*')[1])", "0"]);
        assert!(left.parse::<u64>().is_ok_and(|left| left <= 3_600_001), "{left}");
    });
}

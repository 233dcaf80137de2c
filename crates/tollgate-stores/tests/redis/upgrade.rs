//! Rolling upgrades: no client gets a second quota.

use std::time::{Duration, Instant, SystemTime};

use tokio::time::sleep;
use tollgate::counters::{CounterStore, StoreError};
use tollgate::{Algorithm, Timestamp};
use tollgate_stores::redis::{RedisCounters, RedisSettings, SCHEMA, Topology};
use tollgate_testkit::RedisServer;

use crate::harness::limits::{Gauge, charges};
use crate::harness::{address, patient};

async fn node(server: &RedisServer, schema: u8) -> RedisCounters {
    let settings = patient(Topology::Single(address(server.address())));
    let settings = RedisSettings { schema, leases: false, refusal_cache: false, ..settings };
    let node = RedisCounters::open(&settings).unwrap();
    assert!(node.connected(Duration::from_secs(10)).await);
    node
}

/// How many of `count` requests are admitted.
async fn admitted(node: &RedisCounters, gauge: &Gauge, count: usize) -> Result<usize, StoreError> {
    let mut admitted = 0;
    for _ in 0..count {
        let charges = charges([gauge], 1);
        let verdicts = node.charge_all(&charges, Timestamp::from(SystemTime::now())).await?;
        admitted += usize::from(verdicts.admitted(&charges));
    }
    Ok(admitted)
}

#[test]
fn rolling_upgrade_keeps_one_quota() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let server = RedisServer::start();
        let gauges: Vec<Gauge> = Algorithm::ALL.map(|algorithm| Gauge::a_day(algorithm, 100)).into();
        let old = node(&server, SCHEMA).await;
        let new = [node(&server, SCHEMA + 1).await, node(&server, SCHEMA + 1).await];
        for gauge in &gauges {
            assert_eq!(admitted(&old, gauge, 30).await, Ok(30));
            assert_eq!(admitted(&new[0], gauge, 30).await, Ok(30));
        }
        let names = |version: u8| server.cli(&["KEYS", &format!("rl:{version}?{{*")]).lines().count();
        assert_eq!((names(SCHEMA), names(SCHEMA + 1)), (6, 0), "all nodes use the older schema");

        old.close().await;
        drop(old);
        let changed = async {
            while admitted(&new[0], &gauges[0], 0).await.is_ok() && names(SCHEMA + 1) == 0 {
                // Some traffic, as there always is.
                assert!(admitted(&new[1], &gauges[5], 1).await.unwrap() <= 1);
                sleep(Duration::from_millis(500)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(40), changed).await.unwrap();
        // Both nodes have read the change by now.
        sleep(Duration::from_secs(2)).await;
        for gauge in &gauges[..5] {
            let left =
                admitted(&new[0], gauge, 60).await.unwrap() + admitted(&new[1], gauge, 60).await.unwrap();
            assert_eq!(left, 40, "{:?}", gauge.limit.algorithm());
        }

        for key in server.cli(&["KEYS", &format!("rl:{}?{{*", SCHEMA + 1)]).lines() {
            assert!(server.cli(&["TTL", key]).parse::<i64>().unwrap() > 0, "{key} has no end");
        }

        let late = node(&server, SCHEMA).await;
        let refused = async {
            while admitted(&late, &gauges[0], 1).await != Err(StoreError::Misconfigured) {
                sleep(Duration::from_millis(100)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), refused).await.unwrap();
    });
}

/// Every request counts, on either node and however close to the instant of the change.
#[test]
fn schema_change_under_load_counts_each_request_once() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let server = RedisServer::start();
        let gauges: Vec<Gauge> = Algorithm::ALL.map(|algorithm| Gauge::a_day(algorithm, 9_000)).into();
        let one = node(&server, SCHEMA + 1).await;
        // Heartbeats are a second apart, at different times on each node.
        sleep(Duration::from_millis(500)).await;
        let new = [one, node(&server, SCHEMA + 1).await];
        let changed = || !server.cli(&["KEYS", &format!("rl:{}?{{*", SCHEMA + 1)]).is_empty();
        assert!(!changed());
        let load = |node: RedisCounters| {
            let gauges = gauges.clone();
            tokio::spawn(async move {
                let (start, mut taken) = (Instant::now(), [0; 6]);
                while start.elapsed() < Duration::from_secs(9) {
                    for (taken, gauge) in taken.iter_mut().zip(&gauges) {
                        *taken += admitted(&node, gauge, 1).await.unwrap();
                    }
                    sleep(Duration::from_millis(5)).await;
                }
                taken
            })
        };
        let (one, other) = tokio::join!(load(new[0].clone()), load(new[1].clone()));
        assert!(changed());
        for ((gauge, one), other) in gauges.iter().zip(one.unwrap()).zip(other.unwrap()) {
            let ask = charges([gauge], 0);
            let left = new[0].charge_all(&ask, Timestamp::from(SystemTime::now())).await.unwrap().verdicts[0];
            // A bucket refills one unit in ten seconds.
            let counted = 9_000 - left.remaining as usize;
            assert!(counted.abs_diff(one + other) <= 2, "{}: {counted} of {}", gauge.limit, one + other);
        }
    });
}

//! A node that does not know the fleet's key schema.

use std::time::{Duration, SystemTime};

use tokio::time::sleep;
use tollgate::counters::{CounterStore, StoreError};
use tollgate::{Algorithm, Timestamp};
use tollgate_stores::redis::{RedisCounters, Topology};
use tollgate_testkit::RedisServer;

use crate::harness::limits::{Gauge, charges};
use crate::harness::{address, patient};

#[test]
fn newer_key_schema_is_rejected() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let server = RedisServer::start();
        let settings = patient(Topology::Single(address(server.address())));
        let node = RedisCounters::open(&settings).unwrap();
        assert!(node.connected(Duration::from_secs(10)).await);
        let gauge = Gauge::a_day(Algorithm::FixedWindow, 1_000_000);
        let charge = async || {
            let charges = charges([&gauge], 1);
            node.charge_all(&charges, Timestamp::from(SystemTime::now())).await.map(drop)
        };
        assert_eq!(charge().await, Ok(()));

        server.cli(&["SET", "rl:{fleet}:schema:2", "1"]);
        let rejected = async {
            while charge().await != Err(StoreError::Misconfigured) {
                sleep(Duration::from_millis(100)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), rejected).await.unwrap();
        assert!(node.misconfiguration().unwrap().contains("newer key schema; upgrade this node"));
    });
}

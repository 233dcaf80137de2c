//! Distant servers: `connect_timeout` applies to every connection, and a login takes a round trip of its own.

use std::time::{Duration, Instant};

use tokio::time::sleep;
use tollgate::counters::CounterStore;
use tollgate::limit::Algorithm;
use tollgate_stores::redis::{Login, RedisCounters, RedisSettings, Secret, Topology};
use tollgate_testkit::{Fault, FaultProxy, RedisOptions, RedisServer, SentinelFleet, wait_until};

use crate::harness::limits::{Gauge, charges};
use crate::harness::{address, exact, now, open, runtime, single};

const PATIENCE: Duration = Duration::from_secs(30);

fn login() -> Login {
    Login { user: None, password: Some(Secret("right".to_owned())) }
}

fn far_away(topology: Topology) -> RedisSettings {
    RedisSettings { connect_timeout: Duration::from_secs(10), ..exact(topology) }
}

#[test]
fn messages_arrive_over_a_slow_network() {
    let options = RedisOptions { password: Some("right".to_owned()), ..RedisOptions::default() };
    let server = RedisServer::start_with(&options);
    let proxy = FaultProxy::in_front_of(server.address());
    runtime().block_on(async {
        let credentials = |settings| RedisSettings { login: login(), ..settings };
        let store = open(&credentials(far_away(single(proxy.address())))).await;
        let other = open(&credentials(exact(single(server.address())))).await;
        let listeners = || server.cli(&["PUBSUB", "NUMSUB", "rl:{fleet}:changes"]);
        assert!(wait_until(PATIENCE, || listeners().ends_with('2')));
        proxy.set(Fault::Latency(Duration::from_millis(700)));
        server.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        assert!(wait_until(PATIENCE, || !listeners().ends_with('2')));
        let (mut announced, started) = (store.fleet().change_notifications(), Instant::now());
        announced.mark_unchanged();
        while !announced.has_changed().unwrap() && started.elapsed() < PATIENCE {
            other.fleet().notify_change().await;
            sleep(Duration::from_millis(20)).await;
        }
        assert!(announced.has_changed().unwrap());
    });
}

#[test]
fn sentinels_are_queried_over_a_slow_network() {
    let fleet = SentinelFleet::start();
    let proxies: Vec<FaultProxy> = fleet.sentinels().into_iter().map(FaultProxy::in_front_of).collect();
    for sentinel in fleet.sentinels() {
        let answer = fleet.server_at(sentinel).cli(&["ACL", "SETUSER", "default", "resetpass", ">right"]);
        assert_eq!(answer, "OK");
    }
    for proxy in &proxies {
        proxy.set(Fault::Latency(Duration::from_millis(350)));
    }
    let sentinels = proxies.iter().map(|proxy| address(proxy.address())).collect();
    let master = fleet.master_name().to_owned();
    let settings = far_away(Topology::Sentinel { sentinels, master, login: login() });
    let runtime = runtime();
    let store = runtime.block_on(async { RedisCounters::open(&settings) }).unwrap();
    let gauge = Gauge::a_day(Algorithm::TokenBucket, 1_000_000);
    let is_decided = || runtime.block_on(store.charge_all(&charges([&gauge], 1), now())).is_ok();
    assert!(wait_until(PATIENCE, is_decided), "{}", store.no_servers_reason());
}

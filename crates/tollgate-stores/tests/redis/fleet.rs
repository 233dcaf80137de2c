//! Membership, and what nodes remember of shared counters.

use std::time::{Duration, Instant, SystemTime};

use futures_util::future::join_all;
use tollgate::counters::{CounterAdmin, CounterStore};
use tollgate::limit::Algorithm;
use tollgate_stores::redis::{RedisCounters, RedisSettings, Topology};
use tollgate_testkit::{Fault, FaultProxy, RedisServer, wait_until};

use crate::harness::limits::{Gauge, charges};
use crate::harness::{address, exact, now, open, patient, runtime, single};

const PATIENCE: Duration = Duration::from_secs(20);

async fn admits(store: &RedisCounters, gauge: &Gauge, cost: u32) -> bool {
    let charges = charges([gauge], cost);
    store.charge_all(&charges, now()).await.unwrap().admitted(&charges)
}

fn without_leases(topology: Topology) -> RedisSettings {
    RedisSettings { leases: false, ..patient(topology) }
}

#[test]
fn refusals_are_cached_per_cost() {
    let server = RedisServer::start();
    runtime().block_on(async {
        let store = open(&without_leases(single(server.address()))).await;
        let gauge = Gauge::a_day(Algorithm::FixedWindow, 10);
        assert!(admits(&store, &gauge, 10).await);
        let (before, started) = (server.commandstats("evalsha"), Instant::now());
        for turn in 0..2_000 {
            assert!(!admits(&store, &gauge, 1 + turn % 4).await);
        }
        let (calls, seconds) = (server.commandstats("evalsha") - before, started.elapsed().as_secs());
        assert!(calls <= 4 * (seconds + 1), "{calls} calls in {seconds} s");
    });
}

#[test]
fn registration_in_the_future_is_not_a_node() {
    let server = RedisServer::start();
    runtime().block_on(async {
        let store = open(&exact(single(server.address()))).await;
        let (list, at) = ("rl:{fleet}:nodes:1", SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs() + 3_600);
        server.cli(&["ZADD", list, &at.to_string(), "00000000deadbeef"]);
        let gone = || server.cli(&["ZSCORE", list, "00000000deadbeef"]).is_empty();
        assert!(wait_until(PATIENCE, gone), "{}", server.cli(&["ZRANGE", list, "0", "-1", "WITHSCORES"]));
        assert!(wait_until(PATIENCE, || store.nodes().get() == 1), "{}", store.nodes());
    });
}

/// Each server is polled every few seconds and does not reply.
#[test]
fn silent_servers_do_not_delay_heartbeats() {
    let servers: Vec<RedisServer> = (0..11).map(|_| RedisServer::start()).collect();
    let addresses = servers.iter().map(|server| address(server.address())).collect();
    runtime().block_on(async {
        let _store = open(&exact(Topology::Modulo(addresses))).await;
        let beats = |server: &RedisServer| server.commandstats("zadd");
        let home = servers.iter().find(|server| beats(server) > 0).unwrap();
        for server in servers.iter().filter(|server| server.port() != home.port()) {
            server.freeze();
        }
        let (mut last, mut longest) = ((beats(home), Instant::now()), Duration::ZERO);
        let enough = last.0 + 12;
        let beaten = wait_until(3 * PATIENCE, || {
            if beats(home) > last.0 {
                longest = longest.max(last.1.elapsed());
                last = (beats(home), Instant::now());
            }
            last.0 >= enough
        });
        assert!(beaten && longest < Duration::from_secs(5), "{longest:?}");
    });
}

#[test]
fn reset_failing_on_one_server_applies_on_others() {
    let servers = [RedisServer::start(), RedisServer::start()];
    let addresses = servers.iter().map(|server| address(server.address())).collect();
    runtime().block_on(async {
        let store = open(&without_leases(Topology::Modulo(addresses))).await;
        let gauges: Vec<Gauge> = (0..20).map(|_| Gauge::a_day(Algorithm::FixedWindow, 1)).collect();
        for gauge in &gauges {
            assert!(admits(&store, gauge, 1).await);
        }
        let is_on = |server: &RedisServer, gauge: &Gauge| {
            server.cli(&["KEYS", &format!("*{}*", gauge.rule)]).contains("rl:")
        };
        let there: Vec<bool> = gauges.iter().map(|gauge| is_on(&servers[0], gauge)).collect();
        servers[1].kill9();
        let away = |gauge: &Gauge| !store.is_reachable(&charges([gauge], 1));
        for (gauge, there) in gauges.iter().zip(&there) {
            assert!(*there || wait_until(PATIENCE, || away(gauge)));
        }
        for (gauge, _) in gauges.iter().zip(&there).filter(|(_, there)| **there) {
            assert!(!admits(&store, gauge, 1).await, "and it is remembered here");
        }
        assert!(store.reset(&charges(&gauges, 0)).await.is_err());
        for (gauge, _) in gauges.iter().zip(&there).filter(|(_, there)| **there) {
            assert!(admits(&store, gauge, 1).await);
        }
    });
}

#[test]
fn leases_are_returned_concurrently() {
    const LEASES: usize = 60;
    let server = RedisServer::start();
    let proxy = FaultProxy::in_front_of(server.address());
    runtime().block_on(async {
        let store = open(&patient(single(proxy.address()))).await;
        let gauges: Vec<Gauge> =
            (0..LEASES).map(|_| Gauge::a_day(Algorithm::FixedWindow, 1_000_000)).collect();
        let started = Instant::now();
        while store.leases().held <= LEASES / 2 && started.elapsed() < PATIENCE {
            let calls = gauges.iter().map(|gauge| admits(&store, gauge, 1));
            assert!(join_all(calls).await.into_iter().all(|admitted| admitted));
        }
        let held = store.leases().held;
        assert!(held > LEASES / 2, "{held}");
        // One after another they would take longer than a closing node waits.
        proxy.set(Fault::Latency(Duration::from_millis(250)));
        store.close().await;
        assert_eq!(store.leases().units, 0);
    });
}

//! A decision takes one round trip on a slow network, whatever follows from it.

use std::time::{Duration, Instant};

use tollgate::counters::{Charges, CounterAdmin, CounterStore};
use tollgate::limit::Algorithm;
use tollgate::penalties::PenaltyPolicy;
use tollgate_stores::redis::{RedisCounters, RedisSettings, Topology, VIRTUAL_NODES_DEFAULT};
use tollgate_testkit::{Fault, FaultProxy, RedisServer};

use crate::harness::limits::{Gauge, Watched, charges};
use crate::harness::{address, exact, now, open, runtime, single};

/// The delay of every reply. Two round trips take twice as long on any machine. That one takes less may fail on a busy
/// machine, so one success is enough.
const LATE: Duration = Duration::from_millis(300);
const ATTEMPTS: usize = 20;

async fn refused(store: &RedisCounters, charges: &Charges<'_>) -> Duration {
    let started = Instant::now();
    let verdicts = store.charge_all(charges, now()).await.unwrap();
    let took = started.elapsed();
    assert!(!verdicts.admitted(charges));
    took
}

async fn remaining(store: &RedisCounters, gauge: &Gauge) -> u32 {
    let result = store.charge_all(&charges([gauge], 0), now()).await;
    result.map_or(0, |verdicts| verdicts.verdicts[0].remaining)
}

#[test]
fn request_does_not_wait_for_the_penalty_list() {
    let server = RedisServer::start();
    let proxy = FaultProxy::in_front_of(server.address());
    runtime().block_on(async {
        let store = open(&exact(single(proxy.address()))).await;
        let policy = PenaltyPolicy { violation_threshold: 1, ..PenaltyPolicy::default() };
        let mut took = Vec::new();
        while took.iter().all(|took| *took >= 2 * LATE) && took.len() < ATTEMPTS {
            proxy.set(Fault::None);
            let (client, gauge) = (Watched::new(policy.clone()), Gauge::a_day(Algorithm::FixedWindow, 1));
            let ask = Charges { penalty: Some(client.penalty(u32::MAX)), ..charges([&gauge], 1) };
            assert!(store.charge_all(&ask, now()).await.unwrap().admitted(&ask));
            proxy.set(Fault::Latency(LATE));
            took.push(refused(&store, &ask).await);
            proxy.set(Fault::None);
            let listed = store.penalized_clients(usize::MAX, now()).await.unwrap();
            assert!(listed.iter().any(|listed| listed.client.contains(&client.name)), "{listed:?}");
        }
        assert!(took.len() < ATTEMPTS, "{took:?}");
    });
}

#[test]
fn refund_wait_is_within_the_timeout() {
    let servers: Vec<RedisServer> = (0..2).map(|_| RedisServer::start()).collect();
    let proxies: Vec<FaultProxy> =
        servers.iter().map(|server| FaultProxy::in_front_of(server.address())).collect();
    let addresses = proxies.iter().map(|proxy| address(proxy.address())).collect();
    let topology = Topology::Ring { servers: addresses, virtual_nodes: VIRTUAL_NODES_DEFAULT };
    let set = |fault: &Fault| proxies.iter().for_each(|proxy| proxy.set(fault.clone()));
    runtime().block_on(async {
        let store = open(&RedisSettings { timeout: LATE * 19 / 10, ..exact(topology) }).await;
        let mut took = Vec::new();
        while took.iter().all(|took| *took >= 2 * LATE) && took.len() < ATTEMPTS {
            set(&Fault::None);
            let (wide, narrow) =
                (Gauge::a_day(Algorithm::FixedWindow, 10), Gauge::a_day(Algorithm::FixedWindow, 1));
            if store.charge_all(&charges([&narrow], 1), now()).await.is_err() {
                continue; // another call of the last attempt came first
            }
            let before = store.refunds();
            set(&Fault::Latency(LATE));
            let (both, started) = (charges([&wide, &narrow], 1), Instant::now());
            let Ok(verdicts) = store.charge_all(&both, now()).await else { continue };
            let waited = started.elapsed();
            assert!(!verdicts.admitted(&both));
            // Half of the pairs are on one server, which refunds nothing.
            if store.refunds() > before {
                took.push(waited);
                set(&Fault::None);
                let given_back = async {
                    while remaining(&store, &wide).await < 10 {
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                };
                tokio::time::timeout(Duration::from_secs(10), given_back).await.unwrap();
            }
        }
        assert!(took.len() < ATTEMPTS, "{took:?}");
    });
}

#[test]
fn reconciling_with_a_request_adds_no_wait() {
    let server = RedisServer::start();
    let proxy = FaultProxy::in_front_of(server.address());
    runtime().block_on(async {
        let store = open(&exact(single(proxy.address()))).await;
        proxy.set(Fault::Latency(LATE));
        let mut took = Vec::new();
        while took.iter().all(|took| *took >= 2 * LATE) && took.len() < ATTEMPTS {
            let gauge = Gauge::a_day(Algorithm::FixedWindow, 100);
            let (mut held, asked) = (charges([&gauge], 30), charges([&gauge], 1));
            let started = Instant::now();
            let verdicts = store.reconcile_and_charge(&mut held, &asked, now()).await.unwrap();
            took.push(started.elapsed());
            assert!(verdicts.admitted(&asked) && held.charges.is_empty());
            assert_eq!(remaining(&store, &gauge).await, 69);
        }
        assert!(took.len() < ATTEMPTS, "{took:?}");
    });
}

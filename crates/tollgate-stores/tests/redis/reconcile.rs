//! Reconciliation adds what the fallback counted, whatever the limits say, for every algorithm.

use std::time::{Duration, Instant};

use smallvec::smallvec;
use tokio::time::sleep;
use tollgate::counters::StoreError;
use tollgate::counters::conformance::Harness;
use tollgate::counters::{Charge, Charges, CounterId, CounterStore, Effect};
use tollgate::identity::Subject;
use tollgate::{Algorithm, Limit, Span, Window};
use tollgate_stores::redis::{Login, RedisSettings, Secret, Topology, VIRTUAL_NODES_DEFAULT};
use tollgate_testkit::{Fault, FaultProxy, RedisOptions, RedisServer, wait_until};

use crate::harness::limits::{self, Gauge};
use crate::harness::{Shared, address, exact, now, open, runtime, single};

fn charges(limit: &Limit, cost: u32) -> Charges<'_> {
    let (subject, counter) = (Subject(7), CounterId(limit.algorithm() as u128));
    let charge = Charge {
        subject,
        counter,
        rule: "r",
        limit,
        cost,
        effect: Effect::Enforce,
        leases: true,
        refundable: false,
    };
    Charges { charges: smallvec![charge], ..Charges::default() }
}

#[test]
fn reconciled_charges_count_beyond_the_limit() {
    let shared = Shared::single();
    for algorithm in Algorithm::ALL {
        let limit = Limit::new(algorithm, 100, Window::Length(Span::from_secs(3_600_000))).unwrap();
        let ask = |cost: u32| {
            let charges = charges(&limit, cost);
            shared.block_on(shared.store.charge_all(&charges, shared.now())).unwrap().verdicts[0]
        };
        let carry = |cost: u32| {
            let mut held = charges(&limit, cost);
            let carried = shared.block_on(shared.store.reconcile(&mut held, shared.now()));
            assert!(held.charges.is_empty());
            carried
        };
        assert!(shared.store.is_reachable(&charges(&limit, 1)));
        assert_eq!(ask(10).remaining, 90, "{algorithm}");
        carry(60).unwrap();
        assert_eq!(ask(0).remaining, 30, "{algorithm}");
        carry(60).unwrap();
        assert_eq!(ask(0).remaining, 0, "{algorithm}");
        assert!(!ask(1).admits(), "{algorithm}");
    }
}

#[test]
fn reconciled_charges_are_not_repeated() {
    let servers = [RedisServer::start(), RedisServer::start()];
    let addresses = servers.iter().map(|server| address(server.address())).collect();
    let topology = Topology::Ring { servers: addresses, virtual_nodes: VIRTUAL_NODES_DEFAULT };
    runtime().block_on(async {
        let store = open(&exact(topology)).await;
        servers[1].kill9();
        let is_away = || store.servers().iter().any(|server| !server.connected);
        assert!(wait_until(Duration::from_secs(20), is_away));
        let gauges: Vec<Gauge> = (0..20).map(|_| Gauge::a_day(Algorithm::FixedWindow, 100)).collect();
        let mut held = limits::charges(&gauges, 30);
        assert!(store.reconcile(&mut held, now()).await.is_err());
        assert!((1..20).contains(&held.charges.len()), "{}", held.charges.len());
        assert!(store.reconcile(&mut held, now()).await.is_err());
        let left: Vec<Subject> = held.charges.iter().map(|charge| charge.subject).collect();
        for gauge in gauges.iter().filter(|gauge| !left.contains(&gauge.subject)) {
            let seen = store.charge_all(&limits::charges([gauge], 0), now()).await.unwrap();
            assert_eq!(seen.verdicts[0].remaining, 70);
        }
    });
}

/// It has most likely arrived; repeated, it would count again each time.
#[test]
fn possibly_added_charges_are_not_repeated() {
    let server = RedisServer::start();
    let proxy = FaultProxy::in_front_of(server.address());
    runtime().block_on(async {
        let store = open(&exact(single(proxy.address()))).await;
        let direct = open(&exact(single(server.address()))).await;
        let gauge = Gauge::a_day(Algorithm::FixedWindow, 100);
        let look = async || {
            let seen = direct.charge_all(&limits::charges([&gauge], 0), now()).await.unwrap();
            seen.verdicts[0].remaining
        };
        assert_eq!(look().await, 100, "and the server has the script");
        // While subscribed, a request reconciles without reading the reset log.
        let listens = || server.cli(&["PUBSUB", "NUMSUB", "rl:{fleet}:changes"]).ends_with('2');
        assert!(wait_until(Duration::from_secs(20), listens));
        let looks = server.commandstats("zrange");
        assert!(wait_until(Duration::from_secs(20), || server.commandstats("zrange") > looks + 4));
        proxy.set(Fault::BlackHoleReplies);
        let (mut held, peek) = (limits::charges([&gauge], 30), limits::charges([&gauge], 0));
        assert!(store.reconcile_and_charge(&mut held, &peek, now()).await.is_err());
        assert!(held.charges.is_empty(), "{held:?}");
        assert_eq!(look().await, 70);

        // Charges that were certainly not added are repeated.
        proxy.set(Fault::Drop);
        let reached = |held: &Charges<'_>| store.is_reachable(held);
        let mut held = limits::charges([&gauge], 20);
        assert!(wait_until(Duration::from_secs(20), || !reached(&held)));
        assert!(store.reconcile(&mut held, now()).await.is_err());
        assert_eq!(held.charges.len(), 1);
        proxy.set(Fault::None);
        assert!(wait_until(Duration::from_secs(20), || reached(&held)));
        assert_eq!(store.reconcile(&mut held, now()).await, Ok(()));
        assert_eq!(look().await, 50);
    });
}

/// Queued behind calls to a frozen server, the charges are never sent.
#[test]
fn unsent_charges_are_repeated() {
    let server = RedisServer::start();
    // Less than the response timeout of the calls ahead, half a second.
    let settings = RedisSettings { timeout: Duration::from_millis(300), ..exact(single(server.address())) };
    runtime().block_on(async {
        let (store, direct) = (open(&settings).await, open(&exact(single(server.address()))).await);
        let in_time = async || {
            let gauge = Gauge::a_day(Algorithm::TokenBucket, 100);
            let (look, mut held) = (limits::charges([&gauge], 0), limits::charges([&gauge], 30));
            assert!(wait_until(Duration::from_secs(20), || store.is_reachable(&look)));
            server.freeze();
            let started = Instant::now();
            // At most two batches are in flight.
            let ahead = [(); 2].map(|()| {
                let (store, other) = (store.clone(), Gauge::a_day(Algorithm::FixedWindow, 9));
                tokio::spawn(
                    async move { drop(store.charge_all(&limits::charges([&other], 1), now()).await) },
                )
            });
            sleep(Duration::from_millis(50)).await;
            let reconciled = store.reconcile_and_charge(&mut held, &look, now()).await;
            let in_time = started.elapsed() < Duration::from_millis(450);
            server.thaw();
            for call in ahead {
                call.await.unwrap();
            }
            if in_time {
                assert!(reconciled.is_err() && held.charges.len() == 1, "{reconciled:?}, {held:?}");
                assert_eq!(direct.charge_all(&look, now()).await.unwrap().verdicts[0].remaining, 100);
            }
            in_time
        };
        for _ in 0..20 {
            if in_time().await {
                return;
            }
        }
        panic!("the machine stalled each time");
    });
}

#[test]
fn rejected_charges_are_repeated_later() {
    let users = vec!["node on >node ~rl:* &* +@all".to_owned()];
    let server = RedisServer::start_with(&RedisOptions { users, ..RedisOptions::default() });
    let login = Login { user: Some("node".to_owned()), password: Some(Secret("node".to_owned())) };
    runtime().block_on(async {
        let store = open(&RedisSettings { login, ..exact(single(server.address())) }).await;
        let gauge = Gauge::a_day(Algorithm::FixedWindow, 100);
        assert_eq!(server.cli(&["ACL", "SETUSER", "node", "-evalsha"]), "OK");
        let mut held = limits::charges([&gauge], 30);
        assert_eq!(store.reconcile(&mut held, now()).await, Err(StoreError::Misconfigured));
        assert_eq!(held.charges.len(), 1);
        assert_eq!(server.cli(&["ACL", "SETUSER", "node", "+evalsha"]), "OK");
        assert_eq!(store.reconcile(&mut held, now()).await, Ok(()));
        let seen = store.charge_all(&limits::charges([&gauge], 0), now()).await.unwrap();
        assert_eq!(seen.verdicts[0].remaining, 70);
    });
}

#[test]
fn unusable_counter_blocks_no_other() {
    let server = RedisServer::start();
    runtime().block_on(async {
        let store = open(&exact(single(server.address()))).await;
        let gauges: Vec<Gauge> = (0..9).map(|_| Gauge::a_day(Algorithm::TokenBucket, 100)).collect();
        store.charge_all(&limits::charges([&gauges[4]], 1), now()).await.unwrap();
        let key = server.cli(&["KEYS", "rl:1t*"]);
        server.cli(&["DEL", &key]);
        server.cli(&["SET", &key, "somebody else's"]);
        let mut held = limits::charges(&gauges, 30);
        assert_eq!(store.reconcile(&mut held, now()).await, Ok(()));
        assert!(held.charges.is_empty(), "{held:?}");
        for (number, gauge) in gauges.iter().enumerate().filter(|(number, _)| *number != 4) {
            let seen = store.charge_all(&limits::charges([gauge], 0), now()).await.unwrap();
            assert_eq!(seen.verdicts[0].remaining, 70, "{number}");
        }
    });
}

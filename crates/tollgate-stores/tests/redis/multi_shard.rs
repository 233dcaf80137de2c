//! Decisions that span shards: charged on all of them, or refunded.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio::time::sleep;
use tollgate::Span;
use tollgate::algorithms::Verdict;
use tollgate::counters::{Charges, CounterAdmin, Effect};
use tollgate::limit::Algorithm;
use tollgate::penalties::PenaltyPolicy;
use tollgate_stores::redis::{RedisCounters, RedisSettings, Topology, VIRTUAL_NODES_DEFAULT};
use tollgate_testkit::{Fault, FaultProxy, RedisCluster, RedisServer};

use crate::harness::limits::{Gauge, Watched, charges, limit};
use crate::harness::{address, exact, now, open, runtime, single};

/// A ring of three servers and its settings.
fn ring() -> (RedisSettings, Vec<RedisServer>) {
    let servers: Vec<RedisServer> = (0..3).map(|_| RedisServer::start()).collect();
    let addresses = servers.iter().map(|server| address(server.address())).collect();
    let topology = Topology::Ring { servers: addresses, virtual_nodes: VIRTUAL_NODES_DEFAULT };
    (exact(topology), servers)
}

/// A cluster of three masters and its settings.
fn cluster() -> (RedisSettings, RedisCluster) {
    let cluster = RedisCluster::start();
    let seeds = cluster.addresses().into_iter().map(address).collect();
    (exact(Topology::Cluster(seeds)), cluster)
}

async fn admits(store: &RedisCounters, charges: &Charges<'_>) -> bool {
    store.charge_all_timed(charges, now()).await.unwrap().0.admitted(charges)
}

async fn remaining(store: &RedisCounters, gauge: &Gauge) -> u32 {
    store.charge_all_timed(&charges([gauge], 0), now()).await.unwrap().0.verdicts[0].remaining
}

/// Waits until this much is left: refunds arrive after the reply.
async fn settles_at(store: &RedisCounters, gauge: &Gauge, expected: u32) -> u32 {
    let started = Instant::now();
    loop {
        let left = remaining(store, gauge).await;
        if left == expected || started.elapsed() > Duration::from_secs(10) {
            return left;
        }
        sleep(Duration::from_millis(5)).await;
    }
}

/// Random clients: two of three pairs span shards.
const PAIRS: usize = 12;

async fn refusal_in_one_place_leaves_nothing_charged_in_another(settings: &RedisSettings) {
    let store = open(settings).await;
    for algorithm in Algorithm::ALL {
        for other in Algorithm::ALL {
            for _ in 0..PAIRS {
                let (wide, narrow) = (Gauge::a_day(algorithm, 10), Gauge::a_day(other, 1));
                assert!(admits(&store, &charges([&wide, &narrow], 1)).await);
                for order in [[&wide, &narrow], [&narrow, &wide]] {
                    assert!(!admits(&store, &charges(order, 1)).await, "{algorithm} and {other}");
                }
                assert_eq!(settles_at(&store, &wide, 9).await, 9, "{algorithm} and {other}");
            }
        }
    }
    assert!(store.refunds() > 100, "{} charges were taken back", store.refunds());
    eprintln!("{} charges taken back", store.refunds());
}

#[test]
fn refusal_on_one_ring_shard_charges_no_other() {
    let (settings, _servers) = ring();
    runtime().block_on(refusal_in_one_place_leaves_nothing_charged_in_another(&settings));
}

#[test]
fn refusal_in_one_cluster_slot_charges_no_other() {
    let (settings, _cluster) = cluster();
    runtime().block_on(async {
        refusal_in_one_place_leaves_nothing_charged_in_another(&settings).await;
        parallel_decisions_take_as_much_of_each_limit(&settings).await;
    });
}

/// A charge that will be refunded may cause other refusals: never more is admitted, sometimes less. At the end
/// exactly what was admitted is charged to each limit, and the rest is available.
async fn parallel_decisions_take_as_much_of_each_limit(settings: &RedisSettings) {
    let nodes = [open(settings).await, open(settings).await, open(settings).await];
    for algorithm in Algorithm::ALL {
        let (one, other, third) =
            (Gauge::a_day(algorithm, 40), Gauge::a_day(algorithm, 60), Gauge::a_day(algorithm, 50));
        let all = [&one, &other, &third];
        let calls = (0..300).map(|turn| {
            let node = &nodes[turn % nodes.len()];
            async move { admits(node, &charges(all, 1)).await }
        });
        let mut admitted =
            u32::try_from(join_all(calls).await.into_iter().filter(|admitted| *admitted).count()).unwrap();
        assert!(admitted <= 40, "{algorithm}: {admitted} of 40");
        for (gauge, limit) in [(&one, 40), (&other, 60), (&third, 50)] {
            assert_eq!(settles_at(&nodes[0], gauge, limit - admitted).await, limit - admitted, "{algorithm}");
        }
        while admits(&nodes[0], &charges(all, 1)).await {
            admitted += 1;
        }
        assert_eq!((admitted, settles_at(&nodes[0], &third, 10).await), (40, 10), "{algorithm}");
    }
}

#[test]
fn parallel_ring_decisions_never_exceed_a_limit() {
    let (settings, _servers) = ring();
    runtime().block_on(parallel_decisions_take_as_much_of_each_limit(&settings));
}

#[test]
fn client_in_cooldown_is_charged_on_no_shard() {
    let (settings, _servers) = ring();
    runtime().block_on(async {
        let store = open(&settings).await;
        for algorithm in Algorithm::ALL {
            for _ in 0..PAIRS {
                let policy = PenaltyPolicy { violation_threshold: 1, ..PenaltyPolicy::default() };
                let (client, used_up) = (Watched::new(policy), Gauge::a_day(algorithm, 1));
                let (free, shadow) = (Gauge::a_day(algorithm, 9), Gauge::a_day(algorithm, 9));
                let shadow = Gauge { effect: Effect::Shadow, ..shadow };
                let ask = |gauges| Charges { penalty: Some(client.penalty(u32::MAX)), ..charges(gauges, 1) };
                assert!(admits(&store, &ask([&used_up, &free, &shadow])).await);
                let refused =
                    store.charge_all_timed(&ask([&used_up, &free, &shadow]), now()).await.unwrap().0;
                assert!(refused.cooldown.is_some() && refused.verdicts.len() == 3, "{refused:?}");
                let in_cooldown =
                    store.charge_all_timed(&ask([&free, &shadow, &used_up]), now()).await.unwrap().0;
                assert!(in_cooldown.cooldown.is_some() && in_cooldown.in_cooldown, "{in_cooldown:?}");
                let admits: Vec<bool> = in_cooldown.verdicts.iter().map(Verdict::admits).collect();
                assert_eq!(admits, [true, true, false], "the verdicts are reported nevertheless");
                let left = [settles_at(&store, &free, 8).await, settles_at(&store, &shadow, 8).await];
                assert_eq!(left, [8, 8], "{algorithm}");
                assert_eq!(store.penalized_clients(usize::MAX, now()).await.map(|list| list.len()), Ok(1));
                assert_eq!(store.pardon(&format!("user:{}", client.name)).await, Ok(true));
            }
        }
    });
}

/// Refunding a bucket after time has paid the charge back would free what other requests
/// have taken since.
#[test]
fn emptied_bucket_is_not_refunded() {
    a_late_refund_gives_nothing_beyond_the_limit(10, Span::from_millis(400), 10);
}

#[test]
fn bucket_refund_is_at_most_its_debt() {
    a_late_refund_gives_nothing_beyond_the_limit(1_000, Span::from_secs(10), 400);
}

/// A decision charges a bucket, and another shard refuses late. Other requests have emptied the bucket meanwhile.
fn a_late_refund_gives_nothing_beyond_the_limit(requests: u32, window: Span, cost: u32) {
    let (near, far) = (RedisServer::start(), RedisServer::start());
    let proxy = FaultProxy::in_front_of(far.address());
    let servers = vec![address(near.address()), address(proxy.address())];
    runtime().block_on(async {
        let both = open(&exact(Topology::Modulo(servers))).await;
        let one = open(&exact(single(near.address()))).await;
        // One on the near server, and one on the other that is used up.
        let on = async |gauge: &Gauge, server: &RedisServer| {
            assert!(admits(&both, &charges([gauge], 1)).await);
            server.cli(&["DBSIZE"]) != "0"
                && server.cli(&["KEYS", &format!("*{}*", gauge.rule)]).contains("rl:")
        };
        let bucket = loop {
            let gauge = Gauge::new(limit(Algorithm::TokenBucket, requests, window));
            if on(&gauge, &near).await {
                break gauge;
            }
        };
        let narrow = loop {
            let gauge = Gauge::a_day(Algorithm::FixedWindow, 1);
            if on(&gauge, &far).await {
                break gauge;
            }
        };
        sleep(Duration::from_millis(500)).await;
        proxy.set(Fault::Latency(Duration::from_millis(900)));
        let started = Instant::now();
        let others = async {
            sleep(Duration::from_millis(700)).await;
            let (started, left) = (Instant::now(), remaining(&one, &bucket).await);
            assert!(admits(&one, &charges([&bucket], left)).await);
            (started, u128::from(left))
        };
        let spanning = [charges([&bucket], cost), charges([&narrow], 1)];
        let together = Charges {
            charges: spanning.into_iter().flat_map(|some| some.charges).collect(),
            ..Charges::default()
        };
        let (refused, (burst, mut admitted)) = tokio::join!(admits(&both, &together), others);
        assert!(!refused && started.elapsed() > Duration::from_millis(800));
        while admits(&one, &charges([&bucket], 1)).await {
            admitted += 1;
        }
        let (requests, window) = (u128::from(requests), u128::from(window.as_micros()));
        let possible = requests + burst.elapsed().as_micros() * requests / window + 1;
        assert!(admitted <= possible, "{admitted} instead of {possible}");
    });
}

#[test]
fn refusal_stands_when_another_shard_is_down() {
    let (settings, servers) = ring();
    runtime().block_on(async {
        let store = open(&settings).await;
        let gauges: Vec<Gauge> = (0..40).map(|_| Gauge::a_day(Algorithm::TokenBucket, 5)).collect();
        for gauge in &gauges {
            assert!(admits(&store, &charges([gauge], 5)).await);
        }
        servers[0].kill9();
        let (mut refused, mut unknown) = (0, 0);
        for pair in gauges.windows(2) {
            let alone = [&pair[0], &pair[1]].map(|gauge| async { asked(&store, &[gauge]).await });
            let [one, other] = alone;
            let (one, other) = (one.await, other.await);
            let expected = if one.is_none() { other } else { one };
            assert_eq!(asked(&store, &[&pair[0], &pair[1]]).await, expected, "{one:?} {other:?}");
            refused += u32::from(one.is_none() != other.is_none());
            unknown += u32::from(one.is_none() && other.is_none());
        }
        assert!(refused > 0 && unknown < 39, "{refused} {unknown}");
    });
}

/// Whether charges are admitted; none on error.
async fn asked(store: &RedisCounters, gauges: &[&Gauge]) -> Option<bool> {
    let charges = charges(gauges.iter().copied(), 1);
    Some(store.charge_all_timed(&charges, now()).await.ok()?.0.admitted(&charges))
}

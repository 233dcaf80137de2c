//! Many concurrent callers through several nodes: exactly the limit is admitted, and decisions are atomic.

use std::time::Instant;

use tollgate::limit::Algorithm;
use tollgate_stores::redis::{RedisCounters, RedisSettings};
use tollgate_testkit::RedisServer;

use crate::harness::limits::{Gauge, charges};
use crate::harness::{exact, now, open, runtime, single};

const NODES: usize = 3;

/// Independent stores on one server, like the nodes of a fleet.
async fn nodes(settings: &RedisSettings) -> Vec<RedisCounters> {
    let mut nodes = Vec::new();
    for _ in 0..NODES {
        nodes.push(open(settings).await);
    }
    nodes
}

/// How many of `count` concurrent charges through the nodes were admitted. Every other one has the limits in the
/// opposite order.
async fn admitted_of(nodes: &[RedisCounters], gauges: &[Gauge], count: usize) -> usize {
    let calls: Vec<_> = (0..count)
        .map(|turn| {
            let (node, mut gauges) = (nodes[turn % nodes.len()].clone(), gauges.to_vec());
            if turn % 2 == 1 {
                gauges.reverse();
            }
            tokio::spawn(async move {
                let charges = charges(&gauges, 1);
                node.charge_all_timed(&charges, now()).await.unwrap().0.admitted(&charges)
            })
        })
        .collect();
    let mut admitted = 0;
    for call in calls {
        admitted += usize::from(call.await.unwrap());
    }
    admitted
}

async fn remaining(node: &RedisCounters, gauge: &Gauge) -> u32 {
    node.charge_all_timed(&charges([gauge], 0), now()).await.unwrap().0.verdicts[0].remaining
}

#[test]
fn parallel_charges_admit_exactly_the_limit() {
    let server = RedisServer::start();
    let started = Instant::now();
    runtime().block_on(async {
        let settings = exact(single(server.address()));
        let asking = nodes(&settings).await;
        let remembering = nodes(&RedisSettings { refusal_cache: true, ..settings }).await;
        for round in 0..50 {
            let algorithm = Algorithm::ALL[round % Algorithm::ALL.len()];
            let nodes = if round % 4 == 3 { &remembering } else { &asking };
            let gauge = Gauge::a_day(algorithm, 100);
            assert_eq!(admitted_of(nodes, &[gauge], 2_000).await, 100, "round {round}, {algorithm}");
        }
    });
    eprintln!("50 rounds of 100 admitted of 2,000 through {NODES} nodes in {:?}", started.elapsed());
}

#[test]
fn pair_of_limits_is_charged_atomically() {
    let server = RedisServer::start();
    runtime().block_on(async {
        let nodes = nodes(&exact(single(server.address()))).await;
        for one in Algorithm::ALL {
            for other in Algorithm::ALL {
                let pair = [Gauge::a_day(one, 40), Gauge::a_day(other, 60)];
                assert_eq!(admitted_of(&nodes, &pair, 300).await, 40, "{one} and {other}");
                let left = [remaining(&nodes[0], &pair[0]).await, remaining(&nodes[0], &pair[1]).await];
                assert_eq!(left, [0, 20], "{one} and {other}");
            }
        }
    });
}

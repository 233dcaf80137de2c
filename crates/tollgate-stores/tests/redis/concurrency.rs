//! Many concurrent callers through several nodes: exactly the limit is admitted, and decisions are atomic.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tollgate::Span;
use tollgate::algorithms::Outcome;
use tollgate::limit::{Algorithm, Limit, Window};
use tollgate_stores::redis::{RedisCounters, RedisSettings};
use tollgate_testkit::RedisServer;

use crate::harness::limits::{Gauge, charges};
use crate::harness::{exact, now, open, patient, runtime, single};

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

/// Nodes that delay the requests of one queue start them one after another, as one node would.
#[test]
fn throttle_keeps_its_rate_over_a_fleet() {
    const INTERVAL: u64 = 5_000;
    let server = RedisServer::start();
    let mut starts: Vec<u64> = runtime().block_on(async {
        let window = Window::Length(Span::from_secs(1));
        let delay = Some(Span::from_millis(400));
        let limit = Limit::with_options(Algorithm::LeakyBucket, 200, window, Some(200), delay).unwrap();
        let gauge = Arc::new(Gauge::new(limit));
        let mut callers = Vec::new();
        for _ in 0..4 {
            let (store, gauge) = (open(&patient(single(server.address()))).await, Arc::clone(&gauge));
            callers.push(tokio::spawn(async move {
                let mut starts = Vec::new();
                let begun = Instant::now();
                while begun.elapsed() < Duration::from_secs(2) {
                    let charges = charges([&*gauge], 1);
                    let (verdicts, at) = store.charge_all_timed(&charges, now()).await.unwrap();
                    match (verdicts.verdicts[0].outcome, at) {
                        (Outcome::Admit { delay }, Some(at)) => starts.push((at + delay).as_micros()),
                        _ => tokio::time::sleep(Duration::from_millis(3)).await,
                    }
                }
                starts
            }));
        }
        let mut starts = Vec::new();
        for caller in callers {
            starts.extend(caller.await.unwrap());
        }
        starts
    });
    starts.sort_unstable();
    assert!(starts.len() > 300, "{} starts", starts.len());
    assert!(starts.windows(2).all(|pair| pair[1] - pair[0] >= INTERVAL), "two requests start too close");
}

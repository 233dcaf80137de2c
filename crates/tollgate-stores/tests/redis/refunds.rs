//! Refunds on real servers: what is kept fits the limit, and a failing server only counts too much.

use std::time::{Duration, Instant};

use tokio::time::sleep;
use tollgate::counters::conformance::Reference;
use tollgate::counters::{Charge, ChargeMark, Charges, CounterStore, Refund, RefundOutcome, RefundOutcomes};
use tollgate::limit::Algorithm;
use tollgate::{Span, Timestamp};
use tollgate_stores::redis::{RedisCounters, RedisSettings};
use tollgate_testkit::{Fault, FaultProxy, RedisServer};

use crate::harness::limits::{Gauge, charges, limit};
use crate::harness::{exact, now, open, patient, runtime, single};

fn refundable(gauge: &Gauge, cost: u32) -> Charges<'_> {
    let mut all = charges([gauge], cost);
    all.charges[0].refundable = true;
    all
}

/// Charges a refundable cost. Returns its mark and the server's clock, or `None` if it was refused.
async fn take(store: &RedisCounters, gauge: &Gauge, cost: u32) -> Option<(ChargeMark, Timestamp)> {
    let (verdicts, decided_at) = store.charge_all_timed(&refundable(gauge, cost), now()).await.unwrap();
    Some((verdicts.marks?[0]?, decided_at.unwrap()))
}

async fn give_back(store: &RedisCounters, gauge: &Gauge, cost: u32, mark: ChargeMark) -> RefundOutcome {
    let charge: Charge<'_> = refundable(gauge, cost).charges[0];
    let outcomes: RefundOutcomes = store.refund(&[Refund { charge, mark }], now()).await;
    outcomes[0]
}

async fn admits(store: &RedisCounters, gauge: &Gauge) -> bool {
    store.charge_all_timed(&charges([gauge], 1), now()).await.unwrap().0.verdicts[0].admits()
}

/// Pseudo-random numbers below `below`.
fn next(seed: &mut u64, below: u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 33) % below
}

/// Charges and refunds at random, and returns the charges that were kept.
async fn trace(nodes: &[RedisCounters; 2], gauge: &Gauge, mut seed: u64) -> (Vec<(u32, Timestamp)>, u32) {
    let mut kept: Vec<(u32, Timestamp, Option<ChargeMark>)> = Vec::new();
    let mut refunded = 0;
    for _ in 0..300 {
        let node = &nodes[usize::try_from(next(&mut seed, 2)).unwrap()];
        if next(&mut seed, 2) == 0 {
            sleep(Duration::from_millis(next(&mut seed, 20))).await;
        }
        if next(&mut seed, 8) < 7 || kept.is_empty() {
            let cost = u32::try_from(next(&mut seed, 2) + 1).unwrap();
            kept.extend(take(node, gauge, cost).await.map(|(mark, at)| (cost, at, Some(mark))));
            continue;
        }
        let back = usize::try_from(next(&mut seed, 5)).unwrap() + 1;
        let position = kept.len().saturating_sub(back);
        let (cost, _, mark) = &mut kept[position];
        let (cost, Some(mark)) = (*cost, mark.take()) else { continue };
        if give_back(node, gauge, cost, mark).await == RefundOutcome::Refunded {
            kept.remove(position);
            refunded += 1;
        }
    }
    (kept.into_iter().map(|(cost, at, _)| (cost, at)).collect(), refunded)
}

#[test]
fn charges_that_are_kept_fit_the_limit() {
    let server = RedisServer::start();
    runtime().block_on(async {
        let settings = exact(single(server.address()));
        let nodes = [open(&settings).await, open(&settings).await];
        for (seed, algorithm) in (1..).zip(Algorithm::ALL) {
            let gauge = Gauge::new(limit(algorithm, 6, Span::from_millis(150)));
            let (kept, refunded) = trace(&nodes, &gauge, seed).await;
            let mut reference = Reference::default();
            for (cost, at) in &kept {
                let verdict = reference.charge(&gauge.limit, *cost, *at);
                assert!(verdict.admits(), "{algorithm}: {cost} at {at:?} of {kept:?}");
            }
            assert!(refunded > 5 && kept.len() > 5, "{algorithm}: {refunded} refunded, {} kept", kept.len());
        }
    });
}

#[test]
fn refunds_of_many_charges_at_once_restore_the_limit() {
    let server = RedisServer::start();
    runtime().block_on(async {
        let store = open(&exact(single(server.address()))).await;
        for algorithm in Algorithm::ALL.into_iter().filter(|one| *one != Algorithm::LeakyBucket) {
            let gauge = Gauge::a_day(algorithm, 100);
            let mut marks = Vec::new();
            for _ in 0..40 {
                marks.push(take(&store, &gauge, 1).await.unwrap().0);
            }
            // More than a bucket keeps apart, in the order in which they were charged.
            for mark in marks {
                assert_eq!(give_back(&store, &gauge, 1, mark).await, RefundOutcome::Refunded, "{algorithm}");
            }
            let peek = store.charge_all_timed(&charges([&gauge], 0), now()).await.unwrap().0;
            assert_eq!(peek.verdicts[0].remaining, 100, "{algorithm}");
        }
    });
}

#[test]
fn refundable_counter_is_never_leased() {
    let server = RedisServer::start();
    runtime().block_on(async {
        let settings = RedisSettings { lease_capacity_min: 1, ..patient(single(server.address())) };
        let store = open(&settings).await;
        let gauge = Gauge::a_day(Algorithm::TokenBucket, 100_000);
        for _ in 0..300 {
            let (mark, _) = take(&store, &gauge, 1).await.unwrap();
            assert_eq!(give_back(&store, &gauge, 1, mark).await, RefundOutcome::Refunded);
        }
        assert_eq!(store.leases().served, 0);
    });
}

#[test]
fn refund_on_one_node_ends_refusals_of_another_in_a_second() {
    let server = RedisServer::start();
    runtime().block_on(async {
        let settings = patient(single(server.address()));
        let (one, other) = (open(&settings).await, open(&settings).await);
        let gauge = Gauge::a_day(Algorithm::FixedWindow, 1);
        let (mark, _) = take(&one, &gauge, 1).await.unwrap();
        assert!(!admits(&other, &gauge).await);
        assert_eq!(give_back(&one, &gauge, 1, mark).await, RefundOutcome::Refunded);
        let started = Instant::now();
        while !admits(&other, &gauge).await {
            assert!(started.elapsed() < Duration::from_secs(10), "still refused");
            sleep(Duration::from_millis(20)).await;
        }
    });
}

#[test]
fn refund_without_a_reply_is_lost_within_the_timeout() {
    let server = RedisServer::start();
    let proxy = FaultProxy::in_front_of(server.address());
    runtime().block_on(async {
        let timeout = Duration::from_millis(200);
        let settings = RedisSettings { timeout, ..exact(single(proxy.address())) };
        let store = open(&settings).await;
        let gauge = Gauge::a_day(Algorithm::FixedWindow, 2);
        let (mark, _) = take(&store, &gauge, 1).await.unwrap();
        proxy.set(Fault::HalfOpen);
        let started = Instant::now();
        assert_eq!(give_back(&store, &gauge, 1, mark).await, RefundOutcome::Lost);
        assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    });
}

//! A cached refusal is what the server would reply.

use std::time::Duration;

use tokio::runtime::Runtime;
use tollgate::Span;
use tollgate::algorithms::Outcome;
use tollgate::counters::{Charges, CounterAdmin, CounterStore, Effect, Verdicts};
use tollgate::limit::Algorithm;
use tollgate_stores::redis::RedisCounters;
use tollgate_testkit::{RedisServer, wait_until};

use crate::harness::limits::{Gauge, Watched, charges, limit};
use crate::harness::{now, open, patient, runtime, single};

/// Waits reported a little later are shorter by that.
const DRIFT: Span = Span::from_secs(5);

struct Node {
    store: RedisCounters,
    runtime: Runtime,
    _server: RedisServer,
}

impl Node {
    fn new() -> Self {
        let (server, runtime) = (RedisServer::start(), runtime());
        let store = runtime.block_on(open(&patient(single(server.address()))));
        Node { store, runtime, _server: server }
    }

    fn ask(&self, charges: &Charges<'_>) -> Verdicts {
        self.runtime.block_on(self.store.charge_all_timed(charges, now())).unwrap().0
    }

    /// A verdict from the cache. An entry lives for a second: on a slow machine it has to be fetched again.
    #[track_caller]
    fn ask_memory(&self, charges: &Charges<'_>) -> Verdicts {
        for _ in 0..50 {
            let before = self.store.cached_refusals();
            let verdicts = self.ask(charges);
            if self.store.cached_refusals() > before {
                return verdicts;
            }
        }
        panic!("never served from the cache");
    }
}

fn waits(verdicts: &Verdicts) -> Vec<Option<Span>> {
    let wait = |outcome| match outcome {
        Outcome::Refuse { retry_after } => Some(retry_after),
        _ => None,
    };
    verdicts.verdicts.iter().map(|verdict| wait(verdict.outcome)).collect()
}

/// Both report the same for every limit.
#[track_caller]
fn assert_same(remembered: &Verdicts, result: &Verdicts) {
    let remaining =
        |verdicts: &Verdicts| verdicts.verdicts.iter().map(|verdict| verdict.remaining).collect::<Vec<_>>();
    assert_eq!(remaining(remembered), remaining(result));
    for (later, earlier) in waits(remembered).into_iter().zip(waits(result)) {
        assert_eq!(later.is_some(), earlier.is_some(), "{remembered:?} {result:?}");
        let (later, earlier) = (later.unwrap_or(Span::ZERO), earlier.unwrap_or(Span::ZERO));
        assert!(later <= earlier && later + DRIFT >= earlier, "{later:?} {earlier:?}");
    }
}

fn an_hour(requests: u32) -> Gauge {
    Gauge::new(limit(Algorithm::TokenBucket, requests, Span::from_secs(3_600)))
}

#[test]
fn cached_refusal_reports_every_limit() {
    let node = Node::new();
    let (quick, slow, open) =
        (an_hour(300), Gauge::a_day(Algorithm::TokenBucket, 300), Gauge::a_day(Algorithm::FixedWindow, 900));
    let mut shadow = an_hour(300);
    shadow.effect = Effect::Shadow;
    assert!(waits(&node.ask(&charges([&quick, &slow, &open, &shadow], 300))).iter().all(Option::is_none));
    for cost in [40, 80, 300] {
        let question = charges([&quick, &slow, &open, &shadow], cost);
        let result = node.ask(&question);
        assert!(waits(&result)[1] > waits(&result)[0]);
        assert_same(&node.ask_memory(&question), &result);
    }
}

#[test]
fn other_charges_miss_the_cache() {
    let node = Node::new();
    let (everybody, one) = (an_hour(30), Gauge::a_day(Algorithm::TokenBucket, 30));
    node.ask(&charges([&everybody], 30));
    node.ask(&charges([&one], 30));
    let result = node.ask(&charges([&everybody], 10));
    assert_same(&node.ask_memory(&charges([&everybody], 10)), &result);
    let both = waits(&node.ask(&charges([&everybody, &one], 10)));
    assert!(both[1].unwrap() > both[0].unwrap() + Span::from_secs(3_600), "{both:?}");
}

#[test]
fn client_in_cooldown_gets_verdicts_of_its_limits() {
    let node = Node::new();
    let (watched, quick, slow) = (
        Watched::cooldown_for(Span::from_secs(600)),
        an_hour(300),
        Gauge::a_day(Algorithm::TokenBucket, 300),
    );
    let question =
        |cost| Charges { penalty: Some(watched.penalty(u32::MAX)), ..charges([&quick, &slow], cost) };
    node.ask(&question(300));
    for cost in [60, 0, 90, 200] {
        let result = node.ask(&question(cost));
        if cost > 0 {
            assert!(waits(&result)[1].unwrap() > Span::from_secs(10_000), "{result:?}");
        }
        let remembered = node.ask_memory(&question(cost));
        assert_same(&remembered, &result);
        assert!(remembered.in_cooldown && remembered.cooldown.unwrap() + DRIFT >= result.cooldown.unwrap());
    }
}

#[test]
fn reset_or_charge_invalidates_the_cache() {
    let node = Node::new();
    let (small, large) =
        (Gauge::a_day(Algorithm::FixedWindow, 10), Gauge::a_day(Algorithm::FixedWindow, 900));
    node.ask(&charges([&small], 8));
    let question = charges([&small, &large], 5);
    node.ask(&question);
    assert_eq!(node.ask_memory(&question).verdicts[0].remaining, 2);
    node.ask(&charges([&small], 1));
    assert_eq!(node.ask(&question).verdicts[0].remaining, 1);
    node.ask_memory(&question);

    node.runtime.block_on(node.store.reset(&charges([&small], 0))).unwrap();
    assert!(node.ask(&question).verdicts[0].admits());
}

/// Another node may charge what is left, which lengthens the wait.
#[test]
fn retry_after_includes_charges_of_other_nodes() {
    let (server, runtime) = (RedisServer::start(), runtime());
    runtime.block_on(async {
        let settings = patient(single(server.address()));
        let nodes = [open(&settings).await, open(&settings).await];
        assert!(wait_until(Duration::from_secs(20), || nodes.iter().all(|node| node.nodes().get() == 2)));
        let gauge = an_hour(300);
        let ask = async |node: usize, cost: u32| {
            waits(&nodes[node].charge_all_timed(&charges([&gauge], cost), now()).await.unwrap().0)[0]
        };
        assert_eq!(ask(0, 250).await, None);
        let before = ask(0, 100).await.unwrap();
        assert_eq!(ask(1, 50).await, None);
        let after = ask(0, 100).await.unwrap();
        assert!(after > before + Span::from_secs(500), "{before:?} {after:?}");
        // A cost of one is cached: no node can charge the counter until it admits again.
        let cached = async || {
            ask(0, 1).await;
            nodes[0].cached_refusals() > 0
        };
        assert!(cached().await || cached().await || cached().await);
    });
}

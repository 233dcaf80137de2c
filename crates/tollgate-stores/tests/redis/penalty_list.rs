//! The penalty list with very many clients.

use std::time::Duration;

use tollgate::counters::{Charges, CounterAdmin};
use tollgate::limit::Algorithm;
use tollgate::penalties::PenaltyPolicy;
use tollgate_stores::redis::RedisCounters;
use tollgate_testkit::{RedisServer, wait_until};

use crate::harness::limits::{Gauge, Watched, charges};
use crate::harness::{exact, now, open, runtime, single};

/// Commits a violation: the client is in cooldown and on the list.
async fn violate(store: &RedisCounters, client: &Watched) {
    let gauge = Gauge::a_day(Algorithm::FixedWindow, 1);
    let ask = || Charges { penalty: Some(client.penalty(u32::MAX)), ..charges([&gauge], 1) };
    let mut in_cooldown = None;
    for _ in 0..2 {
        in_cooldown = store.charge_all_timed(&ask(), now()).await.unwrap().0.cooldown;
    }
    assert!(in_cooldown.is_some());
}

/// Adds this many others to the list, each with a later violation.
fn crowd(server: &RedisServer, list: &str, count: usize) {
    let script = "for n = 1, ARGV[1] do redis.call('ZADD', KEYS[1], '9' .. string.format('%015d', n), \
                  string.rep('a', 26) .. ':user:' .. n) end return 'OK'";
    assert_eq!(server.cli(&["EVAL", script, "1", list, &count.to_string()]), "OK");
}

/// The key of the list, once it exists: it is written in the background.
fn list_of(server: &RedisServer) -> String {
    let keys = || server.cli(&["KEYS", "*penalised*"]);
    assert!(wait_until(Duration::from_secs(10), || !keys().is_empty()));
    keys()
}

#[test]
fn long_penalty_list_is_bounded_and_pardonable() {
    let server = RedisServer::start();
    runtime().block_on(async {
        let store = open(&exact(single(server.address()))).await;
        let policy = PenaltyPolicy { violation_threshold: 1, ..PenaltyPolicy::default() };
        let (first, newest) = (Watched::new(policy.clone()), Watched::new(policy));
        violate(&store, &first).await;
        let list = list_of(&server);
        assert_eq!(store.penalized_clients(10, now()).await.unwrap().len(), 1);
        crowd(&server, &list, 60_000);
        assert_eq!(
            store.penalized_clients(10, now()).await.map(|result| result.len()),
            Ok(0),
            "the latest ten thousand have no record, and the search ends there"
        );
        assert_eq!(store.pardon(&format!("user:{}", first.name)).await, Ok(true), "listed clients are found");

        crowd(&server, &list, 100_500);
        violate(&store, &newest).await;
        // The list is cut to 100,000; a violation that is written at the same time may follow.
        let bounded = || server.cli(&["ZCARD", &list]).parse::<usize>().is_ok_and(|count| count <= 100_010);
        assert!(wait_until(Duration::from_secs(10), bounded), "{}", server.cli(&["ZCARD", &list]));
    });
}

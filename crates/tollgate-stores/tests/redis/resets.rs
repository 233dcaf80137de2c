//! A reset applies on every node, also without pub/sub, and is not undone by reconciliation.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::future::join;
use tokio::sync::broadcast::Receiver;
use tokio::time::{sleep, timeout};
use tollgate::counters::{CounterAdmin, CounterStore};
use tollgate::limit::Algorithm;
use tollgate::record::NoRecords;
use tollgate::{Endpoint, Id, Limiter, Request, RuleSet, Seed};
use tollgate_stores::redis::{Login, RedisCounters, RedisSettings, Secret, Topology};
use tollgate_testkit::{Fault, FaultProxy, RedisServer, wait_until};

use crate::harness::limits::{Gauge, charges};
use crate::harness::{address, exact, now, open, runtime, single};

const PATIENCE: Duration = Duration::from_secs(20);
const LIST: &str = "rl:{fleet}:resets";

/// A user that may do everything except subscribe.
fn deaf(topology: Topology) -> RedisSettings {
    let login = Login { user: Some("deaf".to_owned()), password: Some(Secret("secret".to_owned())) };
    RedisSettings { login, ..exact(topology) }
}

fn with_deaf_user() -> RedisServer {
    let server = RedisServer::start();
    let words = "ACL SETUSER deaf on >secret ~* &* +@all -subscribe";
    assert_eq!(server.cli(&words.split(' ').collect::<Vec<_>>()), "OK");
    server
}

/// The deciding part of a node: it counts in the fallback during an outage and drops what is reset.
fn node(store: &RedisCounters) -> Arc<Limiter<RedisCounters>> {
    let rules = "[[rules]]\nname = \"r\"\nper = [\"user\"]\nalgorithm = \"fixed_window\"\n\
                 limits = [{ requests = 100, window = \"30d\" }]";
    let rules = RuleSet::from_toml(rules).unwrap();
    let limiter = Arc::new(Limiter::with_records(rules, store.clone(), NoRecords, Seed([7; 16])));
    let (mut resets, heeding) = (store.fleet().resets(), Arc::clone(&limiter));
    tokio::spawn(async move {
        while let Ok(reset) = resets.recv().await {
            heeding.discard_fallback(&reset);
        }
    });
    limiter
}

fn request(user: &str) -> Request<'_> {
    let user = Some(Id::parse(user).unwrap());
    Request { user, ..Request::new(Endpoint::parse("/x").unwrap()) }
}

/// Counts this much of each user in the fallback.
async fn count_alone(node: &Limiter<RedisCounters>, users: &[&str], cost: u32) {
    for user in users {
        let look = Request { cost: 0, ..request(user) };
        while !node.check(&look, now()).await.degraded {}
        assert!(node.check(&Request { cost, ..request(user) }, now()).await.admits());
    }
}

async fn left(node: &Limiter<RedisCounters>, user: &str) -> Option<u32> {
    let result = node.snapshot().peek(&Request { cost: 0, ..request(user) }, now()).await;
    (!result.degraded).then(|| result.binding().unwrap().remaining())
}

async fn bring_all(node: &Limiter<RedisCounters>) {
    let bringing = async {
        while node.reconcile_status().pending + node.reconcile_status().in_flight > 0 {
            if node.reconcile(32, now()).await == 0 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    };
    timeout(PATIENCE, bringing).await.unwrap();
}

async fn hears_of(resets: &mut Receiver<Arc<[u128]>>, gauge: &Gauge) -> bool {
    let counter = gauge.subject.0 ^ gauge.counter.0;
    let heard = async { while !resets.recv().await.unwrap().contains(&counter) {} };
    timeout(PATIENCE, heard).await.is_ok()
}

/// A node may reconcile for minutes after the outage, long after it first read the reset log.
#[test]
fn reset_survives_reconciliation_without_pubsub() {
    let server = with_deaf_user();
    let proxy = FaultProxy::in_front_of(server.address());
    runtime().block_on(async {
        let impatient =
            RedisSettings { timeout: Duration::from_millis(300), ..deaf(single(proxy.address())) };
        let stores = [open(&impatient).await, open(&exact(single(server.address()))).await];
        let [cut_off, other] = [node(&stores[0]), node(&stores[1])];
        proxy.set(Fault::Drop);
        count_alone(&cut_off, &["alice", "dave"], 20).await;
        proxy.set(Fault::None);
        assert!(wait_until(PATIENCE, || stores[0].servers()[0].connected));
        // The first read after the outage has happened.
        let beats = server.commandstats("zadd");
        assert!(wait_until(PATIENCE, || server.commandstats("zadd") > beats + 4));
        other.snapshot().reset(&request("alice")).await.unwrap();
        bring_all(&cut_off).await;
        assert_eq!(left(&other, "dave").await, Some(80));
        assert_eq!(left(&other, "alice").await, Some(100));
    });
}

#[test]
fn node_without_pubsub_reads_the_reset_log() {
    let server = with_deaf_user();
    runtime().block_on(async {
        let stores =
            [open(&deaf(single(server.address()))).await, open(&exact(single(server.address()))).await];
        let mut resets = stores[0].fleet().resets();
        for _ in 0..2 {
            let gauge = Gauge::a_day(Algorithm::FixedWindow, 10);
            stores[1].reset(&charges([&gauge], 0)).await.unwrap();
            assert!(hears_of(&mut resets, &gauge).await);
        }
    });
}

/// Only the server's clock matters, and it may have been ahead.
#[test]
fn reset_is_found_after_clock_changes() {
    let server = with_deaf_user();
    runtime().block_on(async {
        let store = open(&deaf(single(server.address()))).await;
        let other = open(&exact(single(server.address()))).await;
        let mut resets = store.fleet().resets();
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_micros();
        let hour = Duration::from_hours(1).as_micros();
        for at in [now - hour, now + hour] {
            let gauge = Gauge::a_day(Algorithm::FixedWindow, 10);
            let name = format!("{:032x}", gauge.subject.0 ^ gauge.counter.0);
            server.cli(&["ZADD", LIST, &at.to_string(), &name]);
            assert!(hears_of(&mut resets, &gauge).await);
        }
        let gauge = Gauge::a_day(Algorithm::FixedWindow, 10);
        other.reset(&charges([&gauge], 0)).await.unwrap();
        assert!(hears_of(&mut resets, &gauge).await);
    });
}

#[test]
fn reset_is_applied_once() {
    let server = RedisServer::start();
    runtime().block_on(async {
        let stores =
            [open(&exact(single(server.address()))).await, open(&exact(single(server.address()))).await];
        let [own, mut others] = [stores[0].fleet().resets(), stores[1].fleet().resets()];
        assert!(wait_until(PATIENCE, || server
            .cli(&["PUBSUB", "NUMSUB", "rl:{fleet}:changes"])
            .ends_with('2')));
        let [gauge, next] = [(); 2].map(|()| Gauge::a_day(Algorithm::FixedWindow, 10));
        stores[0].reset(&charges([&gauge], 0)).await.unwrap();
        assert!(hears_of(&mut others, &gauge).await);
        let looks = server.commandstats("zrange");
        assert!(wait_until(PATIENCE, || server.commandstats("zrange") > looks + 4));
        assert!(others.is_empty() && own.is_empty());
        stores[0].reset(&charges([&next], 0)).await.unwrap();
        assert!(hears_of(&mut others, &next).await);
    });
}

/// The home server of a ring announces resets: without it, nothing is reset.
#[test]
fn reset_fails_while_the_home_server_is_down() {
    let servers = [RedisServer::start(), RedisServer::start()];
    let proxies = servers.each_ref().map(|server| FaultProxy::in_front_of(server.address()));
    runtime().block_on(async {
        let modulo =
            |addresses: [std::net::SocketAddr; 2]| exact(Topology::Modulo(addresses.map(address).into()));
        let impatient = modulo(proxies.each_ref().map(FaultProxy::address));
        let impatient = RedisSettings { timeout: Duration::from_millis(300), ..impatient };
        let direct = modulo(servers.each_ref().map(RedisServer::address));
        let stores = [open(&impatient).await, open(&direct).await];
        let [cut_off, other] = [node(&stores[0]), node(&stores[1])];
        let is_home = |server: &RedisServer| server.cli(&["EXISTS", "rl:{fleet}:nodes:1"]) == "1";
        let (home, away) = if is_home(&servers[0]) { (0, 1) } else { (1, 0) };
        let names: Vec<String> = (0..20).map(|number| format!("user-{number}")).collect();
        let mut users = Vec::new();
        for user in &names {
            let keys = || servers[away].cli(&["DBSIZE"]);
            let before = keys();
            assert!(other.check(&request(user), now()).await.admits());
            if keys() != before {
                users.push(user.as_str());
            }
        }
        assert!(users.len() >= 2, "{users:?}");
        for proxy in &proxies {
            proxy.set(Fault::Drop);
        }
        count_alone(&cut_off, &users[..2], 20).await;
        servers[home].kill9();
        assert!(wait_until(PATIENCE, || stores[1].servers().iter().any(|server| !server.connected)));
        assert!(other.snapshot().reset(&request(users[0])).await.is_err());
        proxies[away].set(Fault::None);
        bring_all(&cut_off).await;
        // Nothing was reset: both clients keep what they have consumed.
        assert_eq!(left(&other, users[1]).await, Some(79));
        assert_eq!(left(&other, users[0]).await, Some(79));
    });
}

/// The log is read before the reset is written, and the reconciled charges arrive after it.
#[test]
fn reset_beats_concurrent_reconciliation() {
    let server = RedisServer::start();
    let proxy = FaultProxy::in_front_of(server.address());
    runtime().block_on(async {
        let bringing = open(&exact(single(proxy.address()))).await;
        let resetting = open(&exact(single(server.address()))).await;
        proxy.set(Fault::Latency(Duration::from_millis(30)));
        for round in 0..30 {
            let gauge = Gauge::a_day(Algorithm::FixedWindow, 100);
            let mut held = charges([&gauge], 30);
            let reset = async {
                sleep(Duration::from_millis(round % 10)).await;
                resetting.reset(&charges([&gauge], 0)).await
            };
            let (reconciled, reset) = join(bringing.reconcile(&mut held, now()), reset).await;
            assert!(reconciled.is_ok() && reset.is_ok(), "{reconciled:?} {reset:?}");
            let seen = resetting.charge_all_timed(&charges([&gauge], 0), now()).await.unwrap().0;
            assert_eq!(seen.verdicts[0].remaining, 100, "round {round}");
        }
    });
}

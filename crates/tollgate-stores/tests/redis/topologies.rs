//! The conformance suite on every transport and topology.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use tollgate::counters::{Charges, CounterAdmin, StoreError};
use tollgate::limit::Algorithm;
use tollgate::penalties::PenaltyPolicy;
use tollgate_stores::redis::{
    Address, Login, RedisCounters, RedisSettings, Secret, ServerUrl, Tls, Topology, VIRTUAL_NODES_DEFAULT,
};
use tollgate_testkit::{RedisCluster, RedisOptions, RedisServer, SentinelFleet, wait_until};

use crate::harness::limits::{Gauge, Watched, charges};
use crate::harness::{
    Shared, address, all_conform_in_time, conforms, exact, now, open, patient, runtime, single,
};

fn unix_socket() -> Shared {
    let server = RedisServer::start_with(&RedisOptions { unix_socket: true, ..RedisOptions::default() });
    let socket = Address::parse(server.socket_path().to_str().unwrap()).unwrap();
    Shared::new(&patient(Topology::Single(socket)), server)
}

#[test]
fn unix_socket_conforms() {
    conforms(&unix_socket());
}

#[test]
fn other_database_conforms_and_leaves_the_first_alone() {
    let server = RedisServer::start();
    let url = ServerUrl::parse(&format!("{}/5", server.url())).unwrap();
    let settings = RedisSettings {
        timeout: Duration::from_secs(2),
        database: url.database,
        ..RedisSettings::new(Topology::Single(url.servers[0].clone()))
    };
    let databases = || server.cli(&["INFO", "keyspace"]);
    conforms(&Shared::new(&settings, ()));
    assert!(databases().contains("db5:") && !databases().contains("db0:"), "{}", databases());
}

/// A server that requires a client certificate.
fn strict_tls() -> (RedisServer, Tls) {
    let args = ["--tls-auth-clients", "yes"].map(str::to_owned).to_vec();
    let server = RedisServer::start_with(&RedisOptions { tls: true, args, ..RedisOptions::default() });
    let certificates = server.certificates();
    let read = |path| fs::read(path).unwrap();
    let tls = Tls {
        authorities: Some(read(&certificates.authority)),
        client_certificate: Some((read(&certificates.client), read(&certificates.client_key))),
        insecure: false,
    };
    (server, tls)
}

fn with_tls(server: &RedisServer, host: &str, tls: Tls) -> RedisSettings {
    let address = Address::Tcp { host: host.to_owned(), port: server.tls_address().port() };
    RedisSettings { tls: Some(tls), ..patient(Topology::Single(address)) }
}

fn tls() -> Shared {
    let (server, tls) = strict_tls();
    Shared::new(&with_tls(&server, "localhost", tls), server)
}

#[test]
fn tls_with_a_client_certificate_conforms() {
    conforms(&tls());
}

#[test]
fn wrong_certificates_refuse_all_requests() {
    let (server, tls) = strict_tls();
    let (_other, strange) = strict_tls();
    runtime().block_on(async {
        let by_address = open(&with_tls(&server, "127.0.0.1", tls.clone())).await;
        assert!(by_address.charge_all_timed(&charges([], 1), now()).await.is_ok());
        for (what, tls) in [
            ("no client certificate", Tls { client_certificate: None, ..tls.clone() }),
            (
                "client certificate of another authority",
                Tls { client_certificate: strange.client_certificate.clone(), ..tls.clone() },
            ),
            (
                "server certificate of another authority",
                Tls { authorities: strange.authorities.clone(), ..tls.clone() },
            ),
            ("server certificate unknown to the system", Tls { authorities: None, ..tls.clone() }),
        ] {
            let store = RedisCounters::open(&with_tls(&server, "localhost", tls)).unwrap();
            assert!(!store.connected(Duration::from_millis(500)).await, "{what}");
            let result = told_in_the_end(&store).await;
            eprintln!("{what}: {result:?}, {:?}", store.misconfiguration());
            assert_eq!(result, StoreError::Misconfigured, "{what}");
        }
    });
}

/// The error of charges once the reason for the missing connection is known. None may be admitted.
async fn told_in_the_end(store: &RedisCounters) -> StoreError {
    let (gauge, started) = (Gauge::a_day(Algorithm::TokenBucket, 1), Instant::now());
    loop {
        let error = store.charge_all_timed(&charges([&gauge], 1), now()).await.unwrap_err();
        if error == StoreError::Misconfigured || started.elapsed() > Duration::from_secs(30) {
            return error;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn servers(count: usize) -> Vec<RedisServer> {
    (0..count).map(|_| RedisServer::start()).collect()
}

fn addresses(servers: &[RedisServer]) -> Vec<Address> {
    servers.iter().map(|server| address(server.address())).collect()
}

fn ring() -> Shared {
    let servers = servers(3);
    let topology = Topology::Ring { servers: addresses(&servers), virtual_nodes: VIRTUAL_NODES_DEFAULT };
    Shared::new(&patient(topology), servers)
}

#[test]
fn ring_of_three_conforms() {
    conforms(&ring());
}

fn modulo() -> Shared {
    let servers = servers(3);
    Shared::new(&patient(Topology::Modulo(addresses(&servers))), servers)
}

#[test]
fn modulo_of_three_conforms() {
    conforms(&modulo());
}

fn sentinel() -> Shared {
    let fleet = SentinelFleet::start();
    let sentinels = fleet.sentinels().into_iter().map(address).collect();
    let master = fleet.master_name().to_owned();
    let topology = Topology::Sentinel { sentinels, master, login: Login::default() };
    Shared::new(&patient(topology), fleet)
}

#[test]
fn sentinel_master_conforms() {
    conforms(&sentinel());
}

fn cluster() -> Shared {
    let cluster = RedisCluster::start();
    // One address is enough to discover the others.
    let seeds = cluster.addresses().into_iter().take(1).map(address).collect();
    Shared::new(&patient(Topology::Cluster(seeds)), cluster)
}

#[test]
fn cluster_of_three_masters_conforms() {
    conforms(&cluster());
}

/// A topology and its servers.
type Start = (&'static str, fn() -> Shared);

#[test]
fn time_passes_alike_on_every_topology() {
    let starts: [Start; 7] = [
        ("unix socket", unix_socket),
        ("tls", tls),
        ("user with minimal ACL", user_with_few_rights),
        ("ring", ring),
        ("modulo", modulo),
        ("sentinel", sentinel),
        ("cluster", cluster),
    ];
    let started: Vec<(&str, Shared)> = thread::scope(|scope| {
        let starts = starts.map(|(name, start)| (name, scope.spawn(start)));
        starts.into_iter().map(|(name, start)| (name, start.join().unwrap())).collect()
    });
    all_conform_in_time(&started);
}

/// The minimal ACL of tollgate's user; `docs/redis.md` repeats this line.
/// A cluster also needs `+cluster|slots` and `+asking`, a sentinel master `+role` (tested in
/// `misconfigured.rs`), a database other than 0 `+select`.
const RIGHTS: &str = "resetchannels &rl:* ~rl:* -@all +ping +evalsha +script|load +time +info +get +set +del +exists \
                      +rename +pttl +pexpire +expireat +llen +lindex +lset +ltrim +rpush +rpop +zadd +zrem +zcard \
                      +zrange +zremrangebyrank +zremrangebyscore +hset +hdel +hget +hgetall +hrandfield +publish +subscribe";

fn with_user(rights: &str) -> RedisServer {
    let users = vec![format!("tollgate on >secret {rights}")];
    let options = RedisOptions { users, password: Some("another".to_owned()), ..RedisOptions::default() };
    RedisServer::start_with(&options)
}

fn as_user(server: &RedisServer) -> RedisSettings {
    let login = Login { user: Some("tollgate".to_owned()), password: Some(Secret("secret".to_owned())) };
    RedisSettings { login, ..exact(single(server.address())) }
}

fn user_with_few_rights() -> Shared {
    let server = with_user(RIGHTS);
    Shared::new(&RedisSettings { refusal_cache: true, ..as_user(&server) }, server)
}

#[test]
fn documented_acl_is_sufficient() {
    let server = with_user(RIGHTS);
    conforms(&Shared::new(&RedisSettings { refusal_cache: true, ..as_user(&server) }, ()));
    assert_eq!(server.cli(&["ACL", "LOG"]), "", "nothing was tried that is not allowed");
}

/// Refunding a charge of a sliding log uses a command of its own.
#[test]
fn documented_acl_allows_log_refunds() {
    let servers = [with_user(RIGHTS), with_user(RIGHTS)];
    let topology = Topology::Ring { servers: addresses(&servers), virtual_nodes: VIRTUAL_NODES_DEFAULT };
    runtime().block_on(async {
        let store = open(&RedisSettings { topology, ..as_user(&servers[0]) }).await;
        for _ in 0..12 {
            let log = |requests| Gauge::a_day(Algorithm::SlidingWindowLog, requests);
            let (roomy, full) = (log(9), log(1));
            let charge = async |gauges: &[&Gauge], cost| {
                let charges = charges(gauges.iter().copied(), cost);
                let verdicts = store.charge_all_timed(&charges, now()).await.unwrap().0;
                (verdicts.admitted(&charges), verdicts.verdicts[0].remaining)
            };
            assert!(charge(&[&full], 1).await.0);
            assert!(!charge(&[&roomy, &full], 1).await.0);
            let started = std::time::Instant::now();
            while charge(&[&roomy], 0).await.1 < 9 && started.elapsed() < Duration::from_secs(10) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            assert_eq!(charge(&[&roomy], 0).await.1, 9);
        }
        assert!(store.refunds() > 0);
        for server in &servers {
            assert_eq!(server.cli(&["ACL", "LOG"]), "", "nothing was tried that is not allowed");
        }
    });
}

/// Uses every feature of the store and returns the outcomes.
async fn exercise(settings: &RedisSettings) -> String {
    let Ok(store) = RedisCounters::open(settings) else { return "not opened".to_owned() };
    if !store.connected(Duration::from_secs(10)).await {
        return format!("not connected: {:?}", store.misconfiguration());
    }
    let policy = PenaltyPolicy { violation_threshold: 1, ..PenaltyPolicy::default() };
    let client = Watched::new(policy);
    let gauges: Vec<Gauge> = Algorithm::ALL.map(|algorithm| Gauge::a_day(algorithm, 2)).into();
    let mut result = Vec::new();
    for _ in 0..3 {
        let charges = Charges { penalty: Some(client.penalty(u32::MAX)), ..charges(&gauges, 1) };
        let answer = store.charge_all_timed(&charges, now()).await;
        result.push(answer.map(|(verdicts, _)| verdicts.admitted(&charges)));
    }
    // One new counter in sixteen removes expired ones.
    for _ in 0..300 {
        let _ = store.charge_all_timed(&charges([&Gauge::a_day(Algorithm::TokenBucket, 2)], 1), now()).await;
    }
    let penalised = store.penalized_clients(9, now()).await.map(|list| list.len());
    let reset = store.reset(&charges(&gauges, 1)).await;
    let pardoned = store.pardon(&format!("user:{}", client.name)).await;
    let set = store.fleet().set_shared_config("a", Some("b")).await;
    let config = store.fleet().shared_config(0).await.map(|config| config.map(|config| config.len()));
    let unset = store.fleet().set_shared_config("a", None).await;
    format!("{result:?} {penalised:?} {reset:?} {pardoned:?} {set:?} {config:?} {unset:?}")
}

/// Without any one of the permissions the server reports an error. Not tried, because they are rarely used:
/// LSET (two charges in one microsecond, refunds), RPOP (refunds), LTRIM (expired entries of a log),
/// EXISTS and RENAME (rolling upgrades), INFO (polled every few seconds).
#[test]
fn documented_acl_is_minimal() {
    let untried = ["+lset", "+rpop", "+ltrim", "+exists", "+rename", "+info"];
    let rights: Vec<&str> = RIGHTS.split_whitespace().filter(|right| right.starts_with('+')).collect();
    let server = with_user(RIGHTS);
    let set_user = |rights: &str| {
        let words = format!("ACL SETUSER tollgate reset on >secret {rights}");
        assert_eq!(server.cli(&words.split_whitespace().collect::<Vec<_>>()), "OK");
        assert_eq!(server.cli(&["ACL", "LOG", "RESET"]), "OK");
        server.script_flush();
    };
    let complains = || wait_until(Duration::from_secs(5), || !server.cli(&["ACL", "LOG"]).is_empty());
    runtime().block_on(async {
        let settings = as_user(&server);
        let result = exercise(&settings).await;
        assert_eq!(result, "[Ok(true), Ok(true), Ok(false)] Ok(1) Ok(6) Ok(true) Ok(()) Ok(Some(1)) Ok(())");
        assert_eq!(server.cli(&["ACL", "LOG"]), "");
        for right in rights.into_iter().filter(|right| !untried.contains(right)) {
            set_user(&format!("{RIGHTS} ").replace(&format!("{right} "), " "));
            exercise(&settings).await;
            assert!(complains(), "{right} is not needed");
        }
        for (right, narrower) in [("~rl:*", "~rl:1t*"), ("&rl:*", "&other:*")] {
            set_user(&RIGHTS.replace(right, narrower));
            exercise(&settings).await;
            assert!(complains(), "{right} is not needed");
        }
    });
}

//! Misconfigurations with real servers: never treated as an outage, so that nothing fails open, and reported with what
//! to do.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use tokio::runtime::Runtime;
use tollgate::counters::StoreError;
use tollgate::limit::Algorithm;
use tollgate_stores::redis::{Login, RedisCounters, RedisSettings, Secret, ServerStats, Topology};
use tollgate_testkit::{
    Fault, FaultProxy, RedisCluster, RedisOptions, RedisServer, SentinelFleet, wait_until,
};

use crate::harness::limits::{Gauge, charges};
use crate::harness::{address, exact, now, runtime, single};

const PATIENCE: Duration = Duration::from_secs(20);

struct Node {
    runtime: Runtime,
    store: RedisCounters,
}

impl Node {
    fn new(settings: &RedisSettings) -> Self {
        let runtime = runtime();
        let store = runtime.block_on(async { RedisCounters::open(settings) }).unwrap();
        Node { runtime, store }
    }

    fn charge(&self) -> Result<(), StoreError> {
        let gauge = Gauge::a_day(Algorithm::TokenBucket, 5);
        let charges = charges([&gauge], 1);
        self.runtime.block_on(self.store.charge_all_timed(&charges, now())).map(drop)
    }

    /// Waits until decisions fail as misconfigured with this text, and checks that they keep failing.
    fn is_misconfigured(&self, words: &str) {
        let result = wait_until(PATIENCE, || self.charge() == Err(StoreError::Misconfigured));
        assert!(result, "{:?} {:?} {:?}", self.charge(), self.store.misconfiguration(), self.store.servers());
        for _ in 0..20 {
            assert_eq!(self.charge(), Err(StoreError::Misconfigured));
        }
        let reason = self.store.misconfiguration().or(self.store.warning()).unwrap_or_default();
        assert!(reason.contains(words), "{reason}");
        eprintln!("{reason}");
    }

    fn is_well(&self) {
        assert!(
            wait_until(PATIENCE, || self.charge().is_ok()),
            "{:?} {:?}",
            self.charge(),
            self.store.misconfiguration()
        );
        assert_eq!(self.store.misconfiguration(), None);
    }
}

fn watched(fleet: &SentinelFleet, sentinels: &[SocketAddr], login: Login) -> RedisSettings {
    let sentinels = sentinels.iter().copied().map(address).collect();
    exact(Topology::Sentinel { sentinels, master: fleet.master_name().to_owned(), login })
}

fn password(password: &str) -> Login {
    Login { user: None, password: Some(Secret(password.to_owned())) }
}

#[test]
fn password_rejected_by_most_sentinels_is_misconfiguration() {
    let fleet = SentinelFleet::start();
    let sentinels = fleet.sentinels();
    let set = |sentinel: SocketAddr, rule: &str| {
        assert_eq!(fleet.server_at(sentinel).cli(&["ACL", "SETUSER", "default", "resetpass", rule]), "OK");
    };
    set(sentinels[0], ">right");
    Node::new(&watched(&fleet, &sentinels, Login::default())).is_well();
    for sentinel in &sentinels {
        set(*sentinel, ">right");
    }
    let node = Node::new(&watched(&fleet, &sentinels, Login::default()));
    node.is_misconfigured("NOAUTH");
    Node::new(&watched(&fleet, &sentinels, password("wrong"))).is_misconfigured("WRONGPASS");
    Node::new(&watched(&fleet, &sentinels, password("right"))).is_well();
    for sentinel in &sentinels {
        set(*sentinel, "nopass");
    }
    node.is_well();
}

#[test]
fn unknown_master_name_is_misconfiguration() {
    let fleet = SentinelFleet::start();
    let sentinels = fleet.sentinels();
    let settings = watched(&fleet, &sentinels, Login::default());
    let Topology::Sentinel { sentinels: named, login, .. } = settings.topology.clone() else { return };
    let other = Topology::Sentinel { sentinels: named, login, master: "nobody".to_owned() };
    Node::new(&exact(other)).is_misconfigured("sentinel_master");
    for sentinel in &sentinels {
        fleet.server_at(*sentinel).kill9();
    }
    let node = Node::new(&settings);
    assert!((0..200).all(|_| node.charge() == Err(StoreError::Unreachable)));
    assert_eq!(node.store.misconfiguration(), None);
}

#[test]
fn sentinel_with_old_view_is_outvoted() {
    let fleet = SentinelFleet::start();
    let dead = RedisServer::start();
    dead.kill9();
    let master = fleet.master();
    let replica = fleet.servers().iter().map(RedisServer::address).find(|server| *server != master).unwrap();
    let stale = FaultProxy::in_front_of(fleet.sentinels()[0]);
    let sentinels = [&[stale.address()], &fleet.sentinels()[..]].concat();
    let settings = watched(&fleet, &sentinels, Login::default());
    for named in [dead.address(), replica] {
        let port = named.port().to_string();
        stale.set(Fault::reply_to("SENTINEL", format!("*2\r\n$9\r\n127.0.0.1\r\n${}\r\n{port}", port.len())));
        let node = Node::new(&settings);
        node.is_well();
        assert_eq!(node.store.servers()[0].server, master.to_string(), "named {named}");
    }
}

/// Which server is polled first is random; with twelve nodes some poll the one with the old view.
#[test]
fn cluster_server_with_old_view_is_outvoted() {
    let server = RedisServer::start();
    let proxies = [(); 3].map(|()| FaultProxy::in_front_of(server.address()));
    let slot_map_naming = |port: u16| {
        let slots = format!("*1\r\n*3\r\n:0\r\n:16383\r\n*3\r\n$9\r\n127.0.0.1\r\n:{port}\r\n$1\r\nx");
        Fault::reply_to("CLUSTER", slots)
    };
    let gone = RedisServer::start();
    gone.kill9();
    proxies[0].set(slot_map_naming(gone.port()));
    proxies[1].set(slot_map_naming(server.port()));
    proxies[2].set(slot_map_naming(server.port()));
    let addresses = |proxies: &[FaultProxy]| proxies.iter().map(|proxy| address(proxy.address())).collect();
    for _ in 0..12 {
        Node::new(&exact(Topology::Cluster(addresses(&proxies)))).is_well();
    }
    // Of two that disagree either may be right: each is tried.
    for _ in 0..6 {
        Node::new(&exact(Topology::Cluster(addresses(&proxies[..2])))).is_well();
    }
}

#[test]
fn documented_acl_suffices_to_follow_a_master() {
    let fleet = SentinelFleet::with_quick_failover();
    let rights = "reset on >secret resetchannels &rl:* ~rl:* -@all +ping +evalsha +script|load +time +info +get +set \
                  +zadd +zcard +zrange +zremrangebyscore +hset +hget +hrandfield +hdel +pttl +expireat \
                  +subscribe +role";
    for server in fleet.servers() {
        let words: Vec<&str> =
            ["ACL", "SETUSER", "tollgate"].into_iter().chain(rights.split_whitespace()).collect();
        assert_eq!(server.cli(&words), "OK");
    }
    let login = Login { user: Some("tollgate".to_owned()), password: Some(Secret("secret".to_owned())) };
    let node = Node::new(&RedisSettings { login, ..watched(&fleet, &fleet.sentinels(), Login::default()) });
    node.is_well();
    let old = fleet.kill_master();
    let new = fleet.wait_for_new_master(old, Duration::from_secs(30));
    node.is_well();
    assert_eq!(node.store.servers()[0].server, new.to_string());
    for server in fleet.servers().iter().filter(|server| server.is_running()) {
        assert_eq!(server.cli(&["ACL", "LOG"]), "");
    }
}

#[test]
fn wrong_topology_or_database_is_misconfiguration() {
    let server = RedisServer::start();
    let here = address(server.address());
    let sentinels = vec![here.clone()];
    let sentinel = Topology::Sentinel { sentinels, master: "gate".to_owned(), login: Login::default() };
    Node::new(&exact(sentinel)).is_misconfigured("no sentinel");
    Node::new(&exact(Topology::Cluster(vec![here.clone()]))).is_misconfigured("topology = \"single\"");
    let settings = RedisSettings { database: 99, ..exact(Topology::Single(here)) };
    Node::new(&settings).is_misconfigured("DB index is out of range");
}

#[test]
fn cluster_server_used_as_single_is_misconfiguration() {
    let cluster = RedisCluster::start();
    for server in cluster.masters() {
        let node = Node::new(&exact(single(server)));
        // One of the three holds the fleet's keys and a third of the clients, which it serves.
        let result = wait_until(PATIENCE, || node.charge() == Err(StoreError::Misconfigured));
        assert!(result, "{:?}", node.charge());
        for _ in 0..50 {
            assert!(matches!(node.charge(), Ok(()) | Err(StoreError::Misconfigured)));
            let reason = node.store.misconfiguration().unwrap_or_default();
            assert!(
                reason.contains("topology = \"cluster\""),
                "success of some decisions does not end it: {reason}"
            );
        }
    }
    let seeds: Vec<_> = cluster.addresses().into_iter().map(address).collect();
    let settings = RedisSettings { login: password("wrong"), ..exact(Topology::Cluster(seeds)) };
    Node::new(&settings).is_misconfigured("WRONGPASS");
}

/// An address of this machine other than loopback; none without a network.
fn own_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    Some(socket.local_addr().ok()?.ip()).filter(|ip| !ip.is_loopback() && !ip.is_unspecified())
}

#[test]
fn protected_mode_is_misconfiguration_with_backoff() {
    let Some(ip) = own_address() else { return };
    let server = RedisServer::with(&["--bind", "0.0.0.0", "--protected-mode", "yes"]);
    let node = Node::new(&exact(single((ip, server.port()).into())));
    node.is_misconfigured("protected mode");
    let dials = || node.store.servers()[0].dials;
    // Exponential backoff: more than a few attempts in the first seconds would mean none.
    let (before, seconds) = (dials(), 3);
    std::thread::sleep(Duration::from_secs(seconds));
    assert!(dials() - before <= 5 * seconds, "{} dials in {seconds} s", dials() - before);
    assert_eq!(server.cli(&["CONFIG", "SET", "protected-mode", "no"]), "OK");
    node.is_well();
}

#[test]
fn maxclients_is_an_outage() {
    for login in [Login::default(), password("right")] {
        let options = RedisOptions {
            password: login.password.clone().map(|secret| secret.0),
            ..RedisOptions::default()
        };
        let server = RedisServer::start_with(&options);
        server.cli(&["CONFIG", "SET", "maxclients", "1"]);
        let node = Node::new(&RedisSettings { login, ..exact(single(server.address())) });
        let result = wait_until(PATIENCE, || {
            node.store.servers()[0]
                .error
                .as_ref()
                .is_some_and(|words| words.contains("max number of clients"))
        });
        assert!(result, "{:?}", node.store.servers());
        assert!((0..50).all(|_| node.charge() == Err(StoreError::Unreachable)));
        server.cli(&["CONFIG", "SET", "maxclients", "100"]);
        node.is_well();
    }
}

#[test]
fn tls_mismatch_is_hinted() {
    let server = RedisServer::start_with(&RedisOptions { tls: true, ..RedisOptions::default() });
    let tls = Some(tollgate_stores::redis::Tls { insecure: true, ..Default::default() });
    for settings in
        [RedisSettings { tls, ..exact(single(server.address())) }, exact(single(server.tls_address()))]
    {
        let node = Node::new(&settings);
        let hinted = wait_until(PATIENCE, || {
            node.store.servers()[0].error.as_ref().is_some_and(|words| words.contains("speak TLS?"))
        });
        assert!(hinted, "{:?}", node.store.servers());
    }
}

#[test]
fn forbidden_script_load_refuses_all_decisions() {
    let server = RedisServer::start();
    let node = Node::new(&exact(single(server.address())));
    node.is_well();
    assert_eq!(server.cli(&["ACL", "SETUSER", "default", "-script|load"]), "OK");
    server.script_flush();
    node.is_misconfigured("script|load");
    assert_eq!(server.cli(&["ACL", "SETUSER", "default", "+script|load"]), "OK");
    node.is_well();
}

/// The server reports that a command of the script is forbidden, but not which one.
#[test]
fn permission_missing_in_the_script_is_named() {
    let server = RedisServer::start();
    let node = Node::new(&exact(single(server.address())));
    node.is_well();
    for (right, words) in [("hset", "HSET"), ("hget", "HGET"), ("time", "TIME")] {
        assert_eq!(server.cli(&["ACL", "SETUSER", "default", &format!("-{right}")]), "OK");
        let refused = wait_until(PATIENCE, || {
            node.charge() == Err(StoreError::Misconfigured)
                && node.store.misconfiguration().is_some_and(|reason| reason.contains(words))
        });
        assert!(refused, "{right}: {:?} {:?}", node.store.misconfiguration(), node.store.warning());
        assert_eq!(server.cli(&["ACL", "SETUSER", "default", &format!("+{right}")]), "OK");
        node.is_well();
    }
    assert_eq!(server.cli(&["ACL", "SETUSER", "default", "resetkeys", "~rl:{fleet}*"]), "OK");
    node.is_misconfigured("NOPERM");
    assert!(node.store.misconfiguration().is_some(), "{:?}", node.store.warning());
}

/// Other decisions do not need the permission: their success does not hide the problem.
#[test]
fn permission_for_some_decisions_only_is_reported() {
    let server = RedisServer::start();
    let node = Node::new(&exact(single(server.address())));
    node.is_well();
    assert_eq!(server.cli(&["ACL", "SETUSER", "default", "-llen"]), "OK");
    let log = Gauge::a_day(Algorithm::SlidingWindowLog, 5);
    let charge = || node.runtime.block_on(node.store.charge_all_timed(&charges([&log], 1), now())).map(drop);
    assert!(wait_until(PATIENCE, || charge() == Err(StoreError::Misconfigured)), "{:?}", charge());
    node.is_well();
    let words = node.store.warning().unwrap_or_default();
    assert!(words.contains("LLEN") && words.contains(&log.rule), "{words}");
}

#[test]
fn renamed_evalsha_refuses_all_decisions() {
    let server = RedisServer::with(&["--rename-command", "EVALSHA", ""]);
    let node = Node::new(&exact(single(server.address())));
    node.is_misconfigured("EVALSHA");
    let refusal = node.store.misconfiguration().unwrap_or_default();
    assert!(refusal.contains("EVALSHA"), "{refusal} {:?}", node.store.warning());
}

/// A key of another type, or with invalid bytes: the decision is refused, and the key is reported.
#[test]
fn unusable_counter_is_named() {
    let server = RedisServer::start();
    let node = Node::new(&exact(single(server.address())));
    node.is_well();
    let gauge = Gauge::a_day(Algorithm::TokenBucket, 9);
    let charge =
        || node.runtime.block_on(node.store.charge_all_timed(&charges([&gauge], 1), now())).map(drop);
    let keys = || server.cli(&["KEYS", "rl:1t*"]);
    server.flush_all();
    assert!(wait_until(PATIENCE, || charge().is_ok()));
    let key = keys();
    assert_eq!(key.lines().count(), 1, "{key}");
    let fields = server.command(&[b"HKEYS", key.as_bytes()]);
    let field = fields.items()[0].bytes().to_vec();
    server.command(&[b"HSET", key.as_bytes(), &field, b"?"]);
    assert!(wait_until(PATIENCE, || charge() == Err(StoreError::Misconfigured)), "{:?}", charge());
    assert!(node.store.warning().is_some_and(|words| words.contains(&key)), "{:?}", node.store.warning());
    server.cli(&["DEL", &key]);
    server.cli(&["SET", &key, "somebody else's"]);
    assert!(wait_until(PATIENCE, || {
        assert_eq!(charge(), Err(StoreError::Misconfigured));
        node.store.warning().is_some_and(|words| words.contains("WRONGTYPE") && words.contains(&key))
    }));
    assert_eq!(node.store.misconfiguration(), None, "others are not refused");
    server.cli(&["DEL", &key]);
    assert!(wait_until(PATIENCE, || charge().is_ok() && node.store.warning().is_none()));
}

/// A full server, and one that became a replica, still reply to PING.
#[test]
fn breaker_opens_for_read_only_and_full_servers() {
    let server = RedisServer::with(&["--maxmemory-policy", "noeviction"]);
    let node = Node::new(&exact(single(server.address())));
    node.is_well();
    let faults = [
        (["CONFIG", "SET", "maxmemory", "1"], ["CONFIG", "SET", "maxmemory", "0"], "OOM"),
        (["REPLICAOF", "127.0.0.1", "1", ""], ["REPLICAOF", "NO", "ONE", ""], "READONLY"),
        (
            ["CONFIG", "SET", "min-replicas-to-write", "1"],
            ["CONFIG", "SET", "min-replicas-to-write", "0"],
            "NOREPLICAS",
        ),
    ];
    let run = |words: [&str; 4]| {
        let words: Vec<&str> = words.into_iter().filter(|word| !word.is_empty()).collect();
        assert_eq!(server.cli(&words), "OK", "{words:?}");
    };
    for (turn, (fault, cure, code)) in (1_u64..).zip(faults) {
        run(fault);
        let server_stats = || node.store.servers().remove(0);
        assert!(wait_until(PATIENCE, || node.charge().is_err() && server_stats().breaker_open), "{code}");
        for _ in 0..60 {
            assert_eq!(node.charge(), Err(StoreError::Unreachable), "{code}");
            std::thread::sleep(Duration::from_millis(10)); // several probes
        }
        let ServerStats { breaker_openings, error, .. } = server_stats();
        assert_eq!(breaker_openings, turn, "{code}");
        assert!(error.as_ref().is_some_and(|words| words.starts_with(code)), "{code}: {error:?}");
        assert!(
            server_stats().faults.iter().any(|(fault, count)| *fault == code && *count >= 5),
            "{:?}",
            server_stats().faults
        );
        if code == "OOM" {
            let full = || node.store.server_info().first().is_some_and(|facts| facts.maxmemory == 1);
            assert!(wait_until(PATIENCE, full), "memory use is reported: {:?}", node.store.server_info());
        }
        run(cure);
        node.is_well();
    }
    assert!(server.cli(&["KEYS", "rl:{fleet}:*"]).contains("nodes"));
    let gone = wait_until(PATIENCE, || server.cli(&["EXISTS", "rl:{fleet}:probe"]) == "0");
    assert!(gone, "the probe key expires");
}

/// Each server is probed in one of its own slots: elsewhere it would redirect the probe.
#[test]
fn breaker_opens_for_full_cluster_server() {
    let cluster = RedisCluster::start();
    let seeds = cluster.addresses().into_iter().take(1).map(address).collect();
    let node = Node::new(&exact(Topology::Cluster(seeds)));
    node.is_well();
    for master in cluster.masters() {
        let set = |bytes: &str| cluster.server_at(master).cli(&["CONFIG", "SET", "maxmemory", bytes]);
        let server_stats =
            || node.store.servers().into_iter().find(|server| server.server == master.to_string()).unwrap();
        let before = server_stats().breaker_openings;
        set("1");
        assert!(
            wait_until(PATIENCE, || node.charge().is_err() && server_stats().breaker_open),
            "{:?}",
            server_stats()
        );
        for _ in 0..60 {
            assert!(matches!(node.charge(), Ok(()) | Err(StoreError::Unreachable)));
            std::thread::sleep(Duration::from_millis(10)); // several probes
        }
        assert_eq!(server_stats().breaker_openings, before + 1);
        assert!(server_stats().error.is_some_and(|words| words.starts_with("OOM")));
        set("0");
        assert!(wait_until(PATIENCE, || !server_stats().breaker_open), "{:?}", server_stats());
    }
}

//! A master, two replicas and three sentinels.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use crate::poll::{eventually, wait_until};
use crate::redis::{RedisOptions, RedisServer, Role, logs_of};
use crate::resp::Reply;

const MASTER_NAME: &str = "gate";
const REPLICAS: usize = 2;
const SENTINELS: usize = 3;
const START_DEADLINE: Duration = Duration::from_secs(20);
/// Longer than a busy machine suspends a process.
const DOWN_AFTER: Duration = Duration::from_secs(10);
/// Usually longer than a busy machine suspends a process; otherwise sentinels fail over once more.
const QUICK_DOWN_AFTER: Duration = Duration::from_millis(1_500);

// By default sentinels announce themselves every two seconds and look for replicas every ten, and a sentinel that was not
// scheduled for two seconds enters TILT mode for thirty.
const QUICK: &str = "SENTINEL DEBUG INFO-PERIOD 200 PUBLISH-PERIOD 100 ASK-PERIOD 200 TILT-PERIOD 500 \
    MIN-LINK-RECONNECT-PERIOD 100";

/// A running master, two replicas and three sentinels with a quorum of two. Killed on drop.
///
/// A master is considered down after ten seconds without a reply; the failover then takes a second or two.
#[derive(Debug)]
pub struct SentinelFleet {
    servers: Vec<RedisServer>,
    sentinels: Vec<RedisServer>,
}

impl SentinelFleet {
    /// Starts all servers; returns when the replicas are in sync and all sentinels know each other.
    pub fn start() -> Self {
        Self::with(&[])
    }

    /// Starts servers that consider a master down after 1.5 seconds, for tests that kill it. On a busy machine they may also
    /// replace a master that is alive.
    pub fn with_quick_failover() -> Self {
        Self::assemble(&[], QUICK_DOWN_AFTER)
    }

    /// Starts servers with more settings, which do not apply to the sentinels:
    /// `&["--min-replicas-to-write", "1", "--min-replicas-max-lag", "1"]`.
    pub fn with(args: &[&str]) -> Self {
        Self::assemble(args, DOWN_AFTER)
    }

    fn assemble(args: &[&str], down_after: Duration) -> Self {
        let master = RedisServer::with(args);
        let port = master.port().to_string();
        let replica_args = [args, &["--replicaof", "127.0.0.1", &port]].concat();
        let down_after = down_after.as_millis();
        let monitor = format!(
            "sentinel monitor {MASTER_NAME} 127.0.0.1 {port} 2\n\
             sentinel down-after-milliseconds {MASTER_NAME} {down_after}\n\
             sentinel failover-timeout {MASTER_NAME} 6000\n"
        );
        let (replicas, sentinels) = thread::scope(|scope| {
            let replicas = [(); REPLICAS].map(|()| scope.spawn(|| RedisServer::with(&replica_args)));
            let sentinels = [(); SENTINELS].map(|()| scope.spawn(|| start_sentinel(&monitor)));
            (replicas.map(|start| start.join().unwrap()), sentinels.map(|start| start.join().unwrap()))
        });
        let fleet =
            Self { servers: [master].into_iter().chain(replicas).collect(), sentinels: sentinels.into() };
        assert!(
            wait_until(START_DEADLINE, || fleet.is_complete()),
            "the sentinel fleet is not complete:\n{}",
            fleet.logs()
        );
        fleet
    }

    /// The addresses of the sentinels.
    pub fn sentinels(&self) -> Vec<SocketAddr> {
        self.sentinels.iter().map(RedisServer::address).collect()
    }

    /// The master name that the sentinels monitor.
    pub fn master_name(&self) -> &'static str {
        MASTER_NAME
    }

    /// The current master, as reported by a sentinel.
    pub fn master(&self) -> SocketAddr {
        self.sentinels.iter().find_map(master_of).expect("a running sentinel")
    }

    /// Master and replicas. The order does not change with a failover.
    pub fn servers(&self) -> &[RedisServer] {
        &self.servers
    }

    /// The server or sentinel at this address.
    pub fn server_at(&self, address: SocketAddr) -> &RedisServer {
        let all = self.servers.iter().chain(&self.sentinels);
        all.into_iter().find(|server| server.address() == address).expect("an address of the fleet")
    }

    /// Kills the current master (`SIGKILL`); returns its address.
    pub fn kill_master(&self) -> SocketAddr {
        let address = self.master();
        self.server_at(address).kill9();
        address
    }

    /// Waits until all running sentinels report the same master other than `old`, and its own role is master.
    pub fn wait_for_new_master(&self, old: SocketAddr, timeout: Duration) -> SocketAddr {
        let agreed = eventually(timeout, || self.agreed_master().filter(|master| *master != old));
        agreed.unwrap_or_else(|| panic!("no new master:\n{}", self.logs()))
    }

    fn agreed_master(&self) -> Option<SocketAddr> {
        let mut reported = self.sentinels.iter().filter(|sentinel| sentinel.is_running()).map(master_of);
        let master = reported.next()??;
        let role = self.server_at(master).try_command(&[b"ROLE"]).ok()?;
        (reported.all(|other| other == Some(master)) && role.items()[0].bytes() == b"master")
            .then_some(master)
    }

    fn is_complete(&self) -> bool {
        // A promoted replica has no such field.
        let in_sync = |replica: &RedisServer| {
            replica.info("replication").get("master_link_status").is_some_and(|status| status == "up")
        };
        self.servers[1..].iter().all(in_sync) && self.sentinels.iter().all(knows_all)
    }

    fn logs(&self) -> String {
        logs_of(self.servers.iter().chain(&self.sentinels))
    }
}

fn start_sentinel(monitor: &str) -> RedisServer {
    let sentinel = RedisServer::start_as(Role::Sentinel(monitor), &RedisOptions::default());
    assert_eq!(sentinel.cli(&QUICK.split(' ').collect::<Vec<_>>()), "OK");
    sentinel
}

fn master_of(sentinel: &RedisServer) -> Option<SocketAddr> {
    let reply =
        sentinel.try_command(&[b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", MASTER_NAME.as_bytes()]).ok()?;
    let Reply::Array(parts) = reply else { return None };
    format!("{}:{}", parts[0], parts[1]).parse().ok()
}

/// Whether a sentinel knows enough to fail over.
fn knows_all(sentinel: &RedisServer) -> bool {
    let ask = |section: &str| sentinel.command(&[b"SENTINEL", section.as_bytes(), MASTER_NAME.as_bytes()]);
    let sees = |server: &Reply, field: &str, value: &str| {
        field_of(server, field).is_some_and(|found| found == value)
    };
    let (replicas, sentinels) = (ask("REPLICAS"), ask("SENTINELS"));
    sees(&ask("MASTER"), "flags", "master")
        && replicas.items().iter().filter(|replica| sees(replica, "master-link-status", "ok")).count()
            == REPLICAS
        && replicas.items().iter().all(|replica| sees(replica, "flags", "slave"))
        && sentinels.items().iter().filter(|other| sees(other, "flags", "sentinel")).count() == SENTINELS - 1
}

/// A value in a flat list of names and values.
fn field_of(pairs: &Reply, name: &str) -> Option<String> {
    let pair = pairs.items().chunks(2).find(|pair| pair[0].bytes() == name.as_bytes())?;
    Some(pair[1].to_string())
}

//! A master, two replicas and the three sentinels that watch over them.

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
/// Longer than any machine lets a server wait for its turn.
const DEAD_AFTER: Duration = Duration::from_secs(10);
/// Longer than a busy machine does, as a rule: sentinels would fail over a second time.
const DEAD_SOON_AFTER: Duration = Duration::from_millis(1_500);

// Left alone, sentinels look for each other every two seconds and for replicas every ten, and one that was not
// scheduled for two seconds, as happens on a busy machine, does nothing for the next thirty.
const QUICK: [&[u8]; 12] = [
    b"SENTINEL",
    b"DEBUG",
    b"INFO-PERIOD",
    b"200",
    b"PUBLISH-PERIOD",
    b"100",
    b"ASK-PERIOD",
    b"200",
    b"TILT-PERIOD",
    b"500",
    b"MIN-LINK-RECONNECT-PERIOD",
    b"100",
];

/// A running fleet: one master, two replicas, three sentinels of which two must agree. Killed on drop.
///
/// A master is taken for dead after ten seconds of silence; a failover then takes a second or two.
#[derive(Debug)]
pub struct SentinelFleet {
    servers: Vec<RedisServer>,
    sentinels: Vec<RedisServer>,
}

impl SentinelFleet {
    /// Starts a fleet; returns when the replicas are in sync and all sentinels know all others.
    pub fn start() -> Self {
        Self::with(&[])
    }

    /// Starts a fleet that takes a master for dead after a second and a half: for tests that kill it. On a busy machine it may
    /// replace a master that only stood still.
    ///
    /// # Panics
    ///
    /// As [`SentinelFleet::with`].
    pub fn with_quick_failover() -> Self {
        Self::assemble(&[], DEAD_SOON_AFTER)
    }

    /// Starts a fleet whose servers, though not its sentinels, have more settings:
    /// `&["--min-replicas-to-write", "1", "--min-replicas-max-lag", "1"]`.
    ///
    /// # Panics
    ///
    /// With the logs, if the fleet does not come together within twenty seconds.
    pub fn with(args: &[&str]) -> Self {
        Self::assemble(args, DEAD_AFTER)
    }

    fn assemble(args: &[&str], dead_after: Duration) -> Self {
        let master = RedisServer::with(args);
        let port = master.port().to_string();
        let replica_args = [args, &["--replicaof", "127.0.0.1", &port]].concat();
        let dead_after = dead_after.as_millis();
        let monitor = format!(
            "sentinel monitor {MASTER_NAME} 127.0.0.1 {port} 2\n\
             sentinel down-after-milliseconds {MASTER_NAME} {dead_after}\n\
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
            "no fleet comes together:\n{}",
            fleet.logs()
        );
        fleet
    }

    /// Where the sentinels listen.
    pub fn sentinels(&self) -> Vec<SocketAddr> {
        self.sentinels.iter().map(RedisServer::address).collect()
    }

    /// The name by which sentinels know the master.
    pub fn master_name(&self) -> &'static str {
        MASTER_NAME
    }

    /// The master of the moment, as a sentinel names it.
    ///
    /// # Panics
    ///
    /// If no sentinel runs.
    pub fn master(&self) -> SocketAddr {
        self.sentinels.iter().find_map(named_by).expect("a sentinel that runs")
    }

    /// Master and replicas, in no order that means something after a failover.
    pub fn servers(&self) -> &[RedisServer] {
        &self.servers
    }

    /// The server or sentinel that listens there.
    ///
    /// # Panics
    ///
    /// If none of the fleet does.
    pub fn server_at(&self, address: SocketAddr) -> &RedisServer {
        let all = self.servers.iter().chain(&self.sentinels);
        all.into_iter().find(|server| server.address() == address).expect("an address of the fleet")
    }

    /// Kills the master of the moment (`SIGKILL`); where it was.
    pub fn kill_master(&self) -> SocketAddr {
        let address = self.master();
        self.server_at(address).kill9();
        address
    }

    /// Waits until all running sentinels name the same master, another than `old`, and it sees itself as one.
    ///
    /// # Panics
    ///
    /// With the logs, if that takes longer than `timeout`.
    pub fn wait_for_new_master(&self, old: SocketAddr, timeout: Duration) -> SocketAddr {
        let agreed = eventually(timeout, || self.agreed_master().filter(|master| *master != old));
        agreed.unwrap_or_else(|| panic!("no new master:\n{}", self.logs()))
    }

    fn agreed_master(&self) -> Option<SocketAddr> {
        let mut named = self.sentinels.iter().filter(|sentinel| sentinel.is_running()).map(named_by);
        let master = named.next()??;
        let role = self.server_at(master).try_command(&[b"ROLE"]).ok()?;
        (named.all(|other| other == Some(master)) && role.items()[0].bytes() == b"master").then_some(master)
    }

    fn is_complete(&self) -> bool {
        // A replica that was made a master has no such field.
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
    assert_eq!(sentinel.command(&QUICK).to_string(), "OK");
    sentinel
}

fn named_by(sentinel: &RedisServer) -> Option<SocketAddr> {
    let reply =
        sentinel.try_command(&[b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", MASTER_NAME.as_bytes()]).ok()?;
    let Reply::Array(parts) = reply else { return None };
    format!("{}:{}", parts[0], parts[1]).parse().ok()
}

/// Whether a sentinel could carry out a failover now.
fn knows_all(sentinel: &RedisServer) -> bool {
    let ask = |what: &str| sentinel.command(&[b"SENTINEL", what.as_bytes(), MASTER_NAME.as_bytes()]);
    let sees =
        |who: &Reply, field: &str, value: &str| field_of(who, field).is_some_and(|found| found == value);
    let (replicas, sentinels) = (ask("REPLICAS"), ask("SENTINELS"));
    sees(&ask("MASTER"), "flags", "master")
        && replicas.items().iter().filter(|replica| sees(replica, "master-link-status", "ok")).count()
            == REPLICAS
        && replicas.items().iter().all(|replica| sees(replica, "flags", "slave"))
        && sentinels.items().iter().filter(|other| sees(other, "flags", "sentinel")).count() == SENTINELS - 1
}

/// A field of a flat list of names and values.
fn field_of(pairs: &Reply, name: &str) -> Option<String> {
    let pair = pairs.items().chunks(2).find(|pair| pair[0].bytes() == name.as_bytes())?;
    Some(pair[1].to_string())
}

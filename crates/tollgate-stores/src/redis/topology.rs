//! Which server holds a counter: a single server, a sentinel master, a cluster, or a ring.

pub(crate) mod background;
mod cluster;
mod ring;
mod sentinel;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use hashbrown::HashMap;
use redis::{Cmd, FromRedisValue, Value};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tollgate::Timestamp;
use tollgate::identity::Subject;

use self::cluster::Cluster;
use self::ring::Ring;
use super::connection::error::{Cause, Fault};
use super::connection::server::Server;
use super::script::keys::{self, Tag};
use super::settings::{Address, RedisSettings, Topology};

/// Minimum timeout of commands that no request waits for.
pub(crate) const ADMIN_TIMEOUT_MIN: Duration = Duration::from_secs(1);
/// Cluster redirections followed by one call.
const REDIRECTS_MAX: usize = 3;
/// The pub/sub channel of the fleet.
pub(crate) const CHANNEL: &str = "changes";

/// The servers and the map from counters to servers.
pub(crate) struct ShardMap {
    layout: Layout,
    admin_timeout: Duration,
    /// Discovery; stopped when the map is dropped.
    _discovery: JoinSet<()>,
}

enum Layout {
    /// One server, or the current master of a sentinel group.
    Single(Arc<CurrentMaster>),
    Cluster(Arc<Cluster>),
    Ring(Ring),
}

/// Counters of one shard share a call: a cluster slot, or a server of a ring.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ShardId(u32);

/// The only server, or the master that the sentinels name.
struct CurrentMaster {
    /// Empty until it is discovered.
    server: ArcSwapOption<Server>,
    /// Notified when calls fail and the master may have changed.
    doubted: Notify,
    /// Whether the master has changed since `take_changes`.
    changed: AtomicBool,
    /// Why the master cannot be discovered, if only an operator can help.
    error: ArcSwapOption<Fault>,
}

/// Shards whose counters another server holds now.
pub(crate) enum OwnershipChanges {
    All,
    Slots(HashMap<u32, LeaseAction>),
}

/// What happens to a lease when another server takes over its counter.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum LeaseAction {
    Keep,
    /// The counter was migrated with its state: unused units are returned to the new server.
    Return,
    /// A replica took over and may not know of the lease. Returning units that it never counted would admit them twice, so
    /// they are lost.
    Revoke,
}

impl OwnershipChanges {
    /// Whether a server that took over may not know of charges that the previous one confirmed.
    pub(crate) fn lose_charges(&self) -> bool {
        match self {
            OwnershipChanges::All => true,
            OwnershipChanges::Slots(slots) => slots.values().any(|action| *action == LeaseAction::Revoke),
        }
    }

    pub(crate) fn action(&self, shard: ShardId) -> LeaseAction {
        match self {
            OwnershipChanges::All => LeaseAction::Revoke,
            OwnershipChanges::Slots(slots) => slots.get(&shard.0).copied().unwrap_or(LeaseAction::Keep),
        }
    }
}

impl ShardMap {
    /// Starts connecting and returns at once.
    pub(crate) fn open(settings: &RedisSettings) -> Result<Self, Fault> {
        let mut discovery = JoinSet::new();
        let layout = match &settings.topology {
            Topology::Single(address) => {
                Layout::Single(CurrentMaster::new(Some(Server::open(address, settings)?)))
            }
            Topology::Sentinel { sentinels, master, login } => {
                let watcher = sentinel::MasterWatcher::new(settings, sentinels, master, login)?;
                let master = watcher.current();
                discovery.spawn(watcher.run());
                Layout::Single(master)
            }
            Topology::Cluster(servers) => {
                let cluster = Arc::new(Cluster::open(servers, settings)?);
                discovery.spawn(Arc::clone(&cluster).follow());
                Layout::Cluster(cluster)
            }
            Topology::Ring { servers, virtual_nodes } => {
                Layout::Ring(Ring::consistent(open_all(servers, settings)?, *virtual_nodes))
            }
            Topology::Modulo(servers) => Layout::Ring(Ring::modulo(open_all(servers, settings)?)),
        };
        // A long decision timeout is meant for a distant server, and admin commands need no less there.
        let admin_timeout = ADMIN_TIMEOUT_MIN.max(settings.timeout);
        Ok(ShardMap { layout, admin_timeout, _discovery: discovery })
    }

    /// The shard of a subject's counters.
    pub(crate) fn shard_of(&self, subject: Subject) -> ShardId {
        self.shard_of_tag(Tag::new(subject).group())
    }

    /// The shard of the keys that the fleet shares.
    pub(crate) fn home(&self) -> ShardId {
        self.shard_of_tag(keys::FLEET.as_bytes())
    }

    fn shard_of_tag(&self, tag: &[u8]) -> ShardId {
        match &self.layout {
            Layout::Single(_) => ShardId(0),
            Layout::Cluster(_) => ShardId(u32::from(keys::slot(tag))),
            Layout::Ring(ring) => ShardId(ring.shard(tag)),
        }
    }

    /// Whether servers are independent: none replaces another that fails.
    pub(crate) fn is_ring(&self) -> bool {
        matches!(self.layout, Layout::Ring(_))
    }

    /// The shards with a reset log: all servers of a ring, one in other topologies.
    pub(crate) fn log_shards(&self) -> Vec<ShardId> {
        match &self.layout {
            Layout::Ring(ring) => (0_u32..).zip(ring.servers()).map(|(shard, _)| ShardId(shard)).collect(),
            Layout::Single(_) | Layout::Cluster(_) => vec![self.home()],
        }
    }

    /// Sends a command to a shard and follows redirections.
    pub(crate) async fn call(&self, shard: ShardId, command: Cmd, deadline: Instant) -> Result<Value, Fault> {
        match &self.layout {
            Layout::Single(master) => {
                let outcome = match master.server.load_full() {
                    Some(server) => call_outside_cluster(&server, command, deadline).await,
                    None => Err(Fault::NotSent),
                };
                if outcome.as_ref().is_err_and(Fault::trips_breaker) {
                    master.doubted.notify_one();
                }
                outcome
            }
            Layout::Ring(ring) => call_outside_cluster(ring.server(shard.0), command, deadline).await,
            Layout::Cluster(cluster) => cluster.call(shard.0, command, deadline, REDIRECTS_MAX).await,
        }
    }

    /// Sends a command that no request waits for.
    pub(crate) async fn admin(&self, shard: ShardId, command: Cmd) -> Result<Value, Fault> {
        self.call(shard, command, self.admin_deadline()).await
    }

    pub(crate) fn admin_timeout(&self) -> Duration {
        self.admin_timeout
    }

    pub(crate) fn admin_deadline(&self) -> Instant {
        Instant::now() + self.admin_timeout
    }

    /// Publishes a message to the nodes of the fleet. Delivery is not guaranteed.
    pub(crate) async fn publish(&self, message: &str) {
        let _ = self.admin(self.home(), publish(message)).await;
    }

    /// The clock of a shard's server.
    pub(crate) async fn time(&self, shard: ShardId) -> Result<Timestamp, Fault> {
        let reply = self.admin(shard, redis::cmd("TIME")).await?;
        let time = <(u64, u64)>::from_redis_value(reply);
        let (seconds, micros) = time.map_err(|_| Fault::misconfigured("unexpected reply to TIME"))?;
        Ok(Timestamp::from_micros(seconds.saturating_mul(1_000_000).saturating_add(micros)))
    }

    /// The server of a shard.
    pub(crate) fn server(&self, shard: ShardId) -> Option<Arc<Server>> {
        match &self.layout {
            Layout::Single(master) => master.server.load_full(),
            Layout::Ring(ring) => Some(Arc::clone(ring.server(shard.0))),
            Layout::Cluster(cluster) => cluster.owner(shard.0),
        }
    }

    /// All servers that hold counters.
    pub(crate) fn servers(&self) -> Vec<Arc<Server>> {
        match &self.layout {
            Layout::Single(master) => master.server.load_full().into_iter().collect(),
            Layout::Cluster(cluster) => cluster.masters(),
            Layout::Ring(ring) => ring.servers().to_vec(),
        }
    }

    /// Whether a call would likely be answered.
    pub(crate) fn is_reachable(&self, shard: ShardId) -> bool {
        self.server(shard).is_some_and(|server| server.is_connected() && !server.is_suspect())
    }

    /// Shards that other servers hold since the last call of this function.
    pub(crate) fn take_changes(&self) -> Option<OwnershipChanges> {
        match &self.layout {
            Layout::Single(master) => {
                master.changed.swap(false, Ordering::Relaxed).then_some(OwnershipChanges::All)
            }
            Layout::Ring(_) => None,
            Layout::Cluster(cluster) => {
                Some(cluster.take_changes()).filter(|slots| !slots.is_empty()).map(OwnershipChanges::Slots)
            }
        }
    }

    /// A warning if cluster slots have no owner.
    pub(crate) fn unassigned_slots(&self) -> Option<String> {
        match &self.layout {
            Layout::Single(_) | Layout::Ring(_) => None,
            Layout::Cluster(cluster) => cluster.unassigned_slots(),
        }
    }

    /// Calls not sent because their slot has no owner.
    pub(crate) fn unassigned_slot_calls(&self) -> u64 {
        match &self.layout {
            Layout::Single(_) | Layout::Ring(_) => 0,
            Layout::Cluster(cluster) => cluster.unassigned_slot_calls(),
        }
    }

    /// Why discovery fails, if only an operator can help; and whether earlier servers are still in use.
    pub(crate) fn discovery_error(&self) -> Option<(Arc<Fault>, bool)> {
        match &self.layout {
            Layout::Single(master) => {
                master.error.load_full().map(|fault| (fault, master.server.load().is_some()))
            }
            Layout::Cluster(cluster) => cluster.error().map(|fault| (fault, cluster.is_known())),
            Layout::Ring(_) => None,
        }
    }

    /// Why no server is known yet.
    pub(crate) fn no_servers_reason(&self) -> &'static str {
        match &self.layout {
            Layout::Single(_) => "no sentinel has named the master yet",
            Layout::Cluster(_) => "no server of the cluster has returned the slot map yet",
            Layout::Ring(_) => "no servers are configured",
        }
    }
}

impl CurrentMaster {
    fn new(server: Option<Server>) -> Arc<Self> {
        Arc::new(CurrentMaster {
            server: ArcSwapOption::new(server.map(Arc::new)),
            doubted: Notify::new(),
            changed: AtomicBool::new(false),
            error: ArcSwapOption::empty(),
        })
    }
}

/// Calls a server that must not redirect.
async fn call_outside_cluster(server: &Server, command: Cmd, deadline: Instant) -> Result<Value, Fault> {
    let fault = match server.call(command, false, deadline).await {
        Err(fault @ (Fault::Moved(_) | Fault::Ask(_) | Fault::Misconfigured(_))) => fault.outside_cluster(),
        other => return other,
    };
    if fault.cause() == Some(Cause::Topology) {
        server.reject_decisions(&fault);
    }
    Err(fault)
}

/// `PUBLISH` to the channel of the fleet.
fn publish(message: &str) -> Cmd {
    Cmd::publish(keys::shared(CHANNEL), message)
}

/// The rejection if most servers rejected discovery: a single one may be misconfigured or still starting.
fn majority_rejection(rejections: &[Fault], servers: usize) -> Option<Arc<Fault>> {
    let first = rejections.first().filter(|_| rejections.len() * 2 > servers);
    first.cloned().map(Arc::new)
}

fn open_all(addresses: &[Address], settings: &RedisSettings) -> Result<Vec<Arc<Server>>, Fault> {
    addresses.iter().map(|address| Server::open(address, settings).map(Arc::new)).collect()
}

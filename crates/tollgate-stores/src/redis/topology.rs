//! Which server a counter lives on.

mod cluster;
mod ring;
mod sentinel;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use arc_swap::ArcSwapOption;
use hashbrown::HashMap;
use redis::{Cmd, Value};
use tokio::task::JoinHandle;

use self::cluster::Cluster;
use self::ring::Ring;
use crate::redis::connection::error::Fault;
use crate::redis::connection::server::Server;
use crate::redis::script::keys::{self, Tag};
use crate::redis::settings::{RedisSettings, Topology};

/// A decision is sent on at most so often.
const REDIRECTS_MAX: usize = 3;

/// The way to the servers.
pub(crate) struct ShardMap {
    map: Map,
    tasks: Vec<JoinHandle<()>>,
}

enum Map {
    /// One server; which one may change.
    One(Arc<CurrentMaster>),
    Cluster(Arc<Cluster>),
    Ring(Ring),
}

/// The server of the moment.
pub(crate) struct CurrentMaster {
    /// Nothing until it is known which one.
    server: ArcSwapOption<Server>,
    /// Told when the server turns out not to be the one any more.
    doubted: tokio::sync::Notify,
    /// Whether it has changed since that was last asked.
    changed: AtomicBool,
    /// Why it cannot be known which one, if only an operator can help.
    trouble: ArcSwapOption<Fault>,
}

/// Where other servers count than before.
pub(crate) enum OwnershipChanges {
    Everywhere,
    /// In these slots of a cluster.
    InSlots(HashMap<u32, LeaseAction>),
}

/// What becomes of a lease when another server may hold its counter.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum LeaseAction {
    /// Nothing has changed for it.
    Keep,
    /// Its counter was handed over with all that is known of it, so what was not used is given back there.
    Return,
    /// A copy of its counter took over, which may not know of the slice: what was not used is lost, for to give back what
    /// was never counted would admit it twice.
    Revoke,
}

impl OwnershipChanges {
    pub(crate) fn action(&self, shard: ShardId) -> LeaseAction {
        match self {
            OwnershipChanges::Everywhere => LeaseAction::Revoke,
            OwnershipChanges::InSlots(slots) => slots.get(&shard.0).copied().unwrap_or(LeaseAction::Keep),
        }
    }
}

/// Counters in one shard share a call.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ShardId(u32);

impl ShardMap {
    /// Begins to connect.
    pub(crate) fn open(settings: &RedisSettings) -> Result<Self, Fault> {
        let mut tasks = Vec::new();
        let map = match &settings.topology {
            Topology::Single(address) => Map::One(CurrentMaster::new(Some(Server::open(address, settings)?))),
            Topology::Sentinel { sentinels, master, login } => {
                let watch = sentinel::Watch::new(settings, sentinels, master, login)?;
                let spot = watch.spot();
                tasks.push(tokio::spawn(watch.run()));
                Map::One(spot)
            }
            Topology::Cluster(servers) => {
                let cluster = Arc::new(Cluster::open(servers, settings)?);
                tasks.push(tokio::spawn(Arc::clone(&cluster).follow()));
                Map::Cluster(cluster)
            }
            Topology::Ring { servers, virtual_nodes } => {
                Map::Ring(Ring::consistent(open_all(servers, settings)?, *virtual_nodes))
            }
            Topology::Modulo(servers) => Map::Ring(Ring::modulo(open_all(servers, settings)?)),
        };
        Ok(ShardMap { map, tasks })
    }

    /// Where the counters of a subject are.
    pub(crate) fn shard(&self, tag: &Tag) -> ShardId {
        self.shard_of_tag(tag.group())
    }

    /// Where a name with this hash tag, or without one, is.
    pub(crate) fn shard_of_tag(&self, tag: &[u8]) -> ShardId {
        match &self.map {
            Map::One(_) => ShardId(0),
            Map::Cluster(_) => ShardId(u32::from(keys::slot(tag))),
            Map::Ring(ring) => ShardId(ring.shard(tag)),
        }
    }

    /// Whether servers are independent of each other: what is lost with one is lost with no other, and nothing takes its shard.
    pub(crate) fn is_ring(&self) -> bool {
        matches!(self.map, Map::Ring(_))
    }

    /// The other servers of a ring. Elsewhere another server takes the shard of one that is lost.
    pub(crate) fn other_shards(&self, shard: ShardId) -> Vec<ShardId> {
        match &self.map {
            Map::One(_) | Map::Cluster(_) => Vec::new(),
            Map::Ring(ring) => (0_u32..)
                .zip(ring.servers())
                .map(|(other, _)| ShardId(other))
                .filter(|other| *other != shard)
                .collect(),
        }
    }

    /// One call in one shard, sent on where the shard has moved to.
    pub(crate) async fn call(&self, shard: ShardId, command: Cmd, deadline: Instant) -> Result<Value, Fault> {
        match &self.map {
            Map::One(spot) => {
                let outcome = match spot.server.load_full() {
                    Some(server) => call_alone(&server, command, deadline).await,
                    None => Err(Fault::NotSent),
                };
                if outcome.as_ref().is_err_and(Fault::counts) {
                    spot.doubted.notify_one();
                }
                outcome
            }
            Map::Ring(ring) => call_alone(ring.server(shard.0), command, deadline).await,
            Map::Cluster(cluster) => cluster.call(shard.0, command, deadline, REDIRECTS_MAX).await,
        }
    }

    /// The server of a shard.
    pub(crate) fn server(&self, shard: ShardId) -> Option<Arc<Server>> {
        match &self.map {
            Map::One(spot) => spot.server.load_full(),
            Map::Ring(ring) => Some(Arc::clone(ring.server(shard.0))),
            Map::Cluster(cluster) => cluster.owner(shard.0),
        }
    }

    /// Whether another server has taken the shard.
    pub(crate) fn server_changed(&self, shard: ShardId, known: &str) -> bool {
        self.server(shard).is_some_and(|server| server.name() != known)
    }

    /// Where other servers count than when this was last asked.
    pub(crate) fn take_changes(&self) -> Option<OwnershipChanges> {
        match &self.map {
            Map::One(spot) => {
                spot.changed.swap(false, Ordering::Relaxed).then_some(OwnershipChanges::Everywhere)
            }
            Map::Ring(_) => None,
            Map::Cluster(cluster) => {
                Some(cluster.take_changes()).filter(|slots| !slots.is_empty()).map(OwnershipChanges::InSlots)
            }
        }
    }

    /// What part of the counters no server holds, in words.
    pub(crate) fn unserved(&self) -> Option<String> {
        match &self.map {
            Map::One(_) | Map::Ring(_) => None,
            Map::Cluster(cluster) => cluster.unserved(),
        }
    }

    /// Calls that were not made because no server holds their counters.
    pub(crate) fn unassigned_slot_calls(&self) -> u64 {
        match &self.map {
            Map::One(_) | Map::Ring(_) => 0,
            Map::Cluster(cluster) => cluster.unassigned_slot_calls(),
        }
    }

    /// Whether a call in this shard would likely be answered.
    pub(crate) fn reaches(&self, shard: ShardId) -> bool {
        self.server(shard).is_some_and(|server| server.is_connected() && !server.is_doubted())
    }

    /// Why it is not known which servers hold counters, if only an operator can help; and whether some are known from
    /// before, which are asked all the same.
    pub(crate) fn trouble(&self) -> Option<(Arc<Fault>, bool)> {
        match &self.map {
            Map::One(spot) => spot.trouble.load_full().map(|fault| (fault, spot.server.load().is_some())),
            Map::Cluster(cluster) => cluster.trouble().map(|fault| (fault, cluster.is_known())),
            Map::Ring(_) => None,
        }
    }

    /// Why no server is known, as long as there is none.
    pub(crate) fn no_servers_reason(&self) -> &'static str {
        match &self.map {
            Map::One(_) => "no sentinel has said yet which server is the master",
            Map::Cluster(_) => "no server of the cluster is known yet",
            Map::Ring(_) => "there are no servers",
        }
    }

    /// Every server that holds counters.
    pub(crate) fn servers(&self) -> Vec<Arc<Server>> {
        match &self.map {
            Map::One(spot) => spot.server.load_full().into_iter().collect(),
            Map::Cluster(cluster) => cluster.masters(),
            Map::Ring(ring) => ring.servers().to_vec(),
        }
    }
}

impl Drop for ShardMap {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl CurrentMaster {
    fn new(server: Option<Server>) -> Arc<Self> {
        Arc::new(CurrentMaster {
            server: ArcSwapOption::new(server.map(Arc::new)),
            doubted: tokio::sync::Notify::new(),
            changed: AtomicBool::new(false),
            trouble: ArcSwapOption::empty(),
        })
    }
}

/// One call to a server that has no others to send us on to.
async fn call_alone(server: &Server, command: Cmd, deadline: Instant) -> Result<Value, Fault> {
    let fault = match server.call(command, false, deadline).await {
        Err(fault @ (Fault::Moved(_) | Fault::Ask(_) | Fault::Misconfigured(_))) => fault.outside_a_cluster(),
        other => return other,
    };
    if fault.is_of_topology() {
        server.refuse(&fault);
    }
    Err(fault)
}

/// What so many servers say of how we are to find the counters: a refusal is one if most of them refuse, because one of
/// several may be strange, or just starting.
fn refusal_of_most(refusals: &[Fault], servers: usize) -> Option<Arc<Fault>> {
    let first = refusals.first().filter(|_| refusals.len() * 2 > servers);
    first.cloned().map(Arc::new)
}

fn open_all(
    addresses: &[crate::redis::settings::Address],
    settings: &RedisSettings,
) -> Result<Vec<Arc<Server>>, Fault> {
    addresses.iter().map(|address| Server::open(address, settings).map(Arc::new)).collect()
}

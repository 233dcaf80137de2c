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
use super::error::Fault;
use super::keys::{self, Tag};
use super::link::Link;
use super::settings::{RedisSettings, Topology};

/// A decision is sent on at most so often.
const REDIRECTS_MAX: usize = 3;

/// The way to the servers.
pub(super) struct Router {
    map: Map,
    tasks: Vec<JoinHandle<()>>,
}

enum Map {
    /// One server; which one may change.
    One(Arc<Spot>),
    Cluster(Arc<Cluster>),
    Ring(Ring),
}

/// The server of the moment.
pub(super) struct Spot {
    /// Nothing until it is known which one.
    link: ArcSwapOption<Link>,
    /// Told when the server turns out not to be the one any more.
    doubted: tokio::sync::Notify,
    /// Whether it has changed since that was last asked.
    changed: AtomicBool,
    /// Why it cannot be known which one, if only an operator can help.
    trouble: ArcSwapOption<Fault>,
}

/// Where other servers count than before.
pub(super) enum Changes {
    Everywhere,
    /// In these slots of a cluster.
    InSlots(HashMap<u32, Fate>),
}

/// What becomes of a lease when another server may hold its counter.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// Nothing has changed for it.
    Keep,
    /// Its counter was handed over with all that is known of it, so what was not used is given back there.
    GiveBack,
    /// A copy of its counter took over, which may not know of the slice: what was not used is lost, for to give back what
    /// was never counted would admit it twice.
    Revoke,
}

impl Changes {
    pub(super) fn fate(&self, place: Place) -> Fate {
        match self {
            Changes::Everywhere => Fate::Revoke,
            Changes::InSlots(slots) => slots.get(&place.0).copied().unwrap_or(Fate::Keep),
        }
    }
}

/// Counters in one place share a call.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Place(u32);

impl Router {
    /// Begins to connect.
    pub(super) fn open(settings: &RedisSettings) -> Result<Self, Fault> {
        let mut tasks = Vec::new();
        let map = match &settings.topology {
            Topology::Single(address) => Map::One(Spot::new(Some(Link::open(address, settings)?))),
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
                Map::Ring(Ring::consistent(links(servers, settings)?, *virtual_nodes))
            }
            Topology::Modulo(servers) => Map::Ring(Ring::modulo(links(servers, settings)?)),
        };
        Ok(Router { map, tasks })
    }

    /// Where the counters of a subject are.
    pub(super) fn place(&self, tag: &Tag) -> Place {
        self.place_of(tag.group())
    }

    /// Where a name with this hash tag, or without one, is.
    pub(super) fn place_of(&self, tag: &[u8]) -> Place {
        match &self.map {
            Map::One(_) => Place(0),
            Map::Cluster(_) => Place(u32::from(keys::slot(tag))),
            Map::Ring(ring) => Place(ring.place(tag)),
        }
    }

    /// Whether servers are independent of each other: what is lost with one is lost with no other, and nothing takes its place.
    pub(super) fn is_ring(&self) -> bool {
        matches!(self.map, Map::Ring(_))
    }

    /// The other servers of a ring. Elsewhere another server takes the place of one that is lost.
    pub(super) fn other_places(&self, place: Place) -> Vec<Place> {
        match &self.map {
            Map::One(_) | Map::Cluster(_) => Vec::new(),
            Map::Ring(ring) => (0_u32..)
                .zip(ring.links())
                .map(|(other, _)| Place(other))
                .filter(|other| *other != place)
                .collect(),
        }
    }

    /// One call in one place, sent on where the place has moved to.
    pub(super) async fn call(&self, place: Place, command: Cmd, deadline: Instant) -> Result<Value, Fault> {
        match &self.map {
            Map::One(spot) => {
                let outcome = match spot.link.load_full() {
                    Some(link) => call_alone(&link, command, deadline).await,
                    None => Err(Fault::NotDone),
                };
                if outcome.as_ref().is_err_and(Fault::counts) {
                    spot.doubted.notify_one();
                }
                outcome
            }
            Map::Ring(ring) => call_alone(ring.link(place.0), command, deadline).await,
            Map::Cluster(cluster) => cluster.call(place.0, command, deadline, REDIRECTS_MAX).await,
        }
    }

    /// The server of a place.
    pub(super) fn link(&self, place: Place) -> Option<Arc<Link>> {
        match &self.map {
            Map::One(spot) => spot.link.load_full(),
            Map::Ring(ring) => Some(Arc::clone(ring.link(place.0))),
            Map::Cluster(cluster) => cluster.owner(place.0),
        }
    }

    /// Whether another server has taken the place.
    pub(super) fn link_changed(&self, place: Place, known: &str) -> bool {
        self.link(place).is_some_and(|link| link.name() != known)
    }

    /// Where other servers count than when this was last asked.
    pub(super) fn take_changes(&self) -> Option<Changes> {
        match &self.map {
            Map::One(spot) => spot.changed.swap(false, Ordering::Relaxed).then_some(Changes::Everywhere),
            Map::Ring(_) => None,
            Map::Cluster(cluster) => {
                Some(cluster.take_changes()).filter(|slots| !slots.is_empty()).map(Changes::InSlots)
            }
        }
    }

    /// What part of the counters no server holds, in words.
    pub(super) fn unserved(&self) -> Option<String> {
        match &self.map {
            Map::One(_) | Map::Ring(_) => None,
            Map::Cluster(cluster) => cluster.unserved(),
        }
    }

    /// Calls that were not made because no server holds their counters.
    pub(super) fn unserved_calls(&self) -> u64 {
        match &self.map {
            Map::One(_) | Map::Ring(_) => 0,
            Map::Cluster(cluster) => cluster.unserved_calls(),
        }
    }

    /// Whether a call in this place would likely be answered.
    pub(super) fn reaches(&self, place: Place) -> bool {
        self.link(place).is_some_and(|link| link.is_connected() && !link.is_doubted())
    }

    /// Why it is not known which servers hold counters, if only an operator can help; and whether some are known from
    /// before, which are asked all the same.
    pub(super) fn trouble(&self) -> Option<(Arc<Fault>, bool)> {
        match &self.map {
            Map::One(spot) => spot.trouble.load_full().map(|fault| (fault, spot.link.load().is_some())),
            Map::Cluster(cluster) => cluster.trouble().map(|fault| (fault, cluster.is_known())),
            Map::Ring(_) => None,
        }
    }

    /// Why no server is known, as long as there is none.
    pub(super) fn unknown(&self) -> &'static str {
        match &self.map {
            Map::One(_) => "no sentinel has said yet which server is the master",
            Map::Cluster(_) => "no server of the cluster is known yet",
            Map::Ring(_) => "there are no servers",
        }
    }

    /// Every server that holds counters.
    pub(super) fn links(&self) -> Vec<Arc<Link>> {
        match &self.map {
            Map::One(spot) => spot.link.load_full().into_iter().collect(),
            Map::Cluster(cluster) => cluster.masters(),
            Map::Ring(ring) => ring.links().to_vec(),
        }
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl Spot {
    fn new(link: Option<Link>) -> Arc<Self> {
        Arc::new(Spot {
            link: ArcSwapOption::new(link.map(Arc::new)),
            doubted: tokio::sync::Notify::new(),
            changed: AtomicBool::new(false),
            trouble: ArcSwapOption::empty(),
        })
    }
}

/// One call to a server that has no others to send us on to.
async fn call_alone(link: &Link, command: Cmd, deadline: Instant) -> Result<Value, Fault> {
    let fault = match link.call(command, false, deadline).await {
        Err(fault @ (Fault::Moved(_) | Fault::Ask(_) | Fault::Misconfigured(_))) => fault.outside_a_cluster(),
        other => return other,
    };
    if fault.is_of_topology() {
        link.refuse(&fault);
    }
    Err(fault)
}

/// What so many servers say of how we are to find the counters: a refusal is one if most of them refuse, because one of
/// several may be strange, or just starting.
fn refusal_of_most(refusals: &[Fault], servers: usize) -> Option<Arc<Fault>> {
    let first = refusals.first().filter(|_| refusals.len() * 2 > servers);
    first.cloned().map(Arc::new)
}

fn links(addresses: &[super::settings::Address], settings: &RedisSettings) -> Result<Vec<Arc<Link>>, Fault> {
    addresses.iter().map(|address| Link::open(address, settings).map(Arc::new)).collect()
}

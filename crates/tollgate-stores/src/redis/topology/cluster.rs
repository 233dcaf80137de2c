//! A Redis cluster: which server holds which slot, followed as slots move and masters change.
//!
//! Several servers are asked for the map, others each time, and the one that most of them tell is taken: a server that was
//! cut off from the others tells an old one for as long as that lasts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arc_swap::{ArcSwap, ArcSwapOption};
use futures_util::future::join_all;
use hashbrown::HashMap;
use parking_lot::Mutex;
use redis::{Cmd, FromRedisValue, Value};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::{LeaseAction, refusal_of_most};
use crate::redis::connection::error::Fault;
use crate::redis::connection::server::Server;
use crate::redis::script::keys::SLOTS;
use crate::redis::settings::{Address, RedisSettings};

/// How often the map is read when nothing is amiss.
const READ_EVERY: Duration = Duration::from_secs(10);
/// How often at most when something is.
const READ_AGAIN: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_millis(500);
/// So many servers are asked for the map at once: of a large cluster not all, for each answer is long.
const ASKED_AT_ONCE: usize = 7;
/// How long a decision waits, within its budget, for the keys of a slot that moves to be in one place again.
const TRY_AGAIN: Duration = Duration::from_millis(2);

/// The servers of a cluster.
pub(crate) struct Cluster {
    settings: RedisSettings,
    map: ArcSwap<Slots>,
    /// Every server that was ever sent to, by address.
    servers: Mutex<HashMap<String, Arc<Server>>>,
    /// Told when the map turns out to be old.
    doubted: Notify,
    /// Slots that have changed hands since that was last asked.
    changed: Mutex<HashMap<u32, LeaseAction>>,
    /// Calls that were not made because nobody holds their slot.
    unassigned_slot_calls: AtomicU64,
    /// Why there is no map, if only an operator can help.
    trouble: ArcSwapOption<Fault>,
}

/// Which server holds which slot.
struct Slots {
    masters: Vec<Arc<Server>>,
    /// For each slot a position in `masters`, or none.
    owner: Box<[u16]>,
    /// The same as it was told.
    ranges: Vec<SlotRange>,
}

const NOBODY: u16 = u16::MAX;

impl Cluster {
    pub(crate) fn open(servers: &[Address], settings: &RedisSettings) -> Result<Self, Fault> {
        let cluster = Cluster {
            settings: settings.clone(),
            map: ArcSwap::from_pointee(Slots::unknown()),
            servers: Mutex::default(),
            doubted: Notify::new(),
            changed: Mutex::default(),
            unassigned_slot_calls: AtomicU64::new(0),
            trouble: ArcSwapOption::empty(),
        };
        for server in servers {
            cluster.server(server)?;
        }
        Ok(cluster)
    }

    /// Reads the map again and again; sooner when it turns out to be old.
    pub(crate) async fn follow(self: Arc<Self>) {
        let mut doubted = false;
        for turn in 0.. {
            let known = self.read_map(turn, doubted).await;
            let patience = if known { READ_EVERY } else { READ_AGAIN };
            doubted = timeout(patience, self.doubted.notified()).await.is_ok();
            sleep(READ_AGAIN).await;
        }
    }

    /// Whoever holds a slot.
    pub(crate) fn owner(&self, slot: u32) -> Option<Arc<Server>> {
        self.map.load().of(slot)
    }

    /// Slots that have changed hands since this was last asked.
    pub(crate) fn take_changes(&self) -> HashMap<u32, LeaseAction> {
        std::mem::take(&mut self.changed.lock())
    }

    /// How many slots nobody holds, in words.
    pub(crate) fn unserved(&self) -> Option<String> {
        let slots = self.map.load();
        let unserved = Some(slots.unserved()).filter(|count| *count > 0 && !slots.masters.is_empty())?;
        Some(format!("no server of the cluster holds {unserved} of its {SLOTS} slots"))
    }

    pub(crate) fn unassigned_slot_calls(&self) -> u64 {
        self.unassigned_slot_calls.load(Ordering::Relaxed)
    }

    pub(crate) fn masters(&self) -> Vec<Arc<Server>> {
        self.map.load().masters.clone()
    }

    /// Why there is no map, or none newer than the one in use.
    pub(crate) fn trouble(&self) -> Option<Arc<Fault>> {
        self.trouble.load_full()
    }

    /// Whether there is a map.
    pub(crate) fn is_known(&self) -> bool {
        !self.map.load().masters.is_empty()
    }

    /// One call to whoever holds the slot.
    pub(crate) async fn call(
        &self,
        slot: u32,
        command: Cmd,
        deadline: Instant,
        redirects_max: usize,
    ) -> Result<Value, Fault> {
        let mut server = self.owner(slot).ok_or_else(|| self.nobody())?;
        let mut asking = false;
        let mut redirects = 0;
        while redirects < redirects_max {
            let outcome = server.call(command.clone(), asking, deadline).await;
            (server, asking) = match outcome {
                Err(Fault::TryAgain) if Instant::now() + TRY_AGAIN < deadline => {
                    sleep(TRY_AGAIN).await;
                    continue;
                }
                Err(Fault::Moved(address)) => {
                    self.doubted.notify_one();
                    (self.server_from(&address, &server)?, false)
                }
                Err(Fault::Ask(address)) => (self.server_from(&address, &server)?, true),
                other => {
                    if let Err(fault) = &other
                        && fault.counts()
                    {
                        self.doubted.notify_one();
                        server.note_slot(slot);
                    }
                    return other;
                }
            };
            redirects += 1;
            // A server we have not talked to yet: its first connection is worth a part of the budget.
            let _ = tokio::time::timeout_at(deadline.into(), server.connected()).await;
        }
        Err(Fault::NotSent)
    }

    /// Why a slot without a server is not asked for. There may be one meanwhile.
    fn nobody(&self) -> Fault {
        if !self.is_known() {
            return Fault::NotSent;
        }
        self.doubted.notify_one();
        self.unassigned_slot_calls.fetch_add(1, Ordering::Relaxed);
        Fault::SlotUnassigned
    }

    /// The server a redirect names.
    fn server_from(&self, address: &str, from: &Server) -> Result<Arc<Server>, Fault> {
        self.server(&Address::parse(&full(address, from)).ok_or(Fault::NotSent)?)
    }

    fn server(&self, address: &Address) -> Result<Arc<Server>, Fault> {
        let mut servers = self.servers.lock();
        if let Some(server) = servers.get(&address.to_string()) {
            return Ok(Arc::clone(server));
        }
        let server = Arc::new(Server::open(address, &self.settings)?);
        servers.insert(address.to_string(), Arc::clone(&server));
        Ok(server)
    }

    /// Reads the map, beginning with another server each turn. Whether one told it.
    async fn read_map(&self, turn: usize, doubted: bool) -> bool {
        let mut known: Vec<Arc<Server>> = self.servers.lock().values().cloned().collect();
        known.sort_unstable_by(|a, b| a.name().cmp(b.name()));
        let begin = turn % known.len().max(1);
        known.rotate_left(begin);
        let mut refusals = Vec::new();
        let speaks = |server: &&Arc<Server>| server.is_connected() || server.refusal().is_some();
        let speaking: Vec<&Arc<Server>> = known.iter().filter(speaks).collect();
        for asked in speaking.chunks(ASKED_AT_ONCE) {
            let mut maps = Vec::new();
            for answer in join_all(asked.iter().map(|server| slots_of(server))).await {
                match answer {
                    Ok(ranges) if !ranges.is_empty() => maps.push(ranges),
                    Err(fault @ Fault::Misconfigured(_)) => refusals.push(fault),
                    // A server that does not answer, or one that has yet to meet the others.
                    Ok(_) | Err(_) => {}
                }
            }
            if let Some(ranges) = self.of_most(maps, doubted) {
                self.learn(ranges);
                self.trouble.store(None);
                return true;
            }
        }
        let trouble = refusal_of_most(&refusals, known.len());
        if let Some(fault) = &trouble
            && self.trouble.load().is_none()
        {
            warn!(reason = fault.words(), "no server tells how the cluster is laid out");
        }
        self.trouble.store(trouble);
        false
    }

    /// The map that most tell. Of those with as many votes the one in use, unless it is doubted, or else the first.
    fn of_most(&self, maps: Vec<Vec<SlotRange>>, doubted: bool) -> Option<Vec<SlotRange>> {
        let in_use = self.map.load();
        let rank = |map: &Vec<SlotRange>| {
            let votes = maps.iter().filter(|other| *other == map).count();
            (votes, !doubted && *map == in_use.ranges)
        };
        let best = maps.iter().map(rank).max()?;
        let position = maps.iter().position(|map| rank(map) == best)?;
        maps.into_iter().nth(position)
    }

    fn learn(&self, ranges: Vec<SlotRange>) {
        let mut slots = Slots::unknown();
        for SlotRange { first, last, address } in &ranges {
            let server = Address::parse(address).and_then(|address| self.server(&address).ok());
            let Some(server) = server else { continue };
            let position = slots.position(server);
            for slot in *first..=(*last).min(SLOTS - 1) {
                slots.owner[usize::from(slot)] = position;
            }
        }
        slots.ranges = ranges;
        self.forget_others(&slots.masters);
        let slots = Arc::new(slots);
        let before = self.map.swap(Arc::clone(&slots));
        self.tell_unserved(&before, &slots);
        if before.masters.is_empty() {
            return;
        }
        let mut changed = self.changed.lock();
        for (slot, action) in before.changes(&slots) {
            // Whatever happens to it after that.
            if changed.get(&slot) != Some(&LeaseAction::Revoke) {
                changed.insert(slot, action);
            }
        }
    }

    /// Says once that slots have no server, and once that all have.
    fn tell_unserved(&self, before: &Slots, now: &Slots) {
        let had_all = before.masters.is_empty() || before.unserved() == 0;
        match self.unserved() {
            Some(reason) if had_all => {
                warn!(reason, "a part of the clients is counted by each node alone until that changes");
            }
            None if !had_all && now.unserved() == 0 => info!("all slots of the cluster have a server again"),
            _ => {}
        }
    }

    /// Servers that left are not dialled for ever. Those named in the settings stay: they may come back.
    fn forget_others(&self, masters: &[Arc<Server>]) {
        let named = match &self.settings.topology {
            crate::redis::settings::Topology::Cluster(servers) => servers.as_slice(),
            _ => &[],
        };
        let named: Vec<String> = named.iter().map(Address::to_string).collect();
        let is_master = |server: &Arc<Server>| masters.iter().any(|master| Arc::ptr_eq(master, server));
        self.servers.lock().retain(|name, server| is_master(server) || named.contains(name));
    }
}

/// Which slots are where, as one server sees it.
async fn slots_of(server: &Server) -> Result<Vec<SlotRange>, Fault> {
    let mut command = redis::cmd("CLUSTER");
    command.arg("SLOTS");
    let value = match server.call(command, false, Instant::now() + PATIENCE).await {
        Err(Fault::Misconfigured(reason)) if reason.contains("cluster support disabled") => {
            let words = "this server is in no cluster: set topology = \"single\"";
            return Err(Fault::Misconfigured(format!("{reason}: {words}")));
        }
        answer => answer?,
    };
    let strange = |_| Fault::Misconfigured("CLUSTER SLOTS was answered with something else".to_owned());
    let mut ranges = Vec::<SlotRange>::from_redis_value(value).map_err(strange)?;
    for range in &mut ranges {
        range.address = full(&range.address, server);
    }
    // Each server in an order of its own.
    ranges.sort_unstable();
    Ok(ranges)
}

/// An address without a host is on that of the server that told it.
fn full(address: &str, from: &Server) -> String {
    let host = || from.name().rsplit_once(':').map_or("", |(host, _)| host);
    if address.starts_with(':') { format!("{}{address}", host()) } else { address.to_owned() }
}

impl Slots {
    fn unknown() -> Self {
        Slots { masters: Vec::new(), owner: vec![NOBODY; SLOTS.into()].into(), ranges: Vec::new() }
    }

    fn of(&self, slot: u32) -> Option<Arc<Server>> {
        let owner = self.owner.get(slot as usize)?;
        self.masters.get(usize::from(*owner)).cloned()
    }

    /// Slots that were here and are elsewhere, or nowhere, and what becomes of leases there. If the server that held a slot
    /// is still a master it has handed the slot over; else a replica has taken its place.
    fn changes(&self, next: &Slots) -> Vec<(u32, LeaseAction)> {
        let action = |old: u16, new: u16| match (self.name(old), next.name(new)) {
            (old, new) if old == new => LeaseAction::Keep,
            (Some(old), Some(_)) if next.masters.iter().any(|master| master.name() == old) => {
                LeaseAction::Return
            }
            _ => LeaseAction::Revoke,
        };
        // Slots come in long ranges: the names are compared only where the owner changes.
        let mut last = None;
        let actions = self.owner.iter().zip(&next.owner).map(|(old, new)| match last {
            Some((pair, action)) if pair == (old, new) => action,
            _ => {
                let action = action(*old, *new);
                last = Some(((old, new), action));
                action
            }
        });
        (0..).zip(actions).filter(|(_, action)| *action != LeaseAction::Keep).collect()
    }

    fn name(&self, owner: u16) -> Option<&str> {
        self.masters.get(usize::from(owner)).map(|server| server.name())
    }

    /// How many slots nobody holds.
    fn unserved(&self) -> usize {
        self.owner.iter().filter(|owner| **owner == NOBODY).count()
    }

    fn position(&mut self, server: Arc<Server>) -> u16 {
        let known = self.masters.iter().position(|master| Arc::ptr_eq(master, &server));
        let position = known.unwrap_or_else(|| {
            self.masters.push(server);
            self.masters.len() - 1
        });
        u16::try_from(position).unwrap_or(NOBODY)
    }
}

/// One line of `CLUSTER SLOTS`: a range and its master.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct SlotRange {
    first: u16,
    last: u16,
    address: String,
}

impl FromRedisValue for SlotRange {
    fn from_redis_value(value: Value) -> Result<Self, redis::ParsingError> {
        let strange = || redis::ParsingError::from("not a range of slots".to_owned());
        let Value::Array(items) = value else { return Err(strange()) };
        let mut items = items.into_iter();
        let mut next = || items.next().ok_or_else(strange);
        let (first, last) = (u16::from_redis_value(next()?)?, u16::from_redis_value(next()?)?);
        let Value::Array(master) = next()? else { return Err(strange()) };
        let mut master = master.into_iter();
        let host =
            Option::<String>::from_redis_value(master.next().ok_or_else(strange)?)?.unwrap_or_default();
        let port = u16::from_redis_value(master.next().ok_or_else(strange)?)?;
        Ok(SlotRange { first, last, address: format!("{host}:{port}") })
    }
}

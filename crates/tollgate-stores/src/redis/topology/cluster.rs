//! A Redis cluster: follows the slot map as slots migrate and masters change.

mod slot_map;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arc_swap::{ArcSwap, ArcSwapOption};
use futures_util::future::join_all;
use hashbrown::HashMap;
use parking_lot::Mutex;
use redis::{Cmd, Value};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use self::slot_map::{SlotMap, SlotRange, complete_address, fetch_ranges};
use super::{LeaseAction, majority_rejection};
use crate::redis::connection::error::Fault;
use crate::redis::connection::server::Server;
use crate::redis::script::keys::SLOTS;
use crate::redis::settings::{Address, RedisSettings};

const POLL_INTERVAL: Duration = Duration::from_secs(10);
/// Minimum pause between polls after redirections or failures.
const POLL_PAUSE: Duration = Duration::from_millis(100);
/// Servers asked for the slot map at once. Not all of a large cluster: the replies are long.
const POLLED_MAX: usize = 7;
/// Pause before a call is repeated while its slot is being migrated.
const TRY_AGAIN_PAUSE: Duration = Duration::from_millis(2);

/// The servers of a cluster.
pub(super) struct Cluster {
    settings: RedisSettings,
    map: ArcSwap<SlotMap>,
    /// Open servers by address: masters, and those named in the settings.
    servers: Mutex<HashMap<String, Arc<Server>>>,
    /// Notified when the slot map may be outdated.
    doubted: Notify,
    /// Slots that changed owners since `take_changes`.
    changed: Mutex<HashMap<u32, LeaseAction>>,
    unassigned_slot_calls: AtomicU64,
    /// Why there is no slot map, if only an operator can help.
    error: ArcSwapOption<Fault>,
}

impl Cluster {
    pub(super) fn open(servers: &[Address], settings: &RedisSettings) -> Result<Self, Fault> {
        let cluster = Cluster {
            settings: settings.clone(),
            map: ArcSwap::from_pointee(SlotMap::empty()),
            servers: Mutex::default(),
            doubted: Notify::new(),
            changed: Mutex::default(),
            unassigned_slot_calls: AtomicU64::new(0),
            error: ArcSwapOption::empty(),
        };
        for server in servers {
            cluster.server(server)?;
        }
        Ok(cluster)
    }

    /// Polls the slot map; at once when it turns out to be outdated.
    pub(super) async fn follow(self: Arc<Self>) {
        let mut doubted = false;
        for turn in 0.. {
            let is_known = self.poll(turn, doubted).await;
            let interval = if is_known { POLL_INTERVAL } else { POLL_PAUSE };
            doubted = timeout(interval, self.doubted.notified()).await.is_ok();
            sleep(POLL_PAUSE).await;
        }
    }

    pub(super) fn owner(&self, slot: u32) -> Option<Arc<Server>> {
        self.map.load().owner(slot)
    }

    pub(super) fn masters(&self) -> Vec<Arc<Server>> {
        self.map.load().masters.clone()
    }

    pub(super) fn is_known(&self) -> bool {
        !self.map.load().masters.is_empty()
    }

    pub(super) fn error(&self) -> Option<Arc<Fault>> {
        self.error.load_full()
    }

    pub(super) fn take_changes(&self) -> HashMap<u32, LeaseAction> {
        std::mem::take(&mut self.changed.lock())
    }

    pub(super) fn unassigned_slots(&self) -> Option<String> {
        let map = self.map.load();
        let count = Some(map.unassigned()).filter(|count| *count > 0 && !map.masters.is_empty())?;
        Some(format!("no server of the cluster owns {count} of its {SLOTS} slots"))
    }

    pub(super) fn unassigned_slot_calls(&self) -> u64 {
        self.unassigned_slot_calls.load(Ordering::Relaxed)
    }

    /// Sends a command to the owner of a slot and follows redirections.
    pub(super) async fn call(
        &self,
        slot: u32,
        command: Cmd,
        deadline: Instant,
        redirects_max: usize,
    ) -> Result<Value, Fault> {
        let mut server = self.owner(slot).ok_or_else(|| self.unassigned())?;
        let mut asking = false;
        let mut redirects = 0;
        while redirects < redirects_max {
            let outcome = server.call(command.clone(), asking, deadline).await;
            (server, asking) = match outcome {
                Err(Fault::TryAgain) if Instant::now() + TRY_AGAIN_PAUSE < deadline => {
                    sleep(TRY_AGAIN_PAUSE).await;
                    continue;
                }
                Err(Fault::Moved(address)) => {
                    self.doubted.notify_one();
                    (self.redirected(&address, &server)?, false)
                }
                Err(Fault::Ask(address)) => (self.redirected(&address, &server)?, true),
                other => {
                    if other.as_ref().is_err_and(Fault::trips_breaker) {
                        self.doubted.notify_one();
                        server.note_failed_slot(slot);
                    }
                    return other;
                }
            };
            redirects += 1;
            // A new server is dialed within the deadline of the call.
            let _ = tokio::time::timeout_at(deadline.into(), server.connected()).await;
        }
        Err(Fault::NotSent)
    }

    /// The fault for a slot without owner.
    fn unassigned(&self) -> Fault {
        if !self.is_known() {
            return Fault::NotSent;
        }
        self.doubted.notify_one();
        self.unassigned_slot_calls.fetch_add(1, Ordering::Relaxed);
        Fault::SlotUnassigned
    }

    fn redirected(&self, address: &str, from: &Server) -> Result<Arc<Server>, Fault> {
        self.server(&Address::parse(&complete_address(address, from)).ok_or(Fault::NotSent)?)
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

    /// Asks several servers for the slot map, starting with another one each turn, and applies the most common answer: a
    /// server cut off from the others keeps an old map. Returns whether there was an answer.
    async fn poll(&self, turn: usize, doubted: bool) -> bool {
        let mut known: Vec<Arc<Server>> = self.servers.lock().values().cloned().collect();
        known.sort_unstable_by(|a, b| a.name().cmp(b.name()));
        let begin = turn % known.len().max(1);
        known.rotate_left(begin);
        let mut rejections = Vec::new();
        let responds = |server: &&Arc<Server>| server.is_connected() || server.rejection().is_some();
        let responding: Vec<&Arc<Server>> = known.iter().filter(responds).collect();
        for polled in responding.chunks(POLLED_MAX) {
            let mut maps = Vec::new();
            for answer in join_all(polled.iter().map(|server| fetch_ranges(server))).await {
                match answer {
                    Ok(ranges) if !ranges.is_empty() => maps.push(ranges),
                    Err(fault @ Fault::Misconfigured(_)) => rejections.push(fault),
                    // Unreachable, or not yet part of the cluster.
                    Ok(_) | Err(_) => {}
                }
            }
            if let Some(ranges) = self.majority(maps, doubted) {
                self.apply(ranges);
                self.error.store(None);
                return true;
            }
        }
        let error = majority_rejection(&rejections, known.len());
        if let Some(fault) = &error
            && self.error.load().is_none()
        {
            warn!(reason = %fault, "redis: no server returns the slot map of the cluster");
        }
        self.error.store(error);
        false
    }

    /// The most common map. On a tie the one in use, unless it is doubted, else the first.
    fn majority(&self, maps: Vec<Vec<SlotRange>>, doubted: bool) -> Option<Vec<SlotRange>> {
        let in_use = self.map.load();
        let rank = |map: &Vec<SlotRange>| {
            let votes = maps.iter().filter(|other| *other == map).count();
            (votes, !doubted && *map == in_use.ranges)
        };
        let best = maps.iter().map(rank).max()?;
        let position = maps.iter().position(|map| rank(map) == best)?;
        maps.into_iter().nth(position)
    }

    fn apply(&self, ranges: Vec<SlotRange>) {
        let map = Arc::new(SlotMap::new(ranges, |address| {
            Address::parse(address).and_then(|address| self.server(&address).ok())
        }));
        self.close_others(&map.masters);
        let before = self.map.swap(Arc::clone(&map));
        self.log_unassigned(&before, &map);
        if before.masters.is_empty() {
            return;
        }
        let mut changed = self.changed.lock();
        for (slot, action) in before.changes(&map) {
            // Once revoked, a later migration does not bring the lease back.
            if changed.get(&slot) != Some(&LeaseAction::Revoke) {
                changed.insert(slot, action);
            }
        }
    }

    /// Logs once that slots have no owner, and once that all have.
    fn log_unassigned(&self, before: &SlotMap, now: &SlotMap) {
        let had_all = before.masters.is_empty() || before.unassigned() == 0;
        match self.unassigned_slots() {
            Some(reason) if had_all => {
                warn!(reason, "redis: using the fallback for clients in unassigned slots");
            }
            None if !had_all && now.unassigned() == 0 => {
                info!("redis: all slots of the cluster are assigned again");
            }
            _ => {}
        }
    }

    /// Closes servers that left the cluster, except those named in the settings, which may return.
    fn close_others(&self, masters: &[Arc<Server>]) {
        let named: Vec<String> = self.settings.topology.servers().iter().map(Address::to_string).collect();
        let is_master = |server: &Arc<Server>| masters.iter().any(|master| Arc::ptr_eq(master, server));
        self.servers.lock().retain(|name, server| is_master(server) || named.contains(name));
    }
}

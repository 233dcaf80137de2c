//! The version of key names and state that the fleet uses, so that nodes can be upgraded one by one.
//!
//! A node supports its own version and the previous one. While a live node supports only the previous version, all nodes
//! use it, so a client has one quota on every node. Then the first node to notice stores an instant a few seconds ahead, at
//! which the fleet changes. Nodes send both key names, and the server compares the instant with its own clock: a counter
//! keeps its old key before it, and is renamed on first use after it, for as long as its state can matter. A node that does
//! not support the version of the fleet reports a misconfiguration and decides nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use redis::FromRedisValue;
use tollgate::counters::Charge;
use tollgate::{Span, Timestamp};
use tracing::{error, info};

use crate::redis::connection::error::Fault;
use crate::redis::script::keys::{self, CounterKeys, SCHEMA};
use crate::redis::topology::ShardMap;

/// How far ahead a change is scheduled. Nodes read the schedule every second.
const CHANGE_AHEAD: Duration = Duration::from_secs(5);

/// The key version in use, and whether this node may decide.
pub(crate) struct Schema {
    shards: Arc<ShardMap>,
    /// The newest version that this node supports.
    supported: u8,
    in_use: AtomicU8,
    /// When the fleet changes, or changed, to the version in use, in microseconds; zero if it never changed.
    changed_at: AtomicU64,
    /// Whether the version of the fleet is known. Before that nothing is decided.
    known: AtomicBool,
    /// Why it is not, if only an operator can help.
    join_error: ArcSwapOption<Fault>,
    /// Whether the fleet's seed is still to be adopted. Before that, subjects are not those of the fleet.
    awaiting_seed: AtomicBool,
    /// Whether the fleet uses a version newer than supported.
    outdated: AtomicBool,
}

impl Schema {
    /// Starts with the previous version, which the fleet may still use.
    pub(crate) fn new(shards: Arc<ShardMap>, supported: u8) -> Self {
        Schema {
            shards,
            supported,
            in_use: AtomicU8::new(supported.saturating_sub(1).max(SCHEMA)),
            changed_at: AtomicU64::new(0),
            known: false.into(),
            join_error: ArcSwapOption::empty(),
            awaiting_seed: false.into(),
            outdated: false.into(),
        }
    }

    /// The newest version that this node supports.
    pub(crate) fn supported(&self) -> u8 {
        self.supported
    }

    /// The version before, if it exists.
    pub(crate) fn previous(&self) -> Option<u8> {
        self.supported.checked_sub(1).filter(|previous| *previous >= SCHEMA)
    }

    pub(crate) fn is_known(&self) -> bool {
        self.known.load(Ordering::Relaxed)
    }

    pub(crate) fn set_awaiting_seed(&self, awaiting: bool) {
        self.awaiting_seed.store(awaiting, Ordering::Relaxed);
    }

    pub(crate) fn is_awaiting_seed(&self) -> bool {
        self.awaiting_seed.load(Ordering::Relaxed)
    }

    /// When the fleet changed to the version in use, in microseconds; zero if it never changed.
    pub(crate) fn changed_at(&self) -> u64 {
        self.changed_at.load(Ordering::Relaxed)
    }

    /// The version in use.
    ///
    /// # Errors
    /// When it is not known yet, or not supported.
    pub(crate) fn version(&self) -> Result<u8, Fault> {
        if !self.is_known() {
            return Err(self.join_error.load().as_ref().map_or(Fault::NotSent, |fault| Fault::clone(fault)));
        }
        if self.is_awaiting_seed() {
            return Err(Fault::NotSent);
        }
        if self.outdated.load(Ordering::Relaxed) {
            return Err(Fault::misconfigured("the fleet uses a newer key schema; upgrade this node"));
        }
        Ok(self.in_use.load(Ordering::Relaxed))
    }

    /// Why nothing can be decided, if only an operator can help.
    pub(crate) fn misconfiguration(&self) -> Option<Fault> {
        self.version().err().filter(|fault| matches!(fault, Fault::Misconfigured(_)))
    }

    /// The keys of a charge's counter.
    pub(crate) fn counter_keys(&self, charge: &Charge<'_>, now: Timestamp) -> Result<CounterKeys, Fault> {
        let version = self.version()?;
        let previous = self.renamed_at(charge, now).map(|at| (keys::counter(version - 1, charge), at));
        Ok(CounterKeys { current: keys::counter(version, charge), previous })
    }

    /// When the counter is renamed, if it may still be under its previous key.
    fn renamed_at(&self, charge: &Charge<'_>, now: Timestamp) -> Option<Timestamp> {
        let changed_at = Some(self.changed_at()).filter(|at| *at > 0).map(Timestamp::from_micros)?;
        let rate = u64::from(charge.limit.requests()).max(1);
        let refill = charge.limit.tick().micros().saturating_mul(charge.limit.debt_units_max() / rate + 1);
        let window = charge.limit.window_longest();
        let lifetime_max = (window + window).max(Span::from_micros(refill));
        (now < changed_at + lifetime_max + lifetime_max).then_some(changed_at)
    }

    /// Keeps the reason if joining failed for want of a permission.
    pub(crate) fn note_join(&self, outcome: &Result<(), Fault>) {
        let fault = outcome.as_ref().err().filter(|fault| matches!(fault, Fault::Misconfigured(_)));
        self.join_error.store(fault.cloned().map(Arc::new));
    }

    /// Adopts the version that a replica reports. One older than the previous version is not supported.
    pub(crate) fn adopt(&self, version: u8, changed_at: u64) {
        if version > self.supported {
            self.set_outdated();
        } else if version == self.supported {
            self.changed_at.store(changed_at, Ordering::Relaxed);
            self.in_use.store(version, Ordering::Relaxed);
        }
        let is_supported = version.saturating_add(1) >= self.supported;
        self.known.fetch_or(is_supported, Ordering::Relaxed);
    }

    /// Reads the version of the fleet, and schedules a change if no node needs the previous version.
    pub(crate) async fn agree(&self, older_nodes: u32, now: Timestamp) -> Result<(), Fault> {
        self.follow(older_nodes, now).await?;
        self.known.store(true, Ordering::Relaxed);
        Ok(())
    }

    async fn follow(&self, older_nodes: u32, now: Timestamp) -> Result<(), Fault> {
        let supported = self.supported;
        if self.read_change(supported.saturating_add(1)).await?.is_some() {
            self.set_outdated();
            return Ok(());
        }
        if supported == SCHEMA || self.in_use.load(Ordering::Relaxed) == supported {
            return Ok(());
        }
        match self.read_change(supported).await? {
            Some(at) => {
                self.changed_at.store(at.max(1), Ordering::Relaxed);
                self.in_use.store(supported, Ordering::Relaxed);
                info!(version = supported, "redis: the fleet changes to a newer key schema");
            }
            None if older_nodes == 0 => {
                let mut set = redis::cmd("SET");
                let at = now + Span::from(CHANGE_AHEAD);
                set.arg(change_key(supported)).arg(at.as_micros()).arg("NX");
                self.shards.admin(self.shards.home(), set).await?;
            }
            None => {}
        }
        Ok(())
    }

    /// When the fleet changes, or changed, to a version, in microseconds.
    async fn read_change(&self, version: u8) -> Result<Option<u64>, Fault> {
        let mut get = redis::cmd("GET");
        get.arg(change_key(version));
        let reply = self.shards.admin(self.shards.home(), get).await?;
        Ok(Option::<u64>::from_redis_value(reply).ok().flatten())
    }

    fn set_outdated(&self) {
        if !self.outdated.swap(true, Ordering::Relaxed) {
            error!("redis: the fleet uses a newer key schema; upgrade this node");
        }
    }
}

/// The key that holds the instant of a change.
fn change_key(version: u8) -> String {
    keys::shared(&format!("schema:{version}"))
}

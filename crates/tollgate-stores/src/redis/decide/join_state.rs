//! Whether this node has joined its fleet. Before that it decides nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwapOption;
use redis::{Cmd, Value};
use tracing::error;

use crate::redis::connection::error::Fault;
use crate::redis::script::keys::{self, SCHEMA};
use crate::redis::topology::ShardMap;

/// Whether this node may decide.
pub(crate) struct JoinState {
    shards: Arc<ShardMap>,
    /// Whether a heartbeat has succeeded.
    joined: AtomicBool,
    /// Why none has, if only an operator can help.
    error: ArcSwapOption<Fault>,
    /// Whether the fleet's seed is still to be adopted. Before that, subjects are not those of the fleet.
    awaiting_seed: AtomicBool,
    /// Whether the fleet uses a newer key schema.
    outdated: AtomicBool,
}

impl JoinState {
    pub(crate) fn new(shards: Arc<ShardMap>) -> Self {
        JoinState {
            shards,
            joined: AtomicBool::new(false),
            error: ArcSwapOption::empty(),
            awaiting_seed: AtomicBool::new(false),
            outdated: AtomicBool::new(false),
        }
    }

    pub(crate) fn has_joined(&self) -> bool {
        self.joined.load(Ordering::Relaxed)
    }

    pub(crate) fn set_awaiting_seed(&self, awaiting: bool) {
        self.awaiting_seed.store(awaiting, Ordering::Relaxed);
    }

    pub(crate) fn is_awaiting_seed(&self) -> bool {
        self.awaiting_seed.load(Ordering::Relaxed)
    }

    /// Fails unless this node may decide.
    pub(crate) fn check(&self) -> Result<(), Fault> {
        if !self.has_joined() {
            return Err(self.error.load().as_ref().map_or(Fault::NotSent, |fault| Fault::clone(fault)));
        }
        if self.is_awaiting_seed() {
            return Err(Fault::NotSent);
        }
        if self.outdated.load(Ordering::Relaxed) {
            return Err(Fault::misconfigured("the fleet uses a newer key schema; upgrade this node"));
        }
        Ok(())
    }

    /// Why nothing can be decided, if only an operator can help.
    pub(crate) fn misconfiguration(&self) -> Option<Fault> {
        self.check().err().filter(|fault| matches!(fault, Fault::Misconfigured(_)))
    }

    /// Records the outcome of a heartbeat. Keeps the reason if it failed for want of a permission.
    pub(crate) fn note_heartbeat(&self, outcome: &Result<(), Fault>) {
        let fault = outcome.as_ref().err().filter(|fault| matches!(fault, Fault::Misconfigured(_)));
        self.error.store(fault.cloned().map(Arc::new));
    }

    /// Joins, unless the fleet uses a newer key schema: a node that changes the schema sets the key of its version.
    pub(crate) async fn join(&self) -> Result<(), Fault> {
        let newer = Cmd::get(keys::shared(&format!("schema:{}", SCHEMA + 1)));
        let is_outdated = self.shards.admin(self.shards.home(), newer).await? != Value::Nil;
        if is_outdated && !self.outdated.swap(true, Ordering::Relaxed) {
            error!("redis: the fleet uses a newer key schema; upgrade this node");
        }
        self.joined.store(true, Ordering::Relaxed);
        Ok(())
    }
}

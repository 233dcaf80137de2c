//! Whether decisions succeed, and what an operator should know.
//!
//! A successful decision only reads one flag.

pub(crate) mod server_info;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use hashbrown::HashMap;
use parking_lot::Mutex;
use tollgate::counters::{Charge, Charges};
use tracing::error;

use super::connection::error::{Cause, Fault};
use super::decide::join_state::JoinState;
use super::script::keys;
use super::topology::{ShardId, ShardMap};

/// How long a failed decision is reported, unless one succeeds earlier.
const FAILURE_REPORTED_FOR: Duration = Duration::from_secs(1);
/// How long a damaged counter is reported. Other decisions succeed meanwhile, which proves nothing.
const DAMAGE_REPORTED_FOR: Duration = Duration::from_secs(15);
const DAMAGE_LOG_INTERVAL: Duration = Duration::from_mins(1);
/// Rules named for a failed decision.
const NAMED_MAX: usize = 4;

/// Outcomes of decisions and heartbeats.
pub(crate) struct Health {
    shards: Arc<ShardMap>,
    join_state: Arc<JoinState>,
    /// Whether `decision` or `heartbeat` is set.
    failing: AtomicBool,
    /// The last failed decision; none since one succeeded.
    decision: ArcSwapOption<Failure>,
    /// Why the last heartbeat failed.
    heartbeat: ArcSwapOption<Fault>,
    /// Shared keys with an unexpected type or value, by name and shard.
    shared_keys: Mutex<HashMap<(&'static str, ShardId), Fault>>,
    /// The last counter that could not be used.
    damaged_counter: ArcSwapOption<Failure>,
    damage_logged_at: Mutex<Option<Instant>>,
}

struct Failure {
    message: String,
    at: Instant,
}

impl Failure {
    fn now(message: String) -> Arc<Self> {
        Arc::new(Failure { message, at: Instant::now() })
    }

    fn recent(last: &ArcSwapOption<Self>, reported_for: Duration) -> Option<String> {
        let failure = last.load_full().filter(|failure| failure.at.elapsed() < reported_for)?;
        Some(failure.message.clone())
    }
}

impl Health {
    pub(crate) fn new(shards: Arc<ShardMap>, join_state: Arc<JoinState>) -> Self {
        Health {
            shards,
            join_state,
            failing: AtomicBool::new(false),
            decision: ArcSwapOption::empty(),
            heartbeat: ArcSwapOption::empty(),
            shared_keys: Mutex::default(),
            damaged_counter: ArcSwapOption::empty(),
            damage_logged_at: Mutex::default(),
        }
    }

    /// Why nothing can be decided until an operator acts: servers reject us, none can be discovered, or the fleet cannot be
    /// joined.
    pub(crate) fn misconfiguration(&self) -> Option<Fault> {
        let undiscovered =
            || self.shards.discovery_error().filter(|(_, is_known)| !is_known).map(|(fault, _)| fault);
        let rejected = self.shards.servers().iter().find_map(|server| server.decision_rejection());
        let no_seed = || {
            let awaits_seed = self.join_state.has_joined() && self.join_state.is_awaiting_seed();
            awaits_seed.then(|| self.damaged_key(Some(keys::SEED)))?.map(Fault::misconfigured)
        };
        let fault = rejected.or_else(undiscovered).map(|fault| Fault::clone(&fault));
        fault.or_else(|| self.join_state.misconfiguration()).or_else(no_seed)
    }

    /// Replaces a fault that comes from not having joined the fleet by the reason.
    pub(crate) fn explain(&self, fault: Fault) -> Fault {
        if self.join_state.check().is_ok() {
            return fault;
        }
        self.misconfiguration().unwrap_or(fault)
    }

    /// Why decisions fail although the servers are connected: the last one failed a moment ago, or the heartbeat did.
    pub(crate) fn failure(&self) -> Option<String> {
        let heartbeat = || self.heartbeat.load_full().filter(|fault| fault.trips_breaker());
        let decision = Failure::recent(&self.decision, FAILURE_REPORTED_FOR);
        decision.or_else(|| heartbeat().map(|fault| fault.to_string()))
    }

    /// What needs attention although decisions succeed.
    pub(crate) fn warning(&self) -> Option<String> {
        let topology = || self.shards.discovery_error().map(|(fault, _)| fault.to_string());
        let rejected = || {
            let servers = self.shards.servers();
            servers
                .iter()
                .find_map(|server| Some(format!("{}: {}", server.name(), server.admin_rejection()?)))
        };
        let heartbeat = || self.heartbeat.load_full().filter(|fault| !fault.trips_breaker());
        let shared = || {
            let heartbeat = heartbeat().map(|fault| fault.to_string());
            let reason = heartbeat.or_else(|| self.damaged_key(None))?;
            Some(format!("the keys that nodes share cannot be updated: {reason}"))
        };
        Failure::recent(&self.damaged_counter, DAMAGE_REPORTED_FOR)
            .or_else(topology)
            .or_else(|| self.shards.unassigned_slots())
            .or_else(rejected)
            .or_else(shared)
    }

    pub(crate) fn decision_succeeded(&self) {
        if self.failing.load(Ordering::Relaxed) {
            self.failing.store(false, Ordering::Relaxed);
            self.decision.store(None);
            if self.heartbeat.load().as_ref().is_some_and(|fault| fault.trips_breaker()) {
                self.heartbeat.store(None);
            }
        }
    }

    pub(crate) fn decision_failed(&self, fault: &Fault, charges: &Charges<'_>) {
        match fault {
            fault if fault.cause() == Some(Cause::ScriptPermission) => self.counter_damaged(fault, charges),
            // Reported by the server that rejects, for all decisions.
            fault if fault.is_permission() || fault.cause() == Some(Cause::Topology) => {}
            Fault::Misconfigured(_) | Fault::NoScript if self.join_state.check().is_ok() => {
                self.counter_damaged(fault, charges);
            }
            // Reported for as long as the state lasts: other decisions succeed in between.
            Fault::Misconfigured(_) | Fault::NoScript | Fault::SlotUnassigned => {}
            fault => {
                self.decision.store(Some(Failure::now(fault.to_string())));
                self.failing.store(true, Ordering::Relaxed);
            }
        }
    }

    pub(crate) fn note_heartbeat(&self, outcome: &Result<(), Fault>) {
        self.join_state.note_heartbeat(outcome);
        self.heartbeat.store(outcome.as_ref().err().cloned().map(Arc::new));
        if outcome.is_err() {
            self.failing.store(true, Ordering::Relaxed);
        }
    }

    /// Records whether a shared key could be read. A failed call says nothing about the key.
    pub(crate) fn note_shared_key<T>(&self, name: &'static str, shard: ShardId, outcome: &Result<T, Fault>) {
        match outcome {
            Ok(_) => drop(self.shared_keys.lock().remove(&(name, shard))),
            Err(fault @ Fault::Misconfigured(_)) => {
                self.shared_keys.lock().insert((name, shard), fault.clone());
            }
            Err(_) => {}
        }
    }

    /// A shared key with an unexpected type or value: this one, or any.
    pub(crate) fn damaged_key(&self, name: Option<&str>) -> Option<String> {
        let shared_keys = self.shared_keys.lock();
        let is_wanted = |known: &str| name.is_none_or(|name| name == known);
        let ((name, _), fault) = shared_keys.iter().find(|((known, _), _)| is_wanted(known))?;
        Some(format!("{}: {fault}", keys::shared(name)))
    }

    fn counter_damaged(&self, fault: &Fault, charges: &Charges<'_>) {
        let message = format!("{fault} ({})", describe(charges));
        let now = Instant::now();
        let mut logged_at = self.damage_logged_at.lock();
        if logged_at.is_none_or(|at| now.duration_since(at) >= DAMAGE_LOG_INTERVAL) {
            *logged_at = Some(now);
            error!(reason = message, "redis: unusable counter; requests that it limits are refused");
        }
        self.damaged_counter.store(Some(Failure::now(message)));
    }
}

/// The rules of a decision and their keys.
fn describe(charges: &Charges<'_>) -> String {
    let describe =
        |charge: &Charge<'_>| format!("rule {:?}, key {}", charge.rule, keys::counter(charge).name);
    let rules: Vec<String> = charges.charges.iter().take(NAMED_MAX).map(describe).collect();
    rules.join("; or ")
}

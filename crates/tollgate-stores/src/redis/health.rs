//! What went wrong of late, for those who look after the service: which decisions the servers did not make, and why.
//!
//! Nothing here is written while all is well: a decision that succeeds looks at one flag.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use hashbrown::HashMap;
use parking_lot::Mutex;
use tollgate::counters::{Charge, Charges};
use tracing::error;

use crate::redis::connection::error::Fault;
use crate::redis::script::keys;
use crate::redis::topology::ShardId;
use crate::redis::{RedisCounters, Store};

/// A decision that failed speaks for so long, unless one succeeds before.
const FAILURE_KEPT: Duration = Duration::from_secs(1);
/// A counter that cannot be used speaks for so long. Others succeed meanwhile: that says nothing of this one.
const DAMAGE_KEPT: Duration = Duration::from_secs(15);
/// How often the log is told of counters that cannot be used.
const DAMAGE_TOLD_EVERY: Duration = Duration::from_mins(1);
/// Of a decision with many limits so many are named.
const NAMED_MAX: usize = 4;

/// What went wrong of late.
#[derive(Default)]
pub(crate) struct Troubles {
    /// Whether `decision` or `beat` is anything.
    failing: AtomicBool,
    /// The last decision that no server made; nothing since one was made.
    decision: ArcSwapOption<Failed>,
    /// Why the fleet's own keys could not be kept up to date the last time; nothing if they were.
    beat: ArcSwapOption<Fault>,
    /// What of the fleet's own keys is not what it should be, by name and shard, until it is.
    shared: Mutex<HashMap<(&'static str, ShardId), Fault>>,
    /// The last counter that could not be used.
    damage: ArcSwapOption<Failed>,
    /// When the log was told of one.
    told: Mutex<Option<Instant>>,
}

struct Failed {
    words: String,
    at: Instant,
}

impl Failed {
    fn now(words: String) -> Arc<Self> {
        Arc::new(Failed { words, at: Instant::now() })
    }

    fn within(this: &ArcSwapOption<Self>, kept: Duration) -> Option<String> {
        let failed = this.load_full().filter(|failed| failed.at.elapsed() < kept)?;
        Some(failed.words.clone())
    }
}

impl Troubles {
    /// A server made a decision.
    pub(crate) fn decided(&self) {
        if self.failing.load(Ordering::Relaxed) {
            self.failing.store(false, Ordering::Relaxed);
            self.decision.store(None);
            if self.beat.load().as_ref().is_some_and(|fault| fault.counts()) {
                self.beat.store(None);
            }
        }
    }

    /// Keeps in mind how the last beat ended.
    pub(crate) fn beat(&self, outcome: &Result<(), Fault>) {
        self.beat.store(outcome.as_ref().err().cloned().map(Arc::new));
        if outcome.is_err() {
            self.failing.store(true, Ordering::Relaxed);
        }
    }

    /// Keeps in mind whether one of the fleet's own keys is what it should be. One that cannot be asked for says nothing.
    pub(crate) fn shared<T>(&self, name: &'static str, shard: ShardId, outcome: &Result<T, Fault>) {
        match outcome {
            Ok(_) => drop(self.shared.lock().remove(&(name, shard))),
            Err(fault @ Fault::Misconfigured(_)) => {
                self.shared.lock().insert((name, shard), fault.clone());
            }
            Err(_) => {}
        }
    }

    /// Which of the fleet's own keys is not what it should be, of all or of those with this name.
    pub(crate) fn damaged_key(&self, named: Option<&str>) -> Option<String> {
        let shared = self.shared.lock();
        let is_asked_for = |name: &str| named.is_none_or(|named| named == name);
        let ((name, _), fault) = shared.iter().find(|((name, _), _)| is_asked_for(name))?;
        Some(format!("{}: {}", keys::shared(name), fault.words()))
    }

    fn failed(&self, words: String) {
        self.decision.store(Some(Failed::now(words)));
        self.failing.store(true, Ordering::Relaxed);
    }

    fn damaged(&self, words: String) {
        let now = Instant::now();
        let mut told = self.told.lock();
        if told.is_none_or(|told| now.duration_since(told) >= DAMAGE_TOLD_EVERY) {
            *told = Some(now);
            error!(reason = words, "a counter cannot be used: requests that it limits are refused");
        }
        self.damage.store(Some(Failed::now(words)));
    }
}

impl RedisCounters {
    /// Why no server makes decisions, though all are connected: the last one failed a moment ago, or what the nodes share
    /// could not be written.
    pub fn failure(&self) -> Option<String> {
        let troubles = &self.0.troubles;
        let beat = || troubles.beat.load_full().filter(|fault| fault.counts()).map(|fault| fault.words());
        Failed::within(&troubles.decision, FAILURE_KEPT).or_else(beat)
    }

    /// What is wrong though decisions are made, if anything is.
    pub fn warning(&self) -> Option<String> {
        let store = &*self.0;
        let damage = Failed::within(&store.troubles.damage, DAMAGE_KEPT);
        let beat = || {
            let fault = store.troubles.beat.load_full().filter(|fault| !fault.counts());
            fault.map(|fault| fault.words())
        };
        let shared = || {
            let words = beat().or_else(|| store.troubles.damaged_key(None))?;
            Some(format!("what the nodes share cannot be kept up to date: {words}"))
        };
        let topology = || store.shards.trouble().map(|(fault, _)| fault.words());
        let aside = || {
            let servers = store.shards.servers();
            servers
                .iter()
                .find_map(|server| Some(format!("{}: {}", server.name(), server.warning()?.words())))
        };
        let unserved = || store.shards.unserved();
        damage.or_else(topology).or_else(unserved).or_else(aside).or_else(shared)
    }
}

impl Store {
    /// Keeps in mind that a decision failed.
    pub(crate) fn note_failed(&self, fault: &Fault, charges: &Charges<'_>) {
        match fault {
            // Told by the server too, until it makes another decision that needs less.
            fault if fault.is_of_script() => {
                self.troubles.damaged(format!("{} ({})", fault.words(), named(charges)));
            }
            // Told by the server that refuses, whatever is asked of it.
            fault if fault.is_of_login() || fault.is_of_topology() => {}
            Fault::Misconfigured(_) | Fault::NoScript if self.schema.speaks().is_ok() => {
                self.troubles.damaged(format!("{} ({})", fault.words(), named(charges)));
            }
            // The last is told as long as it lasts: between two such decisions others are made.
            Fault::Misconfigured(_) | Fault::NoScript | Fault::SlotUnassigned => {}
            fault => self.troubles.failed(fault.words()),
        }
    }

    /// Looks after the fleet's keys, and keeps in mind how that went.
    pub(crate) fn note_beat(&self, outcome: &Result<(), Fault>) {
        self.schema.tried(outcome);
        self.troubles.beat(outcome);
    }
}

/// The rules of a decision and their counters.
fn named(charges: &Charges<'_>) -> String {
    let name = |charge: &Charge<'_>| {
        format!("rule {:?}, key {}", charge.rule, keys::counter(keys::SCHEMA, charge).key)
    };
    let names: Vec<String> = charges.charges.iter().take(NAMED_MAX).map(name).collect();
    names.join("; or ")
}

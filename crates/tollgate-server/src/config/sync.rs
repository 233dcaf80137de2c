//! Config sync: keeps this node's rules, limits, API keys and blocks equal to those in the database.
//!
//! No check waits for the database. A background task (`task.rs`) loads the whole configuration at one version, compiles it and
//! puts it in force. Then it applies changes: after a notification, after a change made by this node, and at least every
//! `database.poll_every`. The last valid configuration is saved to disk (`snapshot.rs`), so a node starts and serves while its
//! database is unreachable.
//!
//! If the rules of the database conflict with those of the settings file, the last valid rules stay in force. Keys, quotas and
//! blocks are applied nevertheless: a revocation must not wait for a rule to be renamed.

mod apply;
mod database_rules;
mod file_rules;
pub(crate) mod items;
mod listed_blocks;
mod preview;
pub(crate) mod resets;
mod rule_sources;
mod snapshot;
mod task;
mod usage;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, watch};
use tollgate::RuleSet;
use tollgate::config::Problems;
use tollgate_stores::counters::Counters;
use tollgate_stores::sql::{Database, Item, ItemKind, SqlSettings, StoredItem};
use tracing::warn;

pub(crate) use self::file_rules::FileRules;
use self::listed_blocks::ListedBlocks;
pub(crate) use self::preview::preview;
use self::rule_sources::RuleSources;
pub(crate) use self::task::run;
pub(crate) use self::usage::{close, flush_usage};
use crate::ServiceLimiter;
use crate::auth::api_keys::{ImportedKey, KeySecret, NewKey};
use crate::config::settings::{CounterSettings, Settings};
use crate::records::usage::Flusher;
use crate::runtime::clock::Clock;
use crate::runtime::data_dir::DataDir;

/// How long a request that changed the configuration waits for the change to be in force on this node.
const APPLY_TIMEOUT: Duration = Duration::from_secs(2);

const SECRET_DIFFERS: &str = "auth.key_secret is not the secret that the API keys in the database were created with, so this node \
    accepts none of them; use the secret of the other nodes, or restore the old keys.secret; if it is lost, empty the table \
    key_check, restart, and rotate every key";

/// The parts of the service that config sync works with.
#[derive(Clone)]
pub(crate) struct SyncParts {
    pub(crate) sync: Arc<ConfigSync>,
    pub(crate) limiter: Arc<ServiceLimiter>,
    pub(crate) clock: Clock,
    pub(crate) data_dir: Arc<DataDir>,
}

/// Why config sync cannot serve a request.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SyncError {
    /// The database was not reached since the start: try again later.
    #[error("the database is unreachable; /readyz shows the reason")]
    DatabaseUnreachable,
    /// Other nodes would not accept a new key: correct the secret.
    #[error("{SECRET_DIFFERS}")]
    SecretDiffers,
    /// The operating system is broken.
    #[error("the system provides no randomness for a new key")]
    NoRandomness,
}

/// The state that the sync task shares with request handlers.
pub(crate) struct ConfigSync {
    secret: KeySecret,
    sql: SqlSettings,
    poll_every: Duration,
    /// Whether overrides and resets are stored in the database. If counters are shared on Redis but the database is a local
    /// file, they are stored on Redis.
    stores_overrides: bool,
    /// A random id of this process.
    node: String,
    /// Set once the database was reached and its schema migrated.
    database: ArcSwapOption<Database>,
    /// Whether API keys were loaded, from the database or the snapshot.
    has_keys: AtomicBool,
    /// Whether the database has items whose ids are not normalized, stored under other `[identity]` settings.
    has_other_ids: AtomicBool,
    /// Locked from compiling a rule set until it is in force, so that an older set cannot replace a newer one. Checks never
    /// lock it.
    rules: Mutex<RuleSources>,
    /// Absent until the database was loaded.
    listed_blocks: Mutex<Option<ListedBlocks>>,
    state: ArcSwap<SyncState>,
    /// The version in force on this node.
    version: watch::Sender<u64>,
    /// Whether the initial load has succeeded or failed.
    initial_load_done: watch::Sender<bool>,
    poll_now: Notify,
    pub(crate) flusher: tokio::sync::Mutex<Flusher>,
}

/// The origin of the configuration in force.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Source {
    /// None: `database.url` is set, and neither that database nor a snapshot of it was read yet.
    Unread,
    /// The settings file alone: nothing was loaded yet.
    #[default]
    File,
    /// The snapshot on disk.
    Snapshot,
    /// The database.
    Database,
}

/// The status of config sync.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SyncState {
    pub(crate) source: Source,
    /// Why the last query failed.
    pub(crate) database_error: Option<String>,
    /// Why the rules of the database are not in force.
    pub(crate) rules_error: Option<String>,
    /// Whether other nodes hash API keys with another secret.
    pub(crate) secret_differs: bool,
    /// Whether the initial load is in progress.
    pub(crate) is_loading: bool,
}

impl SyncState {
    /// All problems in one line.
    pub(crate) fn problem(&self) -> Option<String> {
        let in_force = match self.source {
            Source::Unread => {
                "this node has never read its configuration, so checks answer 503 unless on_store_failure is open"
            }
            Source::File => "only the rules of the settings file are in force, and no API key is accepted",
            Source::Snapshot => "the last valid configuration on disk is in force",
            Source::Database => "the last configuration stays in force",
        };
        let database = self.database_error.as_ref().map(|error| format!("{error}; {in_force}"));
        let rules = self.rules_error.as_ref().map(|error| format!("rules are not in force: {error}"));
        let secret = self.secret_differs.then(|| SECRET_DIFFERS.to_owned());
        let all: Vec<String> = [database, rules, secret].into_iter().flatten().collect();
        if all.is_empty() { None } else { Some(all.join("; ")) }
    }
}

impl ConfigSync {
    pub(crate) fn new(settings: &Settings, secret: KeySecret) -> Self {
        let shared_counters = matches!(settings.counters, CounterSettings::Redis(_));
        let stores_overrides = !(shared_counters && settings.database.is_local());
        if !stores_overrides {
            warn!(
                "counters are shared on Redis, but the database is a local file: rules, keys, quotas and blocks created on this \
                 node are unknown to other nodes; set database.url"
            );
        }
        let source = if settings.database.url.is_some() { Source::Unread } else { Source::File };
        let node = format!("{:032x}", u128::from_le_bytes(tollgate::Seed::random().0));
        ConfigSync {
            secret,
            sql: settings.database.sql(&settings.data_dir),
            poll_every: settings.database.poll_every,
            stores_overrides,
            flusher: tokio::sync::Mutex::new(Flusher::new(node.clone())),
            node,
            database: ArcSwapOption::empty(),
            has_keys: AtomicBool::new(false),
            has_other_ids: AtomicBool::new(false),
            rules: Mutex::new(RuleSources::new(FileRules::new(settings))),
            listed_blocks: Mutex::new(None),
            state: ArcSwap::from_pointee(SyncState { source, ..SyncState::default() }),
            version: watch::Sender::new(0),
            initial_load_done: watch::Sender::new(false),
            poll_now: Notify::new(),
        }
    }

    /// The database.
    ///
    /// # Errors
    /// Until it was reached once. Later outages are reported by its own methods.
    pub(crate) fn database(&self) -> Result<Database, SyncError> {
        self.database.load().as_deref().cloned().ok_or(SyncError::DatabaseUnreachable)
    }

    /// Notifies all nodes of a change, and waits a moment until it is in force on this one. Returns whether it is.
    pub(crate) async fn wait_until_applied(&self, counters: &Counters, version: u64) -> bool {
        if let Some(redis) = counters.redis().cloned() {
            tokio::spawn(async move { redis.fleet().notify_change().await });
        }
        self.poll_now();
        let mut versions = self.version.subscribe();
        let in_force = versions.wait_for(|applied| *applied >= version);
        matches!(tokio::time::timeout(APPLY_TIMEOUT, in_force).await, Ok(Ok(_)))
    }

    /// Makes the task poll the database now.
    pub(crate) fn poll_now(&self) {
        self.poll_now.notify_one();
    }

    /// The rules of the file and of the database.
    pub(crate) fn rules(&self) -> MutexGuard<'_, RuleSources> {
        self.rules.lock()
    }

    /// Replaces the rules of the settings file, and passes the new rule set to `put_in_force`.
    ///
    /// # Errors
    /// When they conflict with those of the database. Nothing changes then.
    pub(crate) fn replace_file(
        &self,
        file: FileRules,
        put_in_force: impl FnOnce(RuleSet),
    ) -> Result<(), Problems> {
        let mut rules = self.rules.lock();
        let had_error = self.state.load().rules_error.is_some();
        let (set, is_valid) = rules.replace_file(file, had_error)?;
        if is_valid {
            self.update_state(|state| state.rules_error = None);
        }
        put_in_force(set);
        Ok(())
    }

    /// Creates an API key.
    ///
    /// # Errors
    /// When the system provides no randomness, or other nodes would not accept the key.
    pub(crate) fn new_key(&self) -> Result<NewKey, SyncError> {
        self.require_same_secret()?;
        NewKey::random().map_err(|_| SyncError::NoRandomness)
    }

    /// The account of a key of another system with this SHA-256.
    ///
    /// # Errors
    /// When other nodes would not accept the key.
    pub(crate) fn import_key(&self, sha256: &[u8; 32]) -> Result<ImportedKey, SyncError> {
        self.require_same_secret()?;
        Ok(ImportedKey::new(&self.secret, sha256))
    }

    /// Creates a new secret for an existing API key.
    ///
    /// # Errors
    /// As [`new_key`](Self::new_key).
    pub(crate) fn new_secret(&self, id: &str) -> Result<NewKey, SyncError> {
        self.require_same_secret()?;
        NewKey::with_id(id).map_err(|_| SyncError::NoRandomness)
    }

    fn require_same_secret(&self) -> Result<(), SyncError> {
        if self.state.load().secret_differs { Err(SyncError::SecretDiffers) } else { Ok(()) }
    }

    pub(crate) fn secret(&self) -> &KeySecret {
        &self.secret
    }

    /// Whether API keys were loaded. Before that, no key can be verified.
    pub(crate) fn has_keys(&self) -> bool {
        self.has_keys.load(Ordering::Relaxed)
    }

    /// Whether this node must not decide yet: it might admit blocked clients and made-up API keys.
    pub(crate) fn is_unread(&self) -> bool {
        !self.has_keys() && self.state.load().source == Source::Unread
    }

    /// Whether overrides and resets are stored in the database, not on Redis.
    pub(crate) fn stores_overrides(&self) -> bool {
        self.stores_overrides
    }

    pub(crate) fn state(&self) -> Arc<SyncState> {
        self.state.load_full()
    }

    /// Whether the last query of the database failed.
    pub(crate) fn is_database_down(&self) -> bool {
        self.state.load().database_error.is_some()
    }

    /// The rules, tiers or blocks that were last read from the database. Rules and tiers have no revision: their version is 0.
    /// `None` for other kinds, and if they are not in memory.
    pub(crate) fn items_in_memory(&self, kind: ItemKind) -> Option<Vec<StoredItem>> {
        let is_kind = |item: &&Item| item.id().kind() == kind;
        match kind {
            ItemKind::Rule | ItemKind::Tier if self.has_keys() => {
                Some(self.rules.lock().database.items().filter(is_kind).map(without_revision).collect())
            }
            ItemKind::Block => self.listed_blocks.lock().as_ref()?.list(),
            _ => None,
        }
    }

    /// The version in force on this node; 0 before the initial load.
    pub(crate) fn version(&self) -> u64 {
        *self.version.borrow()
    }

    /// Waits until the initial load has succeeded or failed.
    pub(crate) async fn wait_for_initial_load(&self, timeout: Duration) {
        let mut done = self.initial_load_done.subscribe();
        let _ = tokio::time::timeout(timeout, done.wait_for(|done| *done)).await;
    }

    fn update_state(&self, change: impl Fn(&mut SyncState)) {
        self.state.rcu(|state| {
            let mut next = SyncState::clone(state);
            change(&mut next);
            next
        });
    }
}

fn without_revision(item: &Item) -> StoredItem {
    let (version, created_by) = (0, String::new());
    StoredItem { item: item.clone(), version, created_by, created_at_micros: 0, updated_at_micros: 0 }
}

#[cfg(test)]
mod tests;

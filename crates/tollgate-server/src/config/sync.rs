//! What people configure in the database, followed and put in force.
//!
//! No request waits for the database. A task of its own (`catalog/follow.rs`) reads everything at one version, compiles it,
//! puts it in force, and then follows what changes: when it hears of a change, when this node has made one, and at the
//! latest every `database.poll_every`. The last good configuration is on disk (`catalog/snapshot.rs`): a node starts and
//! serves without its database, and says so.
//!
//! Rules that do not go together with those of the file keep the last good set in force. Keys, quotas and blocks follow all
//! the same: a revocation does not wait until somebody has renamed a rule.

mod apply;
mod database_rules;
mod follow;
pub(crate) mod items;
pub(crate) mod other_forms;
mod preview;
pub(crate) mod resets;
pub(crate) mod snapshot;
mod usage;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tollgate::RuleSet;
use tollgate::config::Problems;
use tollgate_stores::sql::{Database, DatabaseError, ItemWrite, SqlSettings};
use tracing::warn;

use self::database_rules::DatabaseRules;
pub(crate) use self::database_rules::FileRules;
pub(crate) use self::follow::follow;
use self::other_forms::OtherForms;
pub(crate) use self::usage::{close, flush_usage};
use crate::app::App;
use crate::auth::api_keys::{KeySecret, NewKey, Verifier};
use crate::config::settings::{CounterSettings, Settings};
use crate::http::error::{ApiError, Code};
use crate::records::usage::Flusher;

/// How long whoever has changed something waits until it is in force here.
const APPLY_TIMEOUT: Duration = Duration::from_secs(2);

/// A user and an endpoint.
type OverrideKey = (Box<str>, Box<str>);

/// The configuration of the database, as far as this node knows it.
pub(crate) struct ConfigSync {
    secret: KeySecret,
    sql: SqlSettings,
    poll_every: Duration,
    /// Whether the database is the home of numbers for single users and of resets. Where counters are shared on Redis and the
    /// database is a file of this node, Redis is.
    keeps_limits: bool,
    /// This process, unlike any other.
    node: String,
    /// Once it is there and of our schema.
    database: ArcSwapOption<Database>,
    /// Whether keys are known at all: from the database, or from the last snapshot.
    has_keys: AtomicBool,
    rules: Mutex<Rules>,
    /// What the database holds in another spelling than it is read in.
    other_forms: ArcSwap<OtherForms>,
    state: ArcSwap<SyncState>,
    /// The version in force here.
    version: watch::Sender<u64>,
    /// Whether the first configuration is in force, or known not to be had.
    settled: watch::Sender<bool>,
    wake: Notify,
    /// Users and endpoints whose numbers this node is setting right now.
    being_set: Mutex<HashSet<OverrideKey>>,
    /// Those that it has set, and that are to be compared with the database; how often that was asked for.
    to_compare: Mutex<HashMap<OverrideKey, u64>>,
    snapshot_failures: AtomicU64,
    /// Asked for by the task that flushes and by the end of the process.
    pub(crate) flusher: tokio::sync::Mutex<Flusher>,
}

/// What the rule set is made of. Locked from when one is compiled until it is in force, or else one that was compiled
/// before, of an older file or book, could take its place. Never by a request that is decided.
struct Rules {
    file: FileRules,
    /// As the database has it.
    book: DatabaseRules,
    /// The last that went together with the file.
    good: DatabaseRules,
}

/// Where the configuration in force is from.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Source {
    /// The file alone: nothing has been read yet.
    #[default]
    File,
    /// The last good one, from disk.
    Snapshot,
    /// The database.
    Database,
}

/// How the catalog stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SyncState {
    pub(crate) source: Source,
    /// Why the database cannot be asked, if it cannot.
    pub(crate) database_error: Option<String>,
    /// Why its rules are not in force, if they are not.
    pub(crate) rules_error: Option<String>,
    /// Whether other nodes hash keys with another secret.
    pub(crate) secret_differs: bool,
    /// Whether everything is being read for the first time.
    pub(crate) is_loading: bool,
}

impl SyncState {
    /// What is wrong, in words.
    pub(crate) fn trouble(&self) -> Option<String> {
        let from = match self.source {
            Source::File => "only the rules of the file are in force, and no API key is known",
            Source::Snapshot => "the last good configuration on disk is in force",
            Source::Database => "the configuration it had is in force",
        };
        let database = self.database_error.as_ref().map(|error| format!("{error}: {from}"));
        let rules = self.rules_error.as_ref().map(|error| format!("rules are not in force: {error}"));
        let secret = self.secret_differs.then(|| SECRET_DIFFERS.to_owned());
        let all: Vec<String> = [database, rules, secret].into_iter().flatten().collect();
        if all.is_empty() { None } else { Some(all.join("; ")) }
    }
}

const SECRET_DIFFERS: &str = "auth.key_secret is not the one that the API keys in the database were made with, so none of them is \
    known here: use that of the other nodes, or put the old keys.secret back; if it is lost, empty the table key_check, \
    restart, and rotate every key";

#[allow(dead_code, reason = "the admin routes use all of it")]
impl ConfigSync {
    pub(crate) fn new(settings: &Settings, secret: KeySecret) -> Self {
        let shared_counters = matches!(settings.counters, CounterSettings::Redis(_));
        let keeps_limits = !(shared_counters && settings.database.is_of_this_node());
        if !keeps_limits {
            warn!(
                "counters are shared on Redis, and the database is a file of this node: rules, keys, quotas and blocks that \
                 are made here are this node's alone (database.url)"
            );
        }
        let node = format!("{:032x}", u128::from_le_bytes(tollgate::Seed::random().0));
        ConfigSync {
            secret,
            sql: settings.database.sql(&settings.data_dir),
            poll_every: settings.database.poll_every,
            keeps_limits,
            flusher: tokio::sync::Mutex::new(Flusher::new(node.clone())),
            node,
            database: ArcSwapOption::empty(),
            has_keys: AtomicBool::new(false),
            rules: Mutex::new(Rules {
                file: FileRules::of(settings),
                book: DatabaseRules::default(),
                good: DatabaseRules::default(),
            }),
            other_forms: ArcSwap::default(),
            state: ArcSwap::default(),
            version: watch::Sender::new(0),
            settled: watch::Sender::new(false),
            wake: Notify::new(),
            being_set: Mutex::default(),
            to_compare: Mutex::default(),
            snapshot_failures: AtomicU64::new(0),
        }
    }

    /// The database, to write to and to list from.
    ///
    /// # Errors
    /// 503 while it has never been reached. Once it has, its own calls say when it is away.
    pub(crate) fn database(&self) -> Result<Database, ApiError> {
        let database = self.database.load_full().map(|database| (*database).clone());
        database.ok_or_else(|| {
            ApiError::new(Code::ServiceUnavailable, "the database cannot be reached; /readyz says why")
        })
    }

    /// Has this node and the others follow what was just changed; waits a moment until it is in force here. Whether it is.
    pub(crate) async fn catch_up(&self, app: &App, version: u64) -> bool {
        if let Some(redis) = app.counters().redis().cloned() {
            tokio::spawn(async move { redis.notify_change().await });
        }
        self.wake.notify_one();
        let mut versions = self.version.subscribe();
        let in_force = versions.wait_for(|known| *known >= version);
        matches!(tokio::time::timeout(APPLY_TIMEOUT, in_force).await, Ok(Ok(_)))
    }

    /// Has this node look at the database again, because settings are others.
    pub(crate) fn look_again(&self) {
        self.wake.notify_one();
    }

    /// Whether the rule of this name is from the database, not from the file.
    pub(crate) fn is_from_database(&self, rule: &str) -> bool {
        self.rules.lock().good.has(rule)
    }

    /// The rule set as it would be after these changes. Where several rules do not go together already, each can be removed: then
    /// it is the set that stays in force.
    ///
    /// # Errors
    /// Everything that is wrong with it: fields of rules and tiers, and names that are in the file too.
    pub(crate) fn compile_with<'w>(
        &self,
        changes: impl IntoIterator<Item = &'w ItemWrite>,
    ) -> Result<RuleSet, Problems> {
        let rules = self.rules.lock();
        let (mut book, mut only_removes) = (rules.book.clone(), true);
        for change in changes {
            only_removes &= matches!(change, ItemWrite::Delete(_));
            book.write(change);
        }
        match book.compile(&rules.file) {
            Err(_) if only_removes && rules.book.compile(&rules.file).is_err() => {
                rules.good.compile(&rules.file)
            }
            compiled => compiled,
        }
    }

    /// What is kept of a key in place of its text.
    pub(crate) fn key_hash(&self, key: &str) -> Verifier {
        self.secret.verifier(key)
    }

    /// A new key.
    ///
    /// # Errors
    /// When there is no randomness, or other nodes would not know the key.
    pub(crate) fn new_key(&self) -> Result<NewKey, ApiError> {
        self.require_same_secret()?;
        NewKey::random().map_err(|_| no_randomness())
    }

    /// Another secret for a key there is.
    ///
    /// # Errors
    /// As [`ConfigSync::new_key`].
    pub(crate) fn new_secret(&self, id: &str) -> Result<NewKey, ApiError> {
        self.require_same_secret()?;
        NewKey::with_id(id).map_err(|_| no_randomness())
    }

    fn require_same_secret(&self) -> Result<(), ApiError> {
        if self.state.load().secret_differs {
            return Err(ApiError::new(Code::Conflict, SECRET_DIFFERS));
        }
        Ok(())
    }

    pub(crate) fn secret(&self) -> &KeySecret {
        &self.secret
    }

    /// Whether keys are known at all; before, nothing can be said about one.
    pub(crate) fn has_keys(&self) -> bool {
        self.has_keys.load(Ordering::Relaxed)
    }

    /// Whether numbers for single users and resets are kept in the database.
    pub(crate) fn keeps_limits(&self) -> bool {
        self.keeps_limits
    }

    pub(crate) fn state(&self) -> Arc<SyncState> {
        self.state.load_full()
    }

    /// The version in force here; 0 before the first.
    pub(crate) fn version(&self) -> u64 {
        *self.version.borrow()
    }

    pub(crate) fn snapshot_failures(&self) -> u64 {
        self.snapshot_failures.load(Ordering::Relaxed)
    }

    /// Waits until a first configuration is in force or known not to be had, for a while at most.
    pub(crate) async fn settled(&self, patience: Duration) {
        let mut settled = self.settled.subscribe();
        let _ = tokio::time::timeout(patience, settled.wait_for(|settled| *settled)).await;
    }

    /// Takes other rules of the file; `put_in_force` is given the rule set with them.
    ///
    /// # Errors
    /// When they do not go together with those of the database; nothing has changed then.
    pub(crate) fn replace_file(
        &self,
        file: FileRules,
        put_in_force: impl FnOnce(RuleSet),
    ) -> Result<(), Problems> {
        let mut rules = self.rules.lock();
        let Rules { book, good, .. } = &mut *rules;
        let set = match book.compile(&file) {
            Ok(set) => {
                *good = book.clone();
                self.update_state(|state| state.rules_error = None);
                set
            }
            // What the database has now was refused already: what is in force must go with the file.
            Err(problems) if self.state.load().rules_error.is_none() => return Err(problems),
            Err(_) => good.compile(&file)?,
        };
        rules.file = file;
        put_in_force(set);
        Ok(())
    }

    /// Says, as long as the answer lives, that this node is setting numbers and carries over itself what was used.
    pub(crate) fn begin_to_set(&self, user: &str, endpoint: &str) -> BeingSet<'_> {
        let whose = (Box::from(user), Box::from(endpoint));
        self.being_set.lock().insert(whose.clone());
        BeingSet { sync: self, whose }
    }

    /// Has the follower compare numbers that this node has just put in force with those of the database: somebody else may
    /// have set others since, and they may have been followed before ours were in force.
    pub(crate) fn compare_again(&self, user: &str, endpoint: &str) {
        *self.to_compare.lock().entry((Box::from(user), Box::from(endpoint))).or_default() += 1;
    }

    fn is_being_set(&self, user: &str, endpoint: &str) -> bool {
        let being_set = self.being_set.lock();
        // Nobody asks without changes, and then there are one or two.
        being_set.iter().any(|(of, on)| **of == *user && **on == *endpoint)
    }

    fn update_state(&self, change: impl Fn(&mut SyncState)) {
        self.state.rcu(|state| {
            let mut next = SyncState::clone(state);
            change(&mut next);
            next
        });
    }
}

/// Numbers that this node is setting.
pub(crate) struct BeingSet<'a> {
    sync: &'a ConfigSync,
    whose: OverrideKey,
}

impl Drop for BeingSet<'_> {
    fn drop(&mut self) {
        self.sync.being_set.lock().remove(&self.whose);
    }
}

fn no_randomness() -> ApiError {
    ApiError::new(Code::InternalError, "the system has no randomness to make a key from")
}

/// What a caller is told when the database did not do what it was asked to.
pub(crate) fn failed(error: &DatabaseError) -> ApiError {
    match error {
        DatabaseError::Value { field, reason } => ApiError::invalid(field.to_string(), reason.to_string()),
        DatabaseError::Constraint { .. } => {
            ApiError::new(Code::Conflict, "the database refuses the change: it does not fit what is there")
        }
        DatabaseError::Conflict { .. } => ApiError::new(Code::Conflict, error.to_string()),
        DatabaseError::VersionConflict { .. } => ApiError::new(
            Code::ServiceUnavailable,
            "others change the configuration all the time, and nothing was changed: send it again",
        ),
        DatabaseError::OutcomeUnknown { .. } => ApiError::new(
            Code::ServiceUnavailable,
            "whether the change was made is not known: look before sending it again",
        ),
        // An outage is told when it begins, not with every request.
        error if error.is_unreachable() => ApiError::new(
            Code::ServiceUnavailable,
            "the database cannot be reached, and nothing was changed: send it again",
        ),
        error => {
            tracing::warn!(%error, "the database refuses what it was asked");
            let message = "the database refuses what it was asked, and nothing was changed: the log says why";
            ApiError::new(Code::ServiceUnavailable, message)
        }
    }
}

#[cfg(test)]
mod tests;

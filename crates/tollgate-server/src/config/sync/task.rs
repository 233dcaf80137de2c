//! The background task that keeps this node in sync with the database.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tollgate::rules::overrides::Overrides;
use tollgate_stores::sql::{ChangeListener, Changes, Database, DatabaseError, Engine, KeySecretCheck};
use tracing::{error, info, warn};

use super::apply::{Configuration, ItemState, apply_changes, load, put_in_force};
use super::snapshot::{self, Head};
use super::{ConfigSync, SECRET_DIFFERS, Source, SyncParts, resets};
use crate::config::normalize;
use crate::config::reload::ReloadHandle;

/// How long a start waits for a database server before it uses the snapshot.
const SERVER_LOAD_TIMEOUT: Duration = Duration::from_secs(1);
/// The same for SQLite, which is slow only on a busy machine.
const SQLITE_LOAD_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause between attempts of the initial load.
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(5);
/// Minimum interval between snapshots, and its minimum as a multiple of the time that a snapshot takes.
const SNAPSHOT_EVERY: Duration = Duration::from_secs(1);
const SNAPSHOT_PAUSE_FACTOR: u32 = 20;
/// How long a poll may take. Drivers wait much longer for a server that is down.
const POLL_TIMEOUT: Duration = Duration::from_secs(5);
/// Resets that are read back after a gap.
const RESETS_MAX: u32 = 1_000;

/// Keeps this node in sync for as long as the service runs. `reload` is retried when the rules of the database change.
pub(crate) async fn run(parts: SyncParts, reload: ReloadHandle) {
    let saved_at = parts.data_dir.counters_saved_at();
    let previous = PreviousRun {
        counters_saved_at: saved_at.unwrap_or_else(|| parts.clock.now().as_micros()),
        version: snapshot::saved_version(&parts.data_dir, &parts.sync.sql.describe()),
    };
    let mut task = SyncTask {
        parts,
        reload,
        previous,
        last_saved: None,
        save_after: Instant::now(),
        is_secret_checked: false,
    };
    let database = task.load_initial().await;
    task.run(database).await;
}

/// Why a poll failed.
#[derive(Debug, thiserror::Error)]
enum PollError {
    #[error(transparent)]
    Database(#[from] DatabaseError),
    #[error("the database does not respond")]
    Timeout,
}

/// What the previous process left on disk.
struct PreviousRun {
    /// When the counters were saved, in microseconds since 1970; without saved counters, when this process started.
    counters_saved_at: u64,
    /// The configuration version of the snapshot.
    version: Option<u64>,
}

struct SyncTask {
    parts: SyncParts,
    reload: ReloadHandle,
    previous: PreviousRun,
    /// The version of the last snapshot.
    last_saved: Option<u64>,
    save_after: Instant,
    is_secret_checked: bool,
}

impl SyncTask {
    /// Retries until the whole configuration was loaded. Meanwhile the snapshot is in force.
    async fn load_initial(&mut self) -> Database {
        let sync = Arc::clone(&self.parts.sync);
        let is_sqlite = sync.sql.engine() == Engine::Sqlite;
        let first_timeout = if is_sqlite { SQLITE_LOAD_TIMEOUT } else { SERVER_LOAD_TIMEOUT };
        let (mut pause, mut snapshot_used) = (RETRY_FIRST, false);
        loop {
            let (parts, timeout) =
                (self.parts.clone(), if snapshot_used { Duration::MAX } else { first_timeout });
            let mut loading = Box::pin(async move { connect_and_load(&parts).await });
            let loaded = if let Ok(loaded) = tokio::time::timeout(timeout, &mut loading).await {
                loaded
            } else {
                snapshot_used = true;
                if !sync.state.load().is_loading {
                    note_outage(&sync, &format!("{} does not respond", sync.sql.describe()));
                }
                self.load_snapshot("the initial load takes long").await;
                loading.await
            };
            match loaded {
                Ok((database, configuration)) => {
                    self.begin(&database, configuration).await;
                    return database;
                }
                Err(error) => {
                    note_outage(&sync, &outage_reason(&sync, error.into()).await);
                    if !snapshot_used {
                        snapshot_used = true;
                        self.load_snapshot("the initial load failed").await;
                    }
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(RETRY_MAX.min(sync.poll_every * 2));
        }
    }

    /// Puts the snapshot in force.
    async fn load_snapshot(&self, reason: &'static str) {
        let SyncParts { sync, limiter, data_dir, .. } = &self.parts;
        let (data_dir, database) = (Arc::clone(data_dir), sync.sql.describe());
        let read = tokio::task::spawn_blocking(move || snapshot::load(&data_dir, &database)).await;
        if let Some(configuration) = read.ok().flatten() {
            let version = configuration.version;
            put_in_force(sync, limiter, configuration, Source::Snapshot);
            warn!(
                version,
                reason, "serving without the database: the last valid configuration on disk is in force"
            );
        } else if sync.is_unread() {
            warn!(
                reason,
                "not ready: there is no configuration on disk, so checks answer 503 until the database was read once, unless on_store_failure is open"
            );
        } else {
            warn!(
                reason,
                "serving without the database: there is no configuration on disk, only the rules of the settings file are in force"
            );
        }
        sync.initial_load_done.send_replace(true);
    }

    async fn begin(&mut self, database: &Database, configuration: Configuration) {
        let SyncParts { sync, limiter, .. } = &self.parts;
        let version = configuration.version;
        let (users, keys) = (configuration.accounts.users(), configuration.accounts.keys());
        warn_if_older(version, self.previous.version);
        put_in_force(sync, limiter, configuration, Source::Database);
        info!(version, users, keys, database = %sync.sql.describe(), "the configuration of the database is in force");
        self.replay_missed_resets(database).await;
        sync.database.store(Some(Arc::new(database.clone())));
        sync.initial_load_done.send_replace(true);
        self.check_key_secret(database).await;
        self.save_if_due().await;
    }

    /// Checks once per process; repeated if the database does not respond.
    async fn check_key_secret(&mut self, database: &Database) {
        let sync = &self.parts.sync;
        if self.is_secret_checked {
            return;
        }
        if let Ok(check) = database.check_key_secret(&sync.secret.fingerprint()).await {
            let differs = check == KeySecretCheck::Differs;
            if differs {
                error!("{SECRET_DIFFERS}");
            }
            sync.update_state(|state| state.secret_differs = differs);
            self.is_secret_checked = true;
        }
    }

    /// Counters that were read from disk, or counted before the database was reached, may miss resets: those made later, and
    /// those that the previous process had not received.
    async fn replay_missed_resets(&self, database: &Database) {
        let saved_at = self.previous.counters_saved_at;
        let Ok(entries) = resets::latest(database, RESETS_MAX).await else { return };
        let is_new = |version| self.previous.version.is_some_and(|previous| version > previous);
        for entry in entries.iter().filter(|entry| entry.at_micros >= saved_at || is_new(entry.version)) {
            self.replay_reset(entry).await;
        }
    }

    async fn replay_reset(&self, entry: &tollgate_stores::sql::AuditEntry) {
        resets::replay(&self.parts.sync, &self.parts.limiter, entry).await;
    }

    /// Polls and applies changes, forever.
    async fn run(&mut self, database: Database) {
        let mut listener = database.change_listener();
        let mut notifications =
            self.parts.limiter.counters().redis().map(|redis| redis.fleet().change_notifications());
        loop {
            self.wait_for_change(&mut listener, &mut notifications).await;
            match self.poll(&database).await {
                Ok(()) => {
                    note_recovery(&self.parts.sync);
                    self.check_key_secret(&database).await;
                }
                Err(error) => {
                    let reason = outage_reason(&self.parts.sync, error).await;
                    note_outage(&self.parts.sync, &reason);
                }
            }
            self.save_if_due().await;
        }
    }

    /// Waits for a notification, at most `database.poll_every`.
    async fn wait_for_change(
        &self,
        listener: &mut ChangeListener,
        notifications: &mut Option<watch::Receiver<u64>>,
    ) {
        let notified = async {
            match notifications {
                Some(notifications) => drop(notifications.changed().await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.parts.sync.poll_now.notified() => {}
            () = listener.changed() => {}
            () = notified => {}
            () = tokio::time::sleep(self.parts.sync.poll_every) => {}
        }
    }

    async fn poll(&mut self, database: &Database) -> Result<(), PollError> {
        let SyncParts { sync, limiter, clock, .. } = &self.parts;
        let changes = tokio::time::timeout(POLL_TIMEOUT, database.changes_since(sync.version())).await;
        match changes.map_err(|_| PollError::Timeout)?? {
            _ if sync.rules().normalization_changed() => self.reload_all(database).await?,
            Changes::Changed { items, .. } if self.has_other_ids(&items) => self.reload_all(database).await?,
            Changes::Unchanged => {}
            Changes::Changed { version, items, events } => {
                if apply_changes(sync, limiter, clock.now(), version, &items).await {
                    self.reload.retry_after_conflict().await;
                }
                for event in &events {
                    self.replay_reset(event).await;
                }
            }
            Changes::ReloadRequired => self.reload_all(database).await?,
        }
        Ok(())
    }

    /// Whether several items may apply to the same client, so that the changed ones alone do not determine what is in force.
    fn has_other_ids(&self, changed: &[ItemState]) -> bool {
        let rules = self.parts.limiter.rules();
        self.parts.sync.has_other_ids.load(Ordering::Relaxed)
            || !changed.iter().all(|(id, _)| normalize::is_normalized(id, rules.normalization()))
    }

    /// Loads and applies the whole configuration, then replays the resets that were skipped with it.
    async fn reload_all(&self, database: &Database) -> Result<(), PollError> {
        let SyncParts { sync, limiter, .. } = &self.parts;
        let previous = sync.version();
        let normalization = sync.rules().file_normalization().clone();
        let configuration = load(database, &normalization).await?;
        let version = configuration.version;
        // Read first: once the new version is in force, an error would lose them.
        let resets = resets::latest(database, RESETS_MAX).await?;
        info!(version, "reloaded the whole configuration");
        warn_if_older(version, Some(previous));
        put_in_force(sync, limiter, configuration, Source::Database);
        self.reload.retry_after_conflict().await;
        for entry in resets.iter().filter(|entry| entry.version > previous && entry.version <= version) {
            self.replay_reset(entry).await;
        }
        Ok(())
    }

    /// Saves a snapshot if the version in force is not on disk yet, at most once per interval.
    async fn save_if_due(&mut self) {
        let version = self.parts.sync.version();
        if self.last_saved == Some(version) || Instant::now() < self.save_after {
            return;
        }
        let started = Instant::now();
        if save_snapshot(&self.parts).await {
            self.last_saved = Some(version);
        }
        self.save_after = Instant::now() + SNAPSHOT_EVERY.max(started.elapsed() * SNAPSHOT_PAUSE_FACTOR);
    }
}

/// Saves the configuration in force to disk. Returns whether it worked.
pub(super) async fn save_snapshot(parts: &SyncParts) -> bool {
    let SyncParts { sync, limiter, data_dir, .. } = parts.clone();
    let saved = tokio::task::spawn_blocking(move || {
        let rules = sync.rules.lock().last_valid.clone();
        let (version, in_force) = (sync.version(), limiter.rules());
        let none = Overrides::default();
        let overrides = if sync.stores_overrides { in_force.overrides().as_ref() } else { &none };
        let database = sync.sql.describe();
        let head = Head::new(database, version, &rules, overrides, in_force.normalization().clone());
        data_dir.save_configuration(|file| snapshot::write(&head, in_force.accounts(), file)).is_ok()
    });
    saved.await.unwrap_or(false)
}

async fn connect_and_load(parts: &SyncParts) -> Result<(Database, Configuration), DatabaseError> {
    let database = Database::connect(parts.sync.sql.clone()).await?;
    database.migrate().await?;
    parts.sync.update_state(|state| state.is_loading = true);
    let normalization = parts.sync.rules().file_normalization().clone();
    let loaded = load(&database, &normalization).await;
    parts.sync.update_state(|state| state.is_loading = false);
    Ok((database, loaded?))
}

/// A database at an earlier version was restored from a backup, or recreated. It is applied nevertheless.
fn warn_if_older(version: u64, previous: Option<u64>) {
    if let Some(previous) = previous.filter(|previous| version < *previous) {
        warn!(
            version,
            previous,
            "the database is at an earlier version than this node was: later rules, keys, quotas and blocks are gone"
        );
    }
}

/// Why the database failed, with its name and host. The pool reports only a timeout if the server is down; a new connection
/// reports the cause.
async fn outage_reason(sync: &ConfigSync, error: PollError) -> String {
    let (database, reason) = (sync.sql.describe(), error.to_string());
    if reason.contains(&database) {
        return reason;
    }
    let is_unreachable = match &error {
        PollError::Database(error) => error.is_unreachable(),
        PollError::Timeout => true,
    };
    if is_unreachable && let Err(cause) = Database::connect(sync.sql.clone()).await {
        return cause.to_string();
    }
    format!("{database}: {reason}")
}

/// Logs the beginning of an outage.
fn note_outage(sync: &ConfigSync, reason: &str) {
    let state = sync.state.load();
    match state.source {
        _ if state.database_error.is_some() => {}
        Source::Database => {
            warn!(error = %reason, "the database is unreachable: the last configuration stays in force");
        }
        // What is in force at a start is logged with the snapshot.
        _ => warn!(error = %reason, "the database is unreachable"),
    }
    sync.update_state(|state| state.database_error = Some(reason.to_owned()));
}

fn note_recovery(sync: &ConfigSync) {
    if sync.state.load().database_error.is_some() {
        info!(database = %sync.sql.describe(), "the database is reachable again");
        sync.update_state(|state| state.database_error = None);
    }
}

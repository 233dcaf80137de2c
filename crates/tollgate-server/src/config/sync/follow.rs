//! The task that follows the database.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tollgate::rules::overrides::Overrides;
use tollgate_stores::redis::RedisCounters;
use tollgate_stores::sql::{
    ChangeListener, Changes, Database, DatabaseError, Engine, ItemId, KeySecretCheck, StoredItem,
};
use tracing::{error, info, warn};

use super::apply::{compare, load, put_in_force, take_over};
use super::snapshot::{self, Configuration};
use super::{Source, resets};
use crate::app::App;
use crate::runtime::data_dir::DataDir;

/// How long a start waits for a server before it takes what is on disk.
const PATIENCE: Duration = Duration::from_secs(1);
/// The same for a file, which is nowhere but here: only a busy machine makes it late.
const FILE_PATIENCE: Duration = Duration::from_secs(5);
/// Between attempts to reach a database that has never been.
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(5);
/// The snapshot is written at most this often, and less often if it takes long.
const SNAPSHOT_EVERY: Duration = Duration::from_secs(1);
const SNAPSHOT_SHARE: u32 = 20;
/// How long the database may take to say what has changed. Drivers wait for a server that is down, and nobody is told.
const ANSWER_PATIENCE: Duration = Duration::from_secs(5);
/// Resets that are looked back at.
const RESETS_MAX: u32 = 1_000;

/// Follows the database for as long as the service runs.
pub(crate) async fn follow(app: Arc<App>, data_dir: Arc<DataDir>) {
    let before = Before {
        counters_saved_at: data_dir.counters_saved_at().unwrap_or_else(|| app.now().as_micros()),
        followed: data_dir.configuration_version(&app.config_sync().sql.describe()),
    };
    let mut follower = Follower {
        app,
        data_dir,
        before,
        last_saved: None,
        save_after: Instant::now(),
        has_compared_secrets: false,
    };
    let database = follower.load_initial().await;
    follower.run(database).await;
}

/// Why the database is not followed.
#[derive(Debug, thiserror::Error)]
enum Outage {
    /// It says so, or cannot be reached.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// It does not say anything.
    #[error("the database does not answer")]
    Silent,
}

/// What the last process has left.
struct Before {
    /// When the counters were saved, in microseconds since 1970; without any, when this process began to count.
    counters_saved_at: u64,
    /// Up to which version it had followed.
    followed: Option<u64>,
}

struct Follower {
    app: Arc<App>,
    data_dir: Arc<DataDir>,
    before: Before,
    /// The version of the snapshot on disk.
    last_saved: Option<u64>,
    save_after: Instant,
    /// Whether this node's secret is known to be that of the others, or not to be.
    has_compared_secrets: bool,
}

impl Follower {
    /// Until everything has been read once.
    async fn load_initial(&mut self) -> Database {
        let catalog = self.app.config_sync();
        let (mut pause, mut has_looked_at_disk) = (RETRY_FIRST, false);
        let first = if catalog.sql.engine() == Engine::Sqlite { FILE_PATIENCE } else { PATIENCE };
        loop {
            let app = Arc::clone(&self.app);
            let mut loading = Box::pin(async move { open_and_load(&app).await });
            let patience = if has_looked_at_disk { Duration::MAX } else { first };
            let loaded = if let Ok(loaded) = tokio::time::timeout(patience, &mut loading).await {
                loaded
            } else {
                has_looked_at_disk = true;
                self.take_from_disk("it takes long").await;
                loading.await
            };
            match loaded {
                Ok((database, configuration)) => {
                    self.begin(&database, configuration).await;
                    return database;
                }
                Err(error) => {
                    tell_of_outage(&self.app, &error.into());
                    if !has_looked_at_disk {
                        has_looked_at_disk = true;
                        self.take_from_disk("it cannot be used").await;
                    }
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(RETRY_MAX.min(catalog.poll_every * 2));
        }
    }

    /// Puts the last good configuration in force.
    async fn take_from_disk(&self, why: &'static str) {
        let (data_dir, place) = (Arc::clone(&self.data_dir), self.app.config_sync().sql.describe());
        let read = tokio::task::spawn_blocking(move || data_dir.load_configuration(&place)).await;
        let catalog = self.app.config_sync();
        if let Some(configuration) = read.ok().flatten() {
            let version = configuration.version;
            put_in_force(&self.app, configuration, Source::Snapshot);
            warn!(
                version,
                why, "serving without the database: the last good configuration on disk is in force"
            );
        } else {
            warn!(
                why,
                "serving without the database: there is no configuration on disk, so only the rules of the file are in force"
            );
        }
        catalog.settled.send_replace(true);
    }

    /// With a database that has been read.
    async fn begin(&mut self, database: &Database, configuration: Configuration) {
        let (catalog, version) = (self.app.config_sync(), configuration.version);
        let (users, keys) = (configuration.accounts.users(), configuration.accounts.keys());
        tell_if_older(version, self.before.followed);
        put_in_force(&self.app, configuration, Source::Database);
        info!(version, users, keys, place = %catalog.sql.describe(), "the configuration of the database is in force");
        self.make_up_for_resets(database).await;
        catalog.database.store(Some(Arc::new(database.clone())));
        catalog.settled.send_replace(true);
        self.compare_secrets(database).await;
        self.save_if_due().await;
    }

    /// Once: asked again if the database did not say.
    async fn compare_secrets(&mut self, database: &Database) {
        let catalog = self.app.config_sync();
        if self.has_compared_secrets {
            return;
        }
        if let Ok(check) = database.check_key_secret(&catalog.secret.fingerprint()).await {
            let differs = check == KeySecretCheck::Differs;
            if differs {
                error!("{}", super::SECRET_DIFFERS);
            }
            catalog.update_state(|state| state.secret_differs = differs);
            self.has_compared_secrets = true;
        }
    }

    /// Counters that were read from disk, or counted before the database was reached, may be older than a reset: of those
    /// that came later, and of those that this node had not heard of.
    async fn make_up_for_resets(&self, database: &Database) {
        let saved_at = self.before.counters_saved_at;
        let Ok(entries) = resets::latest(database, RESETS_MAX).await else { return };
        let unheard = |version| self.before.followed.is_some_and(|followed| version > followed);
        for entry in entries.iter().filter(|entry| entry.at_micros >= saved_at || unheard(entry.version)) {
            resets::replay(&self.app, entry).await;
        }
    }

    /// From then on.
    async fn run(&mut self, database: Database) {
        let mut listener = database.change_listener();
        let mut announcements = self.app.counters().redis().map(RedisCounters::change_notifications);
        loop {
            self.next_occasion(&mut listener, &mut announcements).await;
            match self.keep_up(&database).await {
                Ok(()) => {
                    tell_of_return(&self.app);
                    self.compare_secrets(&database).await;
                }
                Err(error) => tell_of_outage(&self.app, &error),
            }
            self.save_if_due().await;
        }
    }

    /// When somebody says that something has changed, and at the latest when it is time to look.
    async fn next_occasion(
        &self,
        listener: &mut ChangeListener,
        announcements: &mut Option<watch::Receiver<u64>>,
    ) {
        let announced = async {
            match announcements {
                Some(announcements) => drop(announcements.changed().await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.app.config_sync().wake.notified() => {}
            () = listener.changed() => {}
            () = announced => {}
            () = tokio::time::sleep(self.app.config_sync().poll_every) => {}
        }
    }

    async fn keep_up(&mut self, database: &Database) -> Result<(), Outage> {
        let changes = database.changes_since(self.app.config_sync().version());
        let changes = tokio::time::timeout(ANSWER_PATIENCE, changes).await;
        match changes.map_err(|_| Outage::Silent)?? {
            _ if self.reads_otherwise() => self.read_again(database).await?,
            Changes::Changed { items, .. } if !self.can_be_told(&items) => self.read_again(database).await?,
            Changes::Unchanged => {}
            Changes::Changed { version, items, events } => {
                take_over(&self.app, version, &items).await;
                for act in &events {
                    resets::replay(&self.app, act).await;
                }
            }
            Changes::ReloadRequired => self.read_again(database).await?,
        }
        let compared = tokio::time::timeout(ANSWER_PATIENCE, compare(&self.app, database)).await;
        Ok(compared.map_err(|_| Outage::Silent)??)
    }

    /// Whether the accounts were made for requests that were read otherwise: settings have changed, or they are from disk.
    fn reads_otherwise(&self) -> bool {
        let rules = self.app.limiter().rules();
        rules.accounts().normalization() != rules.normalization().ids
    }

    /// Whether these changes alone tell what is in force after them. Where there are several spellings of one item they do not.
    fn can_be_told(&self, changed: &[(ItemId, Option<StoredItem>)]) -> bool {
        let rules = self.app.limiter().rules();
        let others = self.app.config_sync().other_forms.load();
        let spelling = rules.normalization();
        spelling.is_exact() || changed.iter().all(|(id, _)| others.is_alone(id, spelling))
    }

    /// Puts everything in force anew, and makes up for the resets among what was not followed one by one.
    async fn read_again(&self, database: &Database) -> Result<(), Outage> {
        let followed = self.app.config_sync().version();
        let spelling = self.app.limiter().rules().normalization().clone();
        let configuration = load(database, &spelling).await?;
        let version = configuration.version;
        // Asked for first: once the version is in force nobody asks for them again.
        let resets = resets::latest(database, RESETS_MAX).await?;
        info!(version, "the whole configuration was read again");
        tell_if_older(version, Some(followed));
        put_in_force(&self.app, configuration, Source::Database);
        if let Some(reload) = self.app.reload() {
            reload.retry_after_clash().await;
        }
        for entry in resets.iter().filter(|entry| entry.version > followed && entry.version <= version) {
            resets::replay(&self.app, entry).await;
        }
        Ok(())
    }

    /// Writes the snapshot if what is in force is not on disk, and it is not too soon.
    async fn save_if_due(&mut self) {
        let version = self.app.config_sync().version();
        if self.last_saved == Some(version) || Instant::now() < self.save_after {
            return;
        }
        let started = Instant::now();
        if save(&self.app, &self.data_dir).await {
            self.last_saved = Some(version);
        }
        self.save_after = Instant::now() + SNAPSHOT_EVERY.max(started.elapsed() * SNAPSHOT_SHARE);
    }
}

/// Writes the configuration in force to disk; whether it worked.
pub(super) async fn save(app: &Arc<App>, data_dir: &Arc<DataDir>) -> bool {
    let (app, data_dir) = (Arc::clone(app), Arc::clone(data_dir));
    let saved = tokio::task::spawn_blocking(move || {
        let catalog = app.config_sync();
        let book = catalog.rules.lock().good.clone();
        let (version, place, rules) = (catalog.version(), catalog.sql.describe(), app.limiter().rules());
        let none = Overrides::default();
        let overrides = if catalog.keeps_limits { rules.overrides().as_ref() } else { &none };
        let saved = data_dir.save_configuration(|file| {
            snapshot::write(&place, version, &book, overrides, rules.accounts(), file)
        });
        if saved.is_err() {
            catalog.snapshot_failures.fetch_add(1, Ordering::Relaxed);
        }
        app.persistence_status().note_configuration(&saved);
        saved.is_ok()
    });
    saved.await.unwrap_or(false)
}

async fn open_and_load(app: &App) -> Result<(Database, Configuration), DatabaseError> {
    let database = Database::connect(app.config_sync().sql.clone()).await?;
    database.migrate().await?;
    app.config_sync().update_state(|state| state.is_loading = true);
    let spelling = app.limiter().rules().normalization().clone();
    let loaded = load(&database, &spelling).await;
    app.config_sync().update_state(|state| state.is_loading = false);
    Ok((database, loaded?))
}

/// A database that knows less than it did was restored, or lost and made anew. It is in force: nobody else can know what is meant.
fn tell_if_older(version: u64, before: Option<u64>) {
    if let Some(before) = before.filter(|before| version < *before) {
        warn!(
            version,
            before,
            "the database is older than what was in force here: rules, keys, quotas and blocks that were made since are gone"
        );
    }
}

/// LogThrottle once, when it begins.
fn tell_of_outage(app: &App, error: &Outage) {
    let told = error.to_string();
    let catalog = app.config_sync();
    if catalog.state.load().database_error.is_none() {
        warn!(error = %told, "no answer from the database: what is configured stays in force until there is one");
    }
    catalog.update_state(|state| state.database_error = Some(told.clone()));
}

fn tell_of_return(app: &App) {
    let catalog = app.config_sync();
    if catalog.state.load().database_error.is_some() {
        info!("the database answers again");
        catalog.update_state(|state| state.database_error = None);
    }
}

//! From settings to a running service, and from a signal to its orderly end.
//!
//! At the end: readiness goes off, connections are drained, and only then are the counters saved, so that the last
//! decision is in the snapshot. A second signal that comes a while
//! later ends the process at once: whoever sends it has waited long enough.

mod banner;
mod descriptors;
mod store;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;
use tollgate::RuleSet;
use tollgate_stores::redis::RedisSettingsError;
use tracing::{error, info, warn};

pub use self::banner::banner;
use crate::app::{App, Secrets};
use crate::auth::alerts;
use crate::auth::api_keys::KeySecret;
use crate::config::reload::ReloadHandle;
use crate::config::settings::{CounterSettings, Settings};
use crate::config::sync;
use crate::fleet::membership;
use crate::fleet::reconcile;
use crate::listener::{self, ConnectionStats};
use crate::runtime::clock::Clock;
use crate::runtime::data_dir::{DataDir, DataDirError};
use crate::runtime::signals::Signals;

/// All 256 shards are swept about once a minute, one at a time.
const SWEEP_EVERY: Duration = Duration::from_millis(250);
/// How long a start waits for the configuration of the database, or else for that on disk.
const CONFIG_LOAD_TIMEOUT: Duration = Duration::from_secs(6);
/// How often the settings file is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Why the service cannot run.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The data directory cannot be used.
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    /// The address cannot be listened on: it is taken, or not one of this machine.
    #[error("cannot listen on {listen}: {source}")]
    Listen {
        /// The address.
        listen: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The shared counters cannot be reached with these settings, whatever the servers do.
    #[error(transparent)]
    Counters(#[from] RedisSettingsError),
    /// Signals cannot be received.
    #[error("cannot receive signals: {0}")]
    Signals(#[source] io::Error),
    /// It served and ended, and what was counted is not on disk: the next start admits too much.
    #[error("the counters could not be saved to {file}: {source}; {what}", file = file.display(),
        what = if *has_older { "what was counted since the last save is lost" } else { "all of them are lost" })]
    CountersLost {
        /// Where they should be.
        file: PathBuf,
        /// Whether an older save is there.
        has_older: bool,
        /// Why.
        source: io::Error,
    },
}

/// What is known once the service answers.
#[derive(Clone, Debug)]
pub struct Ready {
    /// The settings in force; the rules of the database are among its rules.
    pub settings: Settings,
    /// Where it listens; the port is known even if any was asked for.
    pub address: SocketAddr,
    /// The admin key if it was made just now, to be shown once.
    pub new_admin_key: Option<AdminKeyOnce>,
    /// What is wrong with the shared counters, if anything is.
    pub store_trouble: Option<String>,
    /// What is wrong with the database, or with what it holds, if anything is.
    pub catalog_trouble: Option<String>,
}

/// An admin key that was made just now. It prints itself only when asked to.
#[derive(Clone, PartialEq, Eq)]
pub struct AdminKeyOnce(String);

impl AdminKeyOnce {
    /// The key, to be shown to the operator.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for AdminKeyOnce {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AdminKeyOnce(***)")
    }
}

/// Runs the service until a signal ends it; `ready` is called once it answers.
///
/// # Errors
/// When the data directory or the address cannot be used, or the counters could not be saved at the end.
pub async fn serve(settings: Settings, ready: impl FnOnce(Ready)) -> Result<(), ServeError> {
    let signals = Signals::new().map_err(ServeError::Signals)?;
    serve_until(settings, ready, signals.asked_to_end()).await
}

async fn serve_until(
    settings: Settings,
    ready: impl FnOnce(Ready),
    end: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    descriptors::raise(settings.server.connections_max);
    let data_dir = Arc::new(DataDir::open(&settings.data_dir)?);
    let admin_key = data_dir.admin_key()?;
    let key_secret = match &settings.auth.key_secret {
        Some(written) => KeySecret::new(&written.secret.0),
        None => KeySecret::new(&data_dir.key_secret()?),
    };
    let listen = settings.listen;
    let listener = listener::listen(listen).map_err(|source| ServeError::Listen { listen, source })?;
    let address = listener.local_addr().map_err(|source| ServeError::Listen { listen, source })?;

    let (counters, seed) = store::open(&settings.counters, &data_dir).await?;
    let store = counters.state();
    let clock = Clock::start();
    let stats = Arc::new(ConnectionStats::default());
    let secrets = Secrets { admin_key: &admin_key.key, key_secret };
    let app = App::new(settings.clone(), counters, seed, secrets, clock, Arc::clone(&stats));
    let reload = ReloadHandle::new(
        settings.clone(),
        clock,
        Box::new({
            let app = Arc::clone(&app);
            move |settings: &Settings| {
                let was_open = app.live().authenticator.open_checks();
                app.apply(settings)?;
                tell_if_open(address, settings.auth.open_checks && !was_open);
                Ok(())
            }
        }),
    );
    app.set_reload(reload.clone());

    let saver = Saver { app: Arc::clone(&app), data_dir: Arc::clone(&data_dir) };
    let mut tasks =
        Tasks(vec![tokio::spawn(sweep(Arc::clone(&app))), tokio::spawn(reload.clone().watch(LOOK_EVERY))]);
    if let CounterSettings::Memory { save_every, .. } = settings.counters {
        tasks.0.push(tokio::spawn(saver.clone().every(save_every)));
    }
    tasks.0.extend(spawn_background_tasks(&app, &data_dir, &reload));
    // Whoever connects meanwhile is in the queue of the listener: the first answer is by the whole configuration.
    app.config_sync().wait_for_initial_load(CONFIG_LOAD_TIMEOUT).await;
    let settings = Settings { rules: RuleSet::clone(&app.limiter().rules()), ..settings };
    tell_if_open(address, settings.auth.open_checks);
    info!(%address, rules = settings.rules.rules().len(), data_dir = %settings.data_dir.display(), "serving");
    let server = settings.server.clone();
    let new_admin_key = admin_key.is_new.then_some(AdminKeyOnce(admin_key.key));
    let catalog_trouble = app.config_sync().state().problem();
    ready(Ready { settings, address, new_admin_key, store_trouble: store.trouble(), catalog_trouble });

    let end = async {
        end.await;
        info!("ending: finishing requests in flight");
        app.start_draining();
    };
    let surface = {
        let app = Arc::clone(&app);
        move |request, peer| crate::http::answer(&app, request, peer)
    };
    let drained = listener::run(listener, surface, &server, stats, end).await;
    app.batches().drain(server.drain_timeout.saturating_sub(drained.took)).await;
    drop(tasks);
    close(saver).await
}

/// Saves what must survive. What cannot be saved is lost now, and whoever watches the exit code must learn it.
async fn close(saver: Saver) -> Result<(), ServeError> {
    let outcome = saver.save_aside().await;
    let Saver { app, data_dir } = saver;
    sync::close(&app.sync_parts(Arc::clone(&data_dir))).await;
    reconcile::close(&app).await;
    if let Some(redis) = app.limiter().counters().redis() {
        redis.close().await;
    }
    outcome.map_err(|source| {
        let has_older = data_dir.counters_saved_at().is_some();
        let lost = ServeError::CountersLost { file: data_dir.counters_file(), has_older, source };
        error!(error = %lost, "ended, and counters are lost");
        lost
    })?;
    info!("ended");
    Ok(())
}

/// Whoever reaches an open service can use up what others have and look at what they use.
fn tell_if_open(address: SocketAddr, open_checks: bool) {
    if open_checks && !address.ip().to_canonical().is_loopback() {
        warn!(%address, "{}", banner::OPEN_TO_EVERYONE);
    }
}

/// What keeps in touch with other nodes and with the database.
fn spawn_background_tasks(
    app: &Arc<App>,
    data_dir: &Arc<DataDir>,
    reload: &ReloadHandle,
) -> [JoinHandle<()>; 6] {
    [
        tokio::spawn(reconcile::follow(Arc::clone(app))),
        tokio::spawn(membership::heed_resets(Arc::clone(app))),
        tokio::spawn(membership::follow(Arc::clone(app), Arc::clone(data_dir))),
        tokio::spawn(sync::run(app.sync_parts(Arc::clone(data_dir)), reload.clone())),
        tokio::spawn(sync::flush_usage(app.sync_parts(Arc::clone(data_dir)))),
        tokio::spawn(write_auth_alerts(Arc::clone(app))),
    ]
}

/// Writes alerts of the auth throttle to the audit trail.
async fn write_auth_alerts(app: Arc<App>) {
    alerts::run(app.auth_throttle(), app.config_sync()).await;
}

/// Drops counters that are as good as new, a shard at a time, and looks whether the shared ones are there.
async fn sweep(app: Arc<App>) {
    let mut turns = tokio::time::interval(SWEEP_EVERY);
    let mut last = Instant::now();
    let mut known = app.counters().state();
    for shard in 0_usize.. {
        turns.tick().await;
        app.sweep(shard);
        let state = app.counters().state();
        app.count_outage(&state, last.elapsed());
        store::tell_of_refusals(&known, &state);
        known = state;
        last = Instant::now();
    }
}

/// Saves the counters, if they are in this process.
#[derive(Clone)]
struct Saver {
    app: Arc<App>,
    data_dir: Arc<DataDir>,
}

impl Saver {
    async fn every(self, interval: Duration) {
        loop {
            tokio::time::sleep(interval).await;
            if let Err(error) = self.save_aside().await {
                let directory = self.data_dir.path().display();
                warn!(%error, %directory, "cannot save the counters; will try again");
            }
        }
    }

    /// On a thread that may wait for the disk.
    async fn save_aside(&self) -> io::Result<()> {
        let saver = self.clone();
        let saving = tokio::task::spawn_blocking(move || {
            let (limiter, now) = (saver.app.limiter(), saver.app.now());
            let Some(memory) = limiter.counters().memory() else { return Ok(()) };
            saver.data_dir.save_counters(memory, limiter.seed(), now)
        });
        let outcome = saving.await.unwrap_or_else(|error| Err(io::Error::other(error)));
        self.app.note_counters_saved(&outcome);
        outcome
    }
}

/// Tasks that end when the service does.
struct Tasks(Vec<JoinHandle<()>>);

impl Drop for Tasks {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}

#[cfg(test)]
mod tests;

//! Starts the service and shuts it down.
//!
//! Shutdown turns readiness off, drains connections, and then saves the counters, so that the last decision is in the snapshot.

mod banner;
mod descriptors;
mod state_log;
mod store;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tollgate::RuleSet;
use tollgate_stores::redis::{RedisSettingsError, Secret};
use tracing::{error, info, warn};

pub use self::banner::banner;
use self::state_log::StateLog;
use crate::app::{App, Secrets};
use crate::auth::alerts;
use crate::auth::api_keys::KeySecret;
use crate::config::reload::ReloadHandle;
use crate::config::settings::{CounterSettings, ServerSettings, Settings};
use crate::config::sync;
use crate::fleet::membership;
use crate::fleet::reconcile;
use crate::fleet::top;
use crate::gateways::proxy::{Proxy, ProxyService, health};
use crate::http::RestService;
use crate::listener::{self, ConnectionStats};
use crate::records::pipeline::{Pipeline, PipelineParts};
use crate::runtime::clock::Clock;
use crate::runtime::data_dir::{AdminKey, DataDir, DataDirError};
use crate::runtime::signals::Signals;

/// All 256 shards are swept about once a minute, one at a time.
const SWEEP_EVERY: Duration = Duration::from_millis(250);
/// How long a start waits for the configuration from the database or its snapshot.
const CONFIG_LOAD_TIMEOUT: Duration = Duration::from_secs(6);
/// How often the settings file is checked for changes. A change is applied when two checks in a row see it: within a second.
const FILE_POLL_EVERY: Duration = Duration::from_millis(400);

/// Why the service cannot run.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The data directory cannot be used.
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    /// The address is in use or not local.
    #[error("cannot listen on {listen}: {source}")]
    Listen {
        /// The address.
        listen: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The Redis settings cannot work with any server.
    #[error(transparent)]
    Counters(#[from] RedisSettingsError),
    /// Signals cannot be received.
    #[error("cannot receive signals: {0}")]
    Signals(#[source] io::Error),
    /// The service ran, but its counters could not be saved: the next start admits too much.
    #[error("cannot save the counters to {file}: {source}; {what}", file = file.display(),
        what = if *has_older { "charges since the last save are lost" } else { "all counters are lost" })]
    CountersLost {
        /// The file.
        file: PathBuf,
        /// Whether an older snapshot exists.
        has_older: bool,
        /// Why.
        source: io::Error,
    },
}

/// The state of the service once it accepts requests.
#[derive(Clone, Debug)]
pub struct Ready {
    /// The settings in force, including the rules of the database.
    pub settings: Settings,
    /// The address it listens on, with the actual port.
    pub address: SocketAddr,
    /// The admin key, if this start generated it.
    pub new_admin_key: Option<Secret>,
    /// The address of the reverse proxy, if there is one.
    pub proxy_address: Option<SocketAddr>,
    /// A problem of the counter store, if any.
    pub store_problem: Option<String>,
    /// A problem of the database or its configuration, if any.
    pub config_problem: Option<String>,
}

/// Runs the service until a signal ends it; calls `ready` once it accepts requests.
///
/// # Errors
/// When the data directory or the address cannot be used, or the counters cannot be saved at shutdown.
pub async fn serve(settings: Settings, ready: impl FnOnce(Ready)) -> Result<(), ServeError> {
    let signals = Signals::new().map_err(ServeError::Signals)?;
    serve_until(settings, ready, signals.shutdown_requested()).await
}

async fn serve_until(
    settings: Settings,
    ready: impl FnOnce(Ready),
    end: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    descriptors::raise(settings.server.connections_max);
    let data_dir = Arc::new(DataDir::open(&settings.data_dir)?);
    let AdminKey { key: admin_key, is_new } = data_dir.admin_key()?;
    let key_secret = match &settings.auth.key_secret {
        Some(written) => KeySecret::new(&written.secret.0),
        None => KeySecret::new(&data_dir.key_secret()?),
    };
    let failed = |source| ServeError::Listen { listen: settings.listen, source };
    let listener = listener::listen(settings.listen).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;

    let (counters, seed) = store::open(&settings.counters, &data_dir).await?;
    let state_log = StateLog::start(&counters);
    let store_problem = counters.state().problem();
    let stats = Arc::new(ConnectionStats::default());
    let secrets = Secrets { admin_key: &admin_key.0, key_secret };
    let (connections, persistence) = (Arc::clone(&stats), Arc::clone(data_dir.status()));
    let app = App::new(&settings, counters, seed, secrets, Clock::start(), connections, persistence);
    let proxy = ProxyListener::open(&app, &settings)?;
    let reload = reload_handle(&app, &settings, address);
    app.set_reload(reload.clone());
    let records = start_records(&app, &settings);
    let tasks = spawn_background_tasks(&app, &data_dir, &reload, &settings, state_log);
    // Clients that connect now wait in the backlog, so the first decision uses the whole configuration.
    app.config_sync().wait_for_initial_load(CONFIG_LOAD_TIMEOUT).await;
    let settings = Settings { rules: RuleSet::clone(&app.limiter().rules()), ..settings };
    warn_if_open(address, settings.auth.open_checks);
    info!(%address, rules = settings.rules.rules().len(), data_dir = %settings.data_dir.display(), "serving");
    let server = settings.server.clone();
    let new_admin_key = is_new.then_some(admin_key);
    let config_problem = app.config_sync().state().problem();
    let proxy_address = proxy.as_ref().map(|proxy| proxy.address);
    ready(Ready { settings, address, new_admin_key, proxy_address, store_problem, config_problem });

    let (stop, stopped) = watch::channel(false);
    let end = async {
        end.await;
        info!("shutting down: finishing requests in flight");
        app.start_draining();
        stop.send_replace(true);
    };
    let (service, policy) = (RestService(Arc::clone(&app)), Arc::clone(app.accept_policy()));
    let rest = listener::run(listener, service, &server, policy, stats, signalled(stopped.clone()));
    let proxied = async {
        if let Some(proxy) = proxy {
            proxy.run(&app, &server, signalled(stopped)).await;
        }
    };
    let ((), drained, ()) = tokio::join!(end, rest, proxied);
    app.batches().drain(server.drain_timeout.saturating_sub(drained.took)).await;
    drop(tasks);
    close(&app, data_dir, records).await
}

async fn signalled(mut stopped: watch::Receiver<bool>) {
    let _ = stopped.wait_for(|stopped| *stopped).await;
}

/// The listener of the reverse proxy.
struct ProxyListener {
    listener: TcpListener,
    address: SocketAddr,
    proxy: Arc<Proxy>,
}

impl ProxyListener {
    /// Opens the proxy, if there is one.
    fn open(app: &Arc<App>, settings: &Settings) -> Result<Option<Self>, ServeError> {
        let Some(proxy) = &settings.proxy else { return Ok(None) };
        let failed = |source| ServeError::Listen { listen: proxy.listen, source };
        let listener = listener::listen(proxy.listen).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let proxy = Arc::new(Proxy::new(proxy, &settings.client_address).map_err(failed)?);
        app.set_proxy(Arc::clone(&proxy));
        info!(%address, routes = proxy.routes().routes.len(), "proxying");
        Ok(Some(ProxyListener { listener, address, proxy }))
    }

    async fn run(self, app: &Arc<App>, server: &ServerSettings, stopped: impl Future<Output = ()>) {
        let checks = tokio::spawn(health::run(Arc::clone(&self.proxy)));
        let service = ProxyService { app: Arc::clone(app), proxy: Arc::clone(&self.proxy) };
        let stats = Arc::clone(&self.proxy.stats.connections);
        let policy = Arc::clone(&self.proxy.accept_policy);
        listener::run(self.listener, service, server, policy, stats, stopped).await;
        checks.abort();
    }
}

/// Starts to write records, unless they are switched off.
fn start_records(app: &App, settings: &Settings) -> Option<Pipeline> {
    let records = app.limiter().records();
    let recorder = Arc::clone(records.recorder.as_ref()?);
    let stats = Arc::clone(&records.record_stats);
    Some(Pipeline::start(PipelineParts::new(recorder, stats, app.clock(), settings)))
}

fn reload_handle(app: &Arc<App>, settings: &Settings, address: SocketAddr) -> ReloadHandle {
    let reloaded = Arc::clone(app);
    let apply = move |settings: &Settings| {
        let was_open = reloaded.live().authenticator.open_checks();
        let rules_in_force = reloaded.apply(settings)?;
        let client_address = settings.client_address.clone();
        if let (Some(proxy), Some(settings)) = (reloaded.proxy(), &settings.proxy)
            && let Err(error) = proxy.apply(settings, &client_address)
        {
            error!(%error, "the routes of the proxy could not be replaced; the old ones stay in force");
        }
        warn_if_open(address, settings.auth.open_checks && !was_open);
        Ok(rules_in_force)
    };
    ReloadHandle::new(settings.clone(), app.clock(), Box::new(apply))
}

/// Saves what must survive a restart. A failure to save counters becomes the exit code.
async fn close(app: &Arc<App>, data_dir: Arc<DataDir>, records: Option<Pipeline>) -> Result<(), ServeError> {
    let outcome = save_counters(app, &data_dir).await;
    if let Some(records) = records {
        records.stop().await;
    }
    sync::close(&app.sync_parts(Arc::clone(&data_dir))).await;
    reconcile::shut_down(app.shared_limiter(), app.clock()).await;
    if let Some(redis) = app.counters().redis() {
        redis.close().await;
    }
    outcome.map_err(|source| {
        let has_older = data_dir.counters_saved_at().is_some();
        let lost = ServeError::CountersLost { file: data_dir.counters_file(), has_older, source };
        error!(error = %lost, "stopped; counters are lost");
        lost
    })?;
    info!("stopped");
    Ok(())
}

fn warn_if_open(address: SocketAddr, open_checks: bool) {
    if open_checks && !address.ip().to_canonical().is_loopback() {
        warn!(%address, "{}", banner::OPEN_TO_EVERYONE);
    }
}

fn spawn_background_tasks(
    app: &Arc<App>,
    data_dir: &Arc<DataDir>,
    reload: &ReloadHandle,
    settings: &Settings,
    state_log: StateLog,
) -> Tasks {
    app.start_fetching_keys();
    let limiter = || Arc::clone(app.shared_limiter());
    let mut tasks = vec![
        tokio::spawn(sweep(Arc::clone(app), state_log)),
        tokio::spawn(reload.clone().watch(FILE_POLL_EVERY)),
        tokio::spawn(reconcile::run(limiter(), app.clock())),
        tokio::spawn(membership::apply_resets(limiter())),
        tokio::spawn(top::publish(limiter(), app.clock())),
        tokio::spawn(membership::run(limiter(), Arc::clone(data_dir), app.config_sync().stores_overrides())),
        tokio::spawn(sync::run(app.sync_parts(Arc::clone(data_dir)), reload.clone())),
        tokio::spawn(sync::flush_usage(app.sync_parts(Arc::clone(data_dir)))),
        tokio::spawn(write_auth_alerts(Arc::clone(app))),
    ];
    if let CounterSettings::Memory { save_every, .. } = settings.counters {
        tasks.push(tokio::spawn(save_counters_every(save_every, Arc::clone(app), Arc::clone(data_dir))));
    }
    Tasks(tasks)
}

/// Writes alerts of the throttles of keys and tokens to the audit trail.
async fn write_auth_alerts(app: Arc<App>) {
    let write = |throttle| alerts::run(throttle, app.config_sync());
    tokio::join!(write(app.auth_throttle()), write(app.token_throttle()));
}

/// Drops restored counters, a shard at a time, and tracks the state of the counter store.
async fn sweep(app: Arc<App>, mut state_log: StateLog) {
    let mut turns = tokio::time::interval(SWEEP_EVERY);
    let mut last = Instant::now();
    for shard in 0_usize.. {
        turns.tick().await;
        app.sweep(shard);
        let state = app.counters().state();
        app.count_outage(&state, last.elapsed());
        last = Instant::now();
        state_log.observe(&state, last);
    }
}

async fn save_counters_every(interval: Duration, app: Arc<App>, data_dir: Arc<DataDir>) {
    loop {
        tokio::time::sleep(interval).await;
        // The data directory logs a failure.
        let _ = save_counters(&app, &data_dir).await;
    }
}

/// Saves memory counters.
async fn save_counters(app: &Arc<App>, data_dir: &Arc<DataDir>) -> io::Result<()> {
    let (app, data_dir) = (Arc::clone(app), Arc::clone(data_dir));
    let saving = tokio::task::spawn_blocking(move || {
        let Some(memory) = app.counters().memory() else { return Ok(()) };
        data_dir.save_counters(memory, app.limiter().seed(), app.now())
    });
    saving.await.unwrap_or_else(|error| Err(io::Error::other(error)))
}

/// Background tasks, aborted on drop.
struct Tasks(Vec<JoinHandle<()>>);

impl Drop for Tasks {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}

#[cfg(test)]
mod tests;

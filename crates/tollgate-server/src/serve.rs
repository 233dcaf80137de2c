//! From settings to a running service, and from a signal to its orderly end.
//!
//! At the end: readiness goes off, connections are drained, and only then are the counters saved, so that the last
//! decision is in the snapshot. A second signal ends the process at once: whoever sends it has waited long enough.

mod banner;
mod signals;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tracing::info;

pub use self::banner::banner;
use self::signals::Signals;
use crate::app::App;
use crate::clock::Clock;
use crate::data_dir::{DataDir, DataDirError};
use crate::reload::ReloadHandle;
use crate::settings::{CounterSettings, Settings};
use crate::transport::{self, ConnectionStats};

/// All 256 shards are swept about once a minute, one at a time.
const SWEEP_EVERY: Duration = Duration::from_millis(250);
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
    /// Signals cannot be received.
    #[error("cannot receive signals: {0}")]
    Signals(#[source] io::Error),
}

/// What is known once the service answers.
#[derive(Clone, Debug)]
pub struct Ready {
    /// The settings in force.
    pub settings: Settings,
    /// Where it listens; the port is known even if any was asked for.
    pub address: SocketAddr,
    /// The admin key if it was made just now, to be shown once.
    pub new_admin_key: Option<AdminKeyOnce>,
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
/// When the data directory or the address cannot be used.
pub async fn serve(settings: Settings, ready: impl FnOnce(Ready)) -> Result<(), ServeError> {
    let signals = Signals::new().map_err(ServeError::Signals)?;
    serve_until(settings, ready, signals.asked_to_end()).await
}

async fn serve_until(
    settings: Settings,
    ready: impl FnOnce(Ready),
    end: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let data_dir = Arc::new(DataDir::open(&settings.data_dir)?);
    let admin_key = data_dir.admin_key()?;
    let CounterSettings::Memory { bounds, save_every } = settings.counters;
    let (counters, seed) = data_dir.load_counters(bounds);
    let listen = settings.listen;
    let listener = TcpListener::bind(listen).await;
    let listener = listener.map_err(|source| ServeError::Listen { listen, source })?;
    let address = listener.local_addr().map_err(|source| ServeError::Listen { listen, source })?;

    let clock = Clock::start();
    let stats = Arc::new(ConnectionStats::default());
    let app = App::new(settings.clone(), counters, seed, &admin_key.key, clock, Arc::clone(&stats));
    let reload = ReloadHandle::new(
        settings.clone(),
        clock,
        Box::new({
            let app = Arc::clone(&app);
            move |settings| app.apply(settings)
        }),
    );
    app.set_reload(reload.clone());

    let saver = Saver { app: Arc::clone(&app), data_dir };
    let _tasks = Tasks(vec![
        tokio::spawn(sweep(Arc::clone(&app))),
        tokio::spawn(saver.clone().every(save_every)),
        tokio::spawn(reload.watch(LOOK_EVERY)),
    ]);
    info!(%address, rules = settings.rules.rules().len(), data_dir = %settings.data_dir.display(), "serving");
    let server = settings.server.clone();
    let new_admin_key = admin_key.is_new.then_some(AdminKeyOnce(admin_key.key));
    ready(Ready { settings, address, new_admin_key });

    let end = async {
        end.await;
        info!("ending: finishing requests in flight");
        app.start_draining();
    };
    let surface = {
        let app = Arc::clone(&app);
        move |request, _| crate::rest::answer(&app, request)
    };
    transport::run(listener, surface, &server, stats, end).await;
    saver.save_aside().await;
    info!("ended");
    Ok(())
}

/// Drops counters that are as good as new, a shard at a time.
async fn sweep(app: Arc<App>) {
    let mut turns = tokio::time::interval(SWEEP_EVERY);
    for shard in 0_usize.. {
        turns.tick().await;
        app.counters().sweep_shard(shard, app.now());
    }
}

/// Saves the counters.
#[derive(Clone)]
struct Saver {
    app: Arc<App>,
    data_dir: Arc<DataDir>,
}

impl Saver {
    async fn every(self, interval: Duration) {
        loop {
            tokio::time::sleep(interval).await;
            self.save_aside().await;
        }
    }

    /// On a thread that may wait for the disk.
    async fn save_aside(&self) {
        let saver = self.clone();
        let outcome = tokio::task::spawn_blocking(move || {
            let limiter = saver.app.limiter();
            saver.data_dir.save_counters(limiter.counters(), limiter.seed(), saver.app.now())
        });
        if !outcome.await.unwrap_or(false) {
            self.app.count_snapshot_failure();
        }
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

//! Key sets that are fetched from a URL in the background.
//!
//! The last keys stay in force while the URL cannot be fetched. A token with an unknown key id causes one fetch a minute at
//! most, however many there are.

mod client;
mod url;

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use jsonwebtoken::Algorithm;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tracing::{info, warn};

use self::client::{FetchError, Fetched};
pub(crate) use self::url::JwksUrl;
use super::keys::KeySet;
use super::stats::JwtStats;
use crate::config::settings::{JwtIssuer, JwtKeys};

/// How often keys are fetched, unless the response says that they are fresh for a shorter time.
const REFRESH_EVERY: Duration = Duration::from_mins(10);
const REFRESH_EVERY_MIN: Duration = Duration::from_mins(1);
/// The interval of fetches because of unknown key ids.
const UNKNOWN_KEY_INTERVAL: Duration = Duration::from_mins(1);
/// The delay of a retry doubles between these.
const RETRY_AFTER: Duration = Duration::from_secs(1);
const RETRY_AFTER_MAX: Duration = Duration::from_mins(1);

/// Where the keys of an issuer are fetched from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JwksSource {
    /// The URL.
    pub(crate) url: JwksUrl,
    /// The trusted certificate authorities in PEM, and their file; by default those of the system.
    pub(crate) ca: Option<(PathBuf, Vec<u8>)>,
}

/// The keys of an issuer, fetched from a URL.
pub(crate) struct RemoteKeys {
    shared: Arc<Shared>,
    /// The task that fetches; set once.
    task: OnceLock<AbortHandle>,
}

struct Shared {
    issuer: Box<str>,
    source: JwksSource,
    algorithms: Vec<Algorithm>,
    keys: ArcSwapOption<KeySet>,
    /// Notified about an unknown key id.
    unknown_key: Notify,
    status: Mutex<FetchStatus>,
    stats: Arc<JwtStats>,
}

struct FetchStatus {
    /// The last success, or the creation.
    since: Instant,
    error: Option<String>,
    /// The last key set, to notice that it is unchanged.
    text: Vec<u8>,
}

impl RemoteKeys {
    pub(super) fn new(issuer: &JwtIssuer, source: JwksSource, stats: Arc<JwtStats>) -> Self {
        let shared = Shared {
            issuer: issuer.issuer.clone(),
            source,
            algorithms: issuer.algorithms.clone(),
            keys: ArcSwapOption::empty(),
            unknown_key: Notify::new(),
            status: Mutex::new(FetchStatus { since: Instant::now(), error: None, text: Vec::new() }),
            stats,
        };
        RemoteKeys { shared: Arc::new(shared), task: OnceLock::new() }
    }

    /// Whether the keys of an issuer with these settings are the same.
    pub(super) fn is_for(&self, issuer: &JwtIssuer) -> bool {
        let shared = &self.shared;
        shared.issuer == issuer.issuer
            && shared.algorithms == issuer.algorithms
            && matches!(&issuer.keys, JwtKeys::Remote(source) if *source == shared.source)
    }

    /// Starts to fetch, once.
    pub(super) fn start(&self) {
        self.task.get_or_init(|| tokio::spawn(Arc::clone(&self.shared).run()).abort_handle());
    }

    /// The keys in force; `None` if they were never fetched.
    pub(super) fn current(&self) -> Option<Arc<KeySet>> {
        self.shared.keys.load_full()
    }

    /// Asks for a fetch because a key is unknown. It happens at once, unless there was one in the last minute.
    pub(super) fn request_refresh(&self) {
        self.shared.unknown_key.notify_one();
    }

    /// The time since the last successful fetch.
    pub(super) fn age(&self) -> Duration {
        self.shared.status.lock().since.elapsed()
    }

    /// Why no token of this issuer can be verified.
    pub(super) fn problem(&self) -> Option<String> {
        if self.shared.keys.load().is_some() {
            return None;
        }
        let status = self.shared.status.lock();
        let reason = status.error.as_deref().unwrap_or("the first fetch has not finished");
        Some(format!("the keys of the token issuer {:?} were never fetched: {reason}", self.shared.issuer))
    }
}

impl Drop for RemoteKeys {
    fn drop(&mut self) {
        if let Some(task) = self.task.get() {
            task.abort();
        }
    }
}

impl fmt::Debug for RemoteKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RemoteKeys({:?})", self.shared.issuer)
    }
}

impl Shared {
    /// Fetches when the keys are due, and earlier if a key is unknown. Never returns.
    async fn run(self: Arc<Self>) {
        let mut retry_after = RETRY_AFTER;
        let mut next_on_request = Instant::now();
        loop {
            let due = if let Ok(fresh_for) = self.fetch().await {
                retry_after = RETRY_AFTER;
                fresh_for.unwrap_or(REFRESH_EVERY).clamp(REFRESH_EVERY_MIN, REFRESH_EVERY)
            } else {
                let due = retry_after;
                retry_after = RETRY_AFTER_MAX.min(retry_after * 2);
                due
            };
            let requested = async {
                tokio::time::sleep_until(next_on_request).await;
                self.unknown_key.notified().await;
            };
            tokio::select! {
                () = tokio::time::sleep(due) => {}
                () = requested => next_on_request = Instant::now() + UNKNOWN_KEY_INTERVAL,
            }
        }
    }

    /// Fetches once. Returns how long the keys are fresh, if the server says so.
    async fn fetch(&self) -> Result<Option<Duration>, ()> {
        self.stats.fetches.fetch_add(1, Ordering::Relaxed);
        let outcome = client::fetch(&self.source).await.and_then(|fetched| {
            let keys = KeySet::from_jwks(&fetched.text, &self.algorithms).map_err(FetchError::Keys)?;
            Ok((fetched, keys))
        });
        match outcome {
            Ok((fetched, keys)) => Ok(self.note_success(fetched, keys)),
            Err(error) => {
                self.note_failure(&error);
                Err(())
            }
        }
    }

    fn note_success(&self, fetched: Fetched, keys: KeySet) -> Option<Duration> {
        let mut status = self.status.lock();
        status.since = Instant::now();
        if status.error.take().is_some() {
            info!(issuer = ?self.issuer, keys = keys.len(), "the keys of a token issuer can be fetched again");
        }
        // Tokens that were verified with the same keys stay in the cache.
        if self.keys.load().is_none() || status.text != fetched.text {
            status.text = fetched.text;
            self.keys.store(Some(Arc::new(keys)));
        }
        fetched.fresh_for
    }

    fn note_failure(&self, error: &FetchError) {
        self.stats.fetch_failures.fetch_add(1, Ordering::Relaxed);
        let mut status = self.status.lock();
        let has_keys = self.keys.load().is_some();
        if status.error.replace(error.to_string()).is_none() {
            let effect = if has_keys { "the last keys stay in force" } else { "its tokens are refused" };
            warn!(issuer = ?self.issuer, %error, effect, "cannot fetch the keys of a token issuer");
        }
    }
}

/// The error of one fetch.
#[cfg(test)]
pub(super) async fn fetch_error(source: &JwksSource) -> String {
    client::fetch(source).await.err().map(|error| error.to_string()).unwrap_or_default()
}

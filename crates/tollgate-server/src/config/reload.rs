//! Reloads settings of a running service: on SIGHUP, when the file changes, and through the API.
//!
//! Settings are validated as a whole, then applied as a whole. After an error the old settings stay in force; the error is logged
//! and visible in [`ReloadStatus`] until a reload succeeds.
//!
//! The file is polled once a second. File system notifications follow an inode, but editors replace the file and Kubernetes
//! swaps a symbolic link above it.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::signal::unix::{SignalKind, signal};
use tollgate::Timestamp;
use tollgate::config::Problems;
use tracing::{error, info, warn};

use crate::config::settings::{FileStamp, Settings, SettingsError};
use crate::runtime::clock::Clock;

/// Certificates that expire within two weeks are logged.
pub(crate) const EXPIRY_WARNING_SECONDS: i64 = 14 * 86_400;

/// Puts settings in force and returns the number of rules in force, or returns why the settings are invalid without changing
/// anything.
pub type Apply = Box<dyn Fn(&Settings) -> Result<usize, Problems> + Send + Sync>;

/// The status of reloads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReloadStatus {
    /// When the settings in force were loaded.
    pub last_success: Timestamp,
    /// The error of the last attempt, if it failed.
    pub last_error: Option<String>,
    /// The number of successful loads: 1 after the start.
    pub generation: u64,
}

/// The result of a reload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReloadReport {
    /// As [`ReloadStatus::generation`].
    pub generation: u64,
    /// The number of rules in the settings, without the built-in default.
    pub file_rules: usize,
    /// The number of rules in force: those of the settings and of the database.
    pub rules_in_force: usize,
    /// Changed keys that require a restart.
    pub needs_restart: Vec<&'static str>,
}

/// Reloads settings. Clones share their state.
#[derive(Clone)]
pub struct ReloadHandle(Arc<Shared>);

struct Shared {
    /// The settings of the start, to find changes that require a restart.
    started_with: Settings,
    /// Held during a reload, so that reloads are serialized.
    reloading: Mutex<()>,
    /// Locked separately, so that readers do not wait for the disk.
    status: Mutex<ReloadStatus>,
    /// Whether the last settings were valid, but conflicted with the rules of the database.
    conflicts: AtomicBool,
    apply: Apply,
    clock: Clock,
}

/// Logs what may not be as meant.
pub(crate) fn log_warnings(settings: &Settings) {
    if !settings.rules.settings().enabled {
        warn!("enabled = false: every request is admitted, and nothing is counted or blocked");
    }
    for warning in &settings.warnings {
        warn!(?warning, "the settings may not do what was meant");
    }
}

/// Logs certificates that clients reject, or soon will.
fn log_certificates(settings: &Settings, now: Timestamp) {
    for certificate in settings.certificates() {
        let (file, expires_in) = (certificate.certificate_file.display(), certificate.expires_in(now));
        if expires_in < 0 {
            warn!(%file, "the certificate has expired: clients reject it");
        } else if expires_in < EXPIRY_WARNING_SECONDS {
            warn!(%file, days = expires_in / 86_400, "the certificate expires soon");
        }
        if !certificate.has_begun(now) {
            warn!(%file, "the certificate is not valid yet: clients reject it");
        }
    }
}

impl fmt::Debug for ReloadHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReloadHandle({:?})", self.status())
    }
}

impl ReloadHandle {
    /// For a service that runs with `settings`; `apply` puts new settings in force.
    pub fn new(settings: Settings, clock: Clock, apply: Apply) -> Self {
        log_warnings(&settings);
        log_certificates(&settings, clock.now());
        let status = ReloadStatus { last_success: clock.now(), last_error: None, generation: 1 };
        ReloadHandle(Arc::new(Shared {
            started_with: settings,
            reloading: Mutex::new(()),
            status: Mutex::new(status),
            conflicts: AtomicBool::new(false),
            apply,
            clock,
        }))
    }

    /// The status of reloads.
    pub fn status(&self) -> ReloadStatus {
        self.0.status.lock().clone()
    }

    /// Loads the settings again and puts them in force. Blocks on the disk: call it from `spawn_blocking`.
    ///
    /// # Errors
    /// All errors in the settings. Nothing changes then.
    pub fn reload(&self) -> Result<ReloadReport, SettingsError> {
        let _guard = self.0.reloading.lock();
        let loaded = self.0.started_with.reload();
        let is_valid = loaded.is_ok();
        let outcome = loaded.and_then(|new| self.put_in_force(&new));
        self.0.conflicts.store(is_valid && outcome.is_err(), Ordering::Relaxed);
        match &outcome {
            Ok(report) => self.note_success(report),
            Err(problem) => {
                for line in problem.lines() {
                    error!(problem = ?line, "invalid settings, the old ones stay in force");
                }
                self.0.status.lock().last_error = Some(problem.to_string());
            }
        }
        outcome
    }

    fn put_in_force(&self, new: &Settings) -> Result<ReloadReport, SettingsError> {
        let file = new.config_file.clone();
        let rules_in_force =
            (self.0.apply)(new).map_err(|problems| SettingsError::Invalid { file, problems })?;
        log_warnings(new);
        log_certificates(new, self.0.clock.now());
        if self.0.started_with.normalization != new.normalization {
            warn!(
                "the normalization of [identity] has changed: it takes effect once the database has been loaded again; stored \
                 items keep their ids, export them and import them with prune"
            );
        }
        Ok(ReloadReport {
            generation: self.status().generation + 1,
            file_rules: new.rules.rules().len() - usize::from(new.rules.has_built_in_default()),
            rules_in_force,
            needs_restart: self.0.started_with.needs_restart(new),
        })
    }

    fn note_success(&self, report: &ReloadReport) {
        let (generation, last_success) = (report.generation, self.0.clock.now());
        *self.0.status.lock() = ReloadStatus { last_success, last_error: None, generation };
        let ReloadReport { file_rules, rules_in_force, .. } = report;
        info!(generation, file_rules, rules_in_force, "settings reloaded");
        for key in &report.needs_restart {
            warn!(key, "changed setting requires a restart");
        }
    }

    /// Retries settings that conflicted with the rules of the database, after those have changed.
    pub async fn retry_after_conflict(&self) {
        if self.0.conflicts.load(Ordering::Relaxed) {
            self.clone().reload_in_background().await;
        }
    }

    /// Reloads on SIGHUP and when the file or a certificate has changed, which is checked at this interval. Never returns.
    pub async fn watch(self, every: Duration) {
        let started_with = &self.0.started_with;
        let mut files = WatchedFiles::new(started_with);
        let mut loaded = files.loaded(started_with);
        let mut seen = loaded.clone();
        let hangups = signal(SignalKind::hangup());
        let mut hangups = hangups.inspect_err(|error| warn!(%error, "cannot receive SIGHUP")).ok();
        loop {
            let hangup = tokio::select! {
                Some(()) = async { hangups.as_mut()?.recv().await } => true,
                () = tokio::time::sleep(every) => false,
            };
            let stamps = files.stamps();
            // A file that changed since the last poll may still be written: half of it might be valid.
            let changed = stamps == seen && stamps != loaded;
            seen = stamps;
            if hangup || changed {
                // Also after an error: a file that was missing may appear.
                files = WatchedFiles::new(started_with);
                loaded = files.stamps();
                seen.clone_from(&loaded);
                self.clone().reload_in_background().await;
            }
        }
    }

    /// Errors are in the log and the status.
    async fn reload_in_background(self) {
        let _ = tokio::task::spawn_blocking(move || self.reload()).await;
    }
}

/// The settings file, and the files of `[server.tls]` and `[proxy.tls]`.
struct WatchedFiles(Vec<PathBuf>);

impl WatchedFiles {
    fn new(settings: &Settings) -> Self {
        WatchedFiles(settings.config_file.clone().into_iter().chain(settings.tls_files()).collect())
    }

    fn stamps(&self) -> Vec<Option<FileStamp>> {
        self.0.iter().map(|file| FileStamp::of(file)).collect()
    }

    /// The stamps at the start, when the settings file was read earlier than now.
    fn loaded(&self, settings: &Settings) -> Vec<Option<FileStamp>> {
        let mut stamps = self.stamps();
        if let (Some(first), Some(_)) = (stamps.first_mut(), &settings.config_file) {
            *first = settings.source.stamp;
        }
        stamps
    }
}

#[cfg(test)]
mod tests;

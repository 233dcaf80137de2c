//! New settings into a running service: on SIGHUP, when the file changes, and when an administrator asks.
//!
//! The sources are read and checked whole; only then is anything applied, and always all of it. What is wrong keeps
//! the old settings, is logged line by line, and stays visible in [`ReloadStatus`] until a reload succeeds.
//!
//! The file is watched by looking at it once a second. Notifications of the system were rejected: they follow the file
//! that was opened, while editors put a new one in its place and Kubernetes swaps a symbolic link above it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tollgate::Timestamp;
use tollgate::config::Problems;
use tracing::{error, info, warn};

use crate::config::settings::{FileStamp, Settings, SettingsError};
use crate::runtime::clock::Clock;

/// Puts settings into force, or tells why they cannot be; then nothing has changed.
pub type Apply = Box<dyn Fn(&Settings) -> Result<(), Problems> + Send + Sync>;

/// How reloading stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReloadStatus {
    /// When the settings in force were read.
    pub last_success: Timestamp,
    /// Why the last attempt failed; nothing if it did not.
    pub last_error: Option<String>,
    /// How many settings have been in force so far: 1 for those of the start.
    pub generation: u64,
}

/// What a reload did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReloadReport {
    /// The number of the settings now in force.
    pub generation: u64,
    /// How many rules they have.
    pub rules: usize,
    /// Keys that differ but take a restart to follow.
    pub needs_restart: Vec<String>,
}

/// Reloads settings; a copy does the same.
#[derive(Clone)]
pub struct ReloadHandle(Arc<Shared>);

struct Shared {
    /// Held during a reload, so that two of them come one after the other and the later file wins.
    current: Mutex<Current>,
    /// Apart from the settings, so that nobody who reads it waits for the disk.
    status: Mutex<ReloadStatus>,
    /// Whether the last settings were right in themselves, and could not be put in force beside the database.
    clashes: AtomicBool,
    apply: Apply,
    clock: Clock,
}

struct Current {
    /// The settings of the start: what cannot change while running is compared with them.
    started_with: Settings,
    generation: u64,
}

impl fmt::Debug for ReloadHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReloadHandle({:?})", self.status())
    }
}

impl ReloadHandle {
    /// For a service that runs with `settings`; `apply` is given each new set of them.
    pub fn new(settings: Settings, clock: Clock, apply: Apply) -> Self {
        let status = ReloadStatus { last_success: clock.now(), last_error: None, generation: 1 };
        ReloadHandle(Arc::new(Shared {
            current: Mutex::new(Current { started_with: settings, generation: 1 }),
            status: Mutex::new(status),
            clashes: AtomicBool::new(false),
            apply,
            clock,
        }))
    }

    /// How reloading stands.
    pub fn status(&self) -> ReloadStatus {
        self.0.status.lock().clone()
    }

    /// Reads the sources again and applies them if they are right, whole. It reads from disk: asynchronous callers use
    /// `spawn_blocking`.
    ///
    /// # Errors
    /// Everything that is wrong; nothing has changed then.
    pub fn reload(&self) -> Result<ReloadReport, SettingsError> {
        let mut current = self.0.current.lock();
        let read = current.started_with.reload();
        let is_read = read.is_ok();
        let outcome = read.and_then(|new| self.put_in_force(&mut current, &new));
        self.0.clashes.store(is_read && outcome.is_err(), Ordering::Relaxed);
        match &outcome {
            Ok(report) => self.note_success(report),
            Err(problem) => {
                for line in problem.lines() {
                    error!(problem = ?line, "settings not reloaded; the old ones stay");
                }
                self.0.status.lock().last_error = Some(problem.to_string());
            }
        }
        outcome
    }

    fn put_in_force(&self, current: &mut Current, new: &Settings) -> Result<ReloadReport, SettingsError> {
        let file = new.config_file.clone();
        (self.0.apply)(new).map_err(|problems| SettingsError::Invalid { file, problems })?;
        current.generation += 1;
        let needs_restart = current.started_with.needs_restart(new);
        Ok(ReloadReport {
            generation: current.generation,
            rules: new.rules.rules().len(),
            needs_restart: needs_restart.into_iter().map(str::to_owned).collect(),
        })
    }

    fn note_success(&self, report: &ReloadReport) {
        let (generation, last_success) = (report.generation, self.0.clock.now());
        *self.0.status.lock() = ReloadStatus { last_success, last_error: None, generation };
        info!(generation, rules = report.rules, "settings reloaded");
        for key in &report.needs_restart {
            warn!(key, "changed, but needs a restart");
        }
    }

    /// Once the rules of the database are others: settings that did not go together with them may do now.
    pub async fn retry_after_clash(&self) {
        if self.0.clashes.load(Ordering::Relaxed) {
            self.clone().reload_aside().await;
        }
    }

    /// Reloads whenever the file changes, looking every `every`, and on SIGHUP. Never ends.
    pub async fn watch(self, every: Duration) {
        let (file, mut settled) = {
            let current = self.0.current.lock();
            (current.started_with.config_file.clone(), current.started_with.source.stamp)
        };
        let mut seen = settled;
        let mut hangups = Hangups::new();
        loop {
            let hangup = tokio::select! {
                () = hangups.next() => true,
                () = tokio::time::sleep(every) => false,
            };
            let looked = file.as_deref().and_then(FileStamp::of);
            // A file that changes from look to look is still being written: half of it might be valid.
            let changed = looked == seen && looked != settled;
            seen = looked;
            if hangup || changed {
                settled = looked;
                self.clone().reload_aside().await;
            }
        }
    }

    /// Problems were logged and are in the status.
    async fn reload_aside(self) {
        let _ = tokio::task::spawn_blocking(move || self.reload()).await;
    }
}

/// SIGHUPs, where there are any.
struct Hangups {
    #[cfg(unix)]
    signals: Option<tokio::signal::unix::Signal>,
}

impl Hangups {
    #[cfg(unix)]
    fn new() -> Self {
        let signals = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::hangup());
        let signals = signals.inspect_err(|error| warn!(%error, "cannot listen for SIGHUP")).ok();
        Hangups { signals }
    }

    #[cfg(not(unix))]
    fn new() -> Self {
        Hangups {}
    }

    async fn next(&mut self) {
        #[cfg(unix)]
        if let Some(signals) = &mut self.signals
            && signals.recv().await.is_some()
        {
            return;
        }
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
mod tests;

//! Whether the last writes to the data directory succeeded, for `/readyz`: a full disk affects no decision, so nothing else shows it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwapOption;
use tracing::{info, warn};

/// The outcome of the last saves.
#[derive(Debug, Default)]
pub(crate) struct PersistenceStatus {
    pub(crate) counters: SaveStatus,
    pub(crate) configuration: SaveStatus,
}

/// The outcome of saving one file.
#[derive(Debug, Default)]
pub(crate) struct SaveStatus {
    /// Why the last save failed.
    error: ArcSwapOption<String>,
    failures: AtomicU64,
}

impl SaveStatus {
    /// Records a save. Logs when saving begins to fail, and when it works again.
    pub(super) fn record(&self, file: &str, saved: &io::Result<()>) {
        let error = saved.as_ref().err().map(|error| Arc::new(error.to_string()));
        self.failures.fetch_add(error.is_some().into(), Ordering::Relaxed);
        let failed_before = self.error.swap(error).is_some();
        match saved {
            Err(error) if !failed_before => {
                warn!(%error, file, "cannot save to the data directory; keeping the last file and retrying");
            }
            Ok(()) if failed_before => info!(file, "saved to the data directory again"),
            _ => {}
        }
    }

    /// The number of failed saves.
    pub(crate) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }
}

impl PersistenceStatus {
    /// A description of what is not saved, if anything.
    pub(crate) fn problem(&self) -> Option<String> {
        let counters = self.counters.error.load().as_ref().map(|why| {
            format!("cannot save the counters ({why}): a restart loses what was counted since the last save")
        });
        let configuration = self.configuration.error.load().as_ref().map(|why| {
            format!("cannot save the configuration snapshot ({why}): a start without the database would use an older one")
        });
        let all: Vec<String> = [counters, configuration].into_iter().flatten().collect();
        if all.is_empty() { None } else { Some(all.join("; ")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problem_ends_with_the_next_successful_save() {
        let status = PersistenceStatus::default();
        let full = || Err(io::Error::from(io::ErrorKind::StorageFull));
        status.counters.record("counters.snap", &full());
        status.configuration.record("config.snap", &full());
        let problem = status.problem().unwrap();
        assert!(problem.contains("counters") && problem.contains("configuration"), "{problem}");
        status.counters.record("counters.snap", &Ok(()));
        assert!(!status.problem().unwrap().contains("counters"));
        status.configuration.record("config.snap", &Ok(()));
        assert_eq!((status.problem(), status.counters.failures()), (None, 1));
    }
}

//! Whether the last writes to the data directory succeeded, for `/readyz`: a full disk affects no decision, so nothing else shows it.

use std::io;
use std::sync::Arc;

use arc_swap::ArcSwapOption;

/// The errors of the last saves.
#[derive(Debug, Default)]
pub(crate) struct PersistenceStatus {
    counters: ArcSwapOption<String>,
    configuration: ArcSwapOption<String>,
}

impl PersistenceStatus {
    /// Records the outcome of saving the counters.
    pub(crate) fn record_counters(&self, saved: &io::Result<()>) {
        self.counters.store(error_text(saved));
    }

    /// Records the outcome of saving the configuration.
    pub(crate) fn record_configuration(&self, saved: &io::Result<()>) {
        self.configuration.store(error_text(saved));
    }

    /// A description of what is not saved, if anything.
    pub(crate) fn problem(&self) -> Option<String> {
        let counters = self.counters.load();
        let counters = counters.as_ref().map(|why| {
            format!("cannot save the counters ({why}): a restart loses what was counted since the last save")
        });
        let configuration = self.configuration.load();
        let configuration = configuration.as_ref().map(|why| {
            format!("cannot save the configuration snapshot ({why}): a start without the database would use an older one")
        });
        let all: Vec<String> = [counters, configuration].into_iter().flatten().collect();
        if all.is_empty() { None } else { Some(all.join("; ")) }
    }
}

fn error_text(saved: &io::Result<()>) -> Option<Arc<String>> {
    saved.as_ref().err().map(|error| Arc::new(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problem_ends_with_the_next_successful_save() {
        let status = PersistenceStatus::default();
        let full = || Err(io::Error::from(io::ErrorKind::StorageFull));
        status.record_counters(&full());
        status.record_configuration(&full());
        let problem = status.problem().unwrap();
        assert!(problem.contains("counters") && problem.contains("configuration"), "{problem}");
        status.record_counters(&Ok(()));
        assert!(!status.problem().unwrap().contains("counters"));
        status.record_configuration(&Ok(()));
        assert_eq!(status.problem(), None);
    }
}

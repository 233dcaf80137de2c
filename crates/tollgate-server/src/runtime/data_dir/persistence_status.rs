//! What could not be written to the data directory the last time it was tried.
//!
//! A full disk stops no decision, so nothing but this tells of it before a restart would: `/readyz` asks here.

use std::io;
use std::sync::Arc;

use arc_swap::ArcSwapOption;

/// What is not on disk, and why.
#[derive(Debug, Default)]
pub(crate) struct PersistenceStatus {
    counters: ArcSwapOption<String>,
    configuration: ArcSwapOption<String>,
}

impl PersistenceStatus {
    /// Notes how it went to save the counters.
    pub(crate) fn note_counters(&self, saved: &io::Result<()>) {
        self.counters.store(why(saved));
    }

    /// Notes how it went to save the configuration.
    pub(crate) fn note_configuration(&self, saved: &io::Result<()>) {
        self.configuration.store(why(saved));
    }

    /// What is wrong, in words.
    pub(crate) fn trouble(&self) -> Option<String> {
        let counters = self.counters.load();
        let counters = counters.as_ref().map(|why| {
            format!("the counters cannot be saved ({why}): an end of the process would lose what was counted since the last save")
        });
        let configuration = self.configuration.load();
        let configuration = configuration.as_ref().map(|why| {
            format!("the configuration cannot be saved ({why}): a start without the database would be with an older one")
        });
        let all: Vec<String> = [counters, configuration].into_iter().flatten().collect();
        if all.is_empty() { None } else { Some(all.join("; ")) }
    }
}

fn why(saved: &io::Result<()>) -> Option<Arc<String>> {
    saved.as_ref().err().map(|error| Arc::new(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trouble_ends_with_the_next_save_that_works() {
        let unsaved = PersistenceStatus::default();
        let full = || Err(io::Error::from(io::ErrorKind::StorageFull));
        unsaved.note_counters(&full());
        unsaved.note_configuration(&full());
        let trouble = unsaved.trouble().unwrap();
        assert!(trouble.contains("counters") && trouble.contains("configuration"), "{trouble}");
        unsaved.note_counters(&Ok(()));
        assert!(!unsaved.trouble().unwrap().contains("counters"));
        unsaved.note_configuration(&Ok(()));
        assert_eq!(unsaved.trouble(), None);
    }
}

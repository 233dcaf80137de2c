//! Figures of one drain.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::records::spool::Counter;

/// Figures of one drain, for metrics and health.
#[derive(Debug, Default)]
pub(crate) struct DrainStats {
    /// Rows stored.
    pub(crate) rows_stored: Counter,
    /// Rows that were in the database before the drain started, or were set aside by it then.
    pub(crate) rows_stored_before: Counter,
    /// Rows set aside because they could not be decoded or the database rejected them.
    pub(crate) rows_quarantined: Counter,
    is_up: AtomicBool,
    last_error: Mutex<Option<String>>,
}

impl DrainStats {
    /// Whether the last call to the database succeeded.
    pub(crate) fn is_up(&self) -> bool {
        self.is_up.load(Ordering::Relaxed)
    }

    /// Why the last call failed; `None` if it succeeded.
    pub(crate) fn last_error(&self) -> Option<String> {
        self.last_error.lock().clone()
    }

    /// Notes the outcome of a call. Returns whether it differs from the last one.
    pub(in crate::records) fn note(&self, error: Option<String>) -> bool {
        let was_up = self.is_up.swap(error.is_none(), Ordering::Relaxed);
        let mut last_error = self.last_error.lock();
        let is_first_error = error.is_some() && last_error.is_none();
        let is_changed = if error.is_some() { is_first_error } else { !was_up };
        *last_error = error;
        is_changed
    }
}

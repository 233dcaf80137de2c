//! Figures of one spool.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// Figures of one spool, for metrics and health.
#[derive(Debug, Default)]
pub(crate) struct SpoolStats {
    /// Rows written to the disk.
    pub(crate) rows_appended: Counter,
    /// Rows dropped because the spool was full.
    pub(crate) rows_dropped_full: Counter,
    /// Rows dropped because they could not be written.
    pub(crate) rows_dropped_disk: Counter,
    /// Rows that the disk damaged or lost after they were written.
    pub(crate) rows_damaged: Counter,
    /// Failed calls to make rows durable.
    pub(crate) sync_errors: Counter,
    /// Rows in the spool that are not released.
    pub(crate) backlog_rows: Counter,
    /// Bytes on disk.
    pub(crate) bytes: Counter,
    /// Segments on disk.
    pub(crate) segments: Counter,
    /// Why the disk failed, until a write succeeds.
    pub(crate) last_error: Mutex<Option<String>>,
}

/// A figure that one thread changes and others read.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// The current value.
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }
}

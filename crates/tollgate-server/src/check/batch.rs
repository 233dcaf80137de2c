//! Bounds and fairness of batches: how many are decided at once, and how long one may occupy its thread.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tollgate_stores::counters::Counters;

/// Checks in one batch.
pub(crate) const CHECKS_MAX: usize = 1_000;
/// Checks decided before other tasks on the thread get a turn: a few microseconds each.
pub(crate) const CHECKS_PER_TURN: usize = 32;
/// Batches that wait for Redis at once.
const SLOTS_ON_REDIS: usize = 32;

/// Bounds the batches that are decided at once. Others queue in order of arrival; single checks never queue here.
pub(crate) struct BatchQueue {
    slots: Arc<Semaphore>,
    slots_max: usize,
}

impl BatchQueue {
    /// A batch on counters in memory never waits, so more batches than threads would only slow each other down.
    pub(crate) fn new(counters: &Counters) -> Self {
        let threads = || std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let slots_max = if counters.redis().is_some() { SLOTS_ON_REDIS } else { threads() };
        BatchQueue { slots: Arc::new(Semaphore::new(slots_max)), slots_max }
    }

    /// Waits for a slot. The batch keeps it until it is decided.
    pub(crate) async fn acquire(&self) -> Option<OwnedSemaphorePermit> {
        // Never closed, so never `None`.
        Arc::clone(&self.slots).acquire_owned().await.ok()
    }

    /// Waits until every batch is decided, at most `timeout`.
    pub(crate) async fn drain(&self, timeout: Duration) {
        let all = u32::try_from(self.slots_max).unwrap_or(u32::MAX);
        if tokio::time::timeout(timeout, self.slots.acquire_many(all)).await.is_err() {
            tracing::warn!("shutting down with batches still in progress");
        }
    }
}

/// Yields to other tasks before every 32nd check of a batch.
pub(crate) async fn yield_turn(index: usize) {
    if index > 0 && index.is_multiple_of(CHECKS_PER_TURN) {
        tokio::task::yield_now().await;
    }
}

//! The memory for bodies of batches.
//!
//! Batches wait for a slot with their bodies in memory, and there may be as many as connections. A body is therefore read only once the
//! budget has room for it; until then the caller keeps it. Small bodies have a budget of their own, so that large ones, and those
//! that are announced and never sent, cannot block them.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::http::error::{ApiError, Code};
use crate::http::{BATCH_BYTES_MAX, CHECK_BYTES_MAX};

const LARGE_BYTES: usize = 48 << 20;
const SMALL_BYTES: usize = 16 << 20;
/// The largest body that counts as small.
const SMALL_BYTES_EACH: usize = CHECK_BYTES_MAX;
/// What the smallest body is counted as.
const BODY_BYTES_MIN: usize = 1 << 10;
/// How long a batch waits for room before it is refused.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// Bounds the bytes of batch bodies in memory.
pub(crate) struct BodyBudget {
    large: Arc<Semaphore>,
    small: Arc<Semaphore>,
    wait_max: Duration,
}

impl Default for BodyBudget {
    fn default() -> Self {
        BodyBudget {
            large: Arc::new(Semaphore::new(LARGE_BYTES)),
            small: Arc::new(Semaphore::new(SMALL_BYTES)),
            wait_max: WAIT_MAX,
        }
    }
}

impl BodyBudget {
    /// Reserves room for a body of this length; without a length, for the largest body.
    ///
    /// # Errors
    /// When no room becomes free within a second.
    pub(crate) async fn acquire(&self, length: Option<u64>) -> Result<OwnedSemaphorePermit, ApiError> {
        let length = length.and_then(|length| usize::try_from(length).ok()).unwrap_or(BATCH_BYTES_MAX);
        let bytes = length.clamp(BODY_BYTES_MIN, BATCH_BYTES_MAX);
        let budget = if bytes <= SMALL_BYTES_EACH { &self.small } else { &self.large };
        let acquired = Arc::clone(budget).acquire_many_owned(u32::try_from(bytes).unwrap_or(u32::MAX));
        // The semaphores are never closed.
        tokio::time::timeout(self.wait_max, acquired).await.ok().and_then(Result::ok).ok_or_else(full)
    }
}

/// Returns what was reserved beyond the length of the body.
pub(crate) fn release_excess(permit: &mut OwnedSemaphorePermit, length: usize) {
    drop(permit.split(permit.num_permits().saturating_sub(length.max(BODY_BYTES_MIN))));
}

fn full() -> ApiError {
    let message = "too many large batches are in progress, nothing was charged; retry after Retry-After or send smaller batches";
    ApiError::new(Code::ServiceUnavailable, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGE: Option<u64> = Some(BATCH_BYTES_MAX as u64);
    const SMALL: Option<u64> = Some(1_000);

    /// Refuses at once when there is no room.
    fn without_wait() -> BodyBudget {
        BodyBudget { wait_max: Duration::ZERO, ..BodyBudget::default() }
    }

    #[tokio::test]
    async fn large_batch_bodies_do_not_block_small_ones() {
        let budget = without_wait();
        let mut large = Vec::new();
        while let Ok(taken) = budget.acquire(if large.is_empty() { None } else { LARGE }).await {
            large.push(taken);
        }
        assert_eq!(large.len(), LARGE_BYTES / BATCH_BYTES_MAX);
        assert_eq!(budget.acquire(None).await.unwrap_err().code().status(), 503);
        assert!(budget.acquire(Some(65_537)).await.is_err());
        for _ in 0..1_000 {
            assert!(budget.acquire(SMALL).await.is_ok() && budget.acquire(Some(65_536)).await.is_ok());
        }
        large.pop();
        assert!(budget.acquire(LARGE).await.is_ok());
    }

    #[tokio::test]
    async fn body_waits_for_room() {
        let budget = BodyBudget { wait_max: Duration::from_mins(1), ..BodyBudget::default() };
        let mut all = budget.acquire(LARGE).await.unwrap();
        while budget.large.available_permits() > 0 {
            all.merge(budget.acquire(LARGE).await.unwrap());
        }
        let freed = async {
            tokio::task::yield_now().await;
            drop(all);
        };
        assert!(tokio::join!(budget.acquire(LARGE), freed).0.is_ok());
    }

    #[tokio::test]
    async fn excess_room_is_returned_at_once() {
        let budget = BodyBudget::default();
        let mut permit = budget.acquire(None).await.unwrap();
        release_excess(&mut permit, 100_000);
        assert_eq!(budget.large.available_permits(), LARGE_BYTES - 100_000);
        drop(permit);
        assert_eq!(budget.large.available_permits(), LARGE_BYTES);
    }
}

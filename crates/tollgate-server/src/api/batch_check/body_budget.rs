//! BodyBudget for the bodies of batches: how much of them is held at once.
//!
//! Batches wait for a place with their bodies in memory, and there may be as many as there are connections. So a body is read only
//! when there is room for it, and until then its caller keeps it. Small bodies have a part of their own: large ones, and those that are
//! announced and never sent, keep none of them waiting.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::http::error::{ApiError, Code};
use crate::http::{BATCH_BYTES_MAX, CHECK_BYTES_MAX};

const LARGE_BYTES: usize = 48 << 20;
const SMALL_BYTES: usize = 16 << 20;
/// The largest of the small ones.
const SMALL_BYTES_EACH: usize = CHECK_BYTES_MAX;
/// What a body takes however small it is.
const BODY_BYTES_MIN: usize = 1 << 10;
/// Whoever waits longer than this is better off coming again.
const PATIENCE: Duration = Duration::from_secs(1);

/// The room there is, in bytes.
pub(crate) struct BodyBudget {
    large: Arc<Semaphore>,
    small: Arc<Semaphore>,
    patience: Duration,
}

/// A body, and its room until the last of it is gone.
struct Held {
    body: Bytes,
    _room: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

impl Default for BodyBudget {
    fn default() -> Self {
        BodyBudget {
            large: Arc::new(Semaphore::new(LARGE_BYTES)),
            small: Arc::new(Semaphore::new(SMALL_BYTES)),
            patience: PATIENCE,
        }
    }
}

impl BodyBudget {
    /// BodyBudget for a body of this length; of one that does not say it, for the largest.
    ///
    /// # Errors
    /// When there is none for too long.
    pub(crate) async fn take(&self, length: Option<u64>) -> Result<OwnedSemaphorePermit, ApiError> {
        let length = length.and_then(|length| usize::try_from(length).ok()).unwrap_or(BATCH_BYTES_MAX);
        let bytes = length.clamp(BODY_BYTES_MIN, BATCH_BYTES_MAX);
        let part = if bytes <= SMALL_BYTES_EACH { &self.small } else { &self.large };
        let taken = Arc::clone(part).acquire_many_owned(u32::try_from(bytes).unwrap_or(u32::MAX));
        // They are never closed.
        tokio::time::timeout(self.patience, taken).await.ok().and_then(Result::ok).ok_or_else(full)
    }
}

/// The body with its room, which is free when the last of the body is gone. What it does not need is free at once.
pub(crate) fn held(body: Bytes, mut room: OwnedSemaphorePermit) -> Bytes {
    let needed = body.len().max(BODY_BYTES_MIN);
    drop(room.split(room.num_permits().saturating_sub(needed)));
    Bytes::from_owner(Held { body, _room: room })
}

fn full() -> ApiError {
    let message = "too many large batches are under way here: nothing was charged; wait for Retry-After, or send smaller ones";
    ApiError::new(Code::ServiceUnavailable, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGE: Option<u64> = Some(BATCH_BYTES_MAX as u64);
    const SMALL: Option<u64> = Some(1_000);

    /// BodyBudget that is there or not.
    fn impatient() -> BodyBudget {
        BodyBudget { patience: Duration::ZERO, ..BodyBudget::default() }
    }

    #[tokio::test]
    async fn t17_bodies_of_batches_have_so_much_room_and_large_ones_keep_none_from_small_ones() {
        let room = impatient();
        let mut large = Vec::new();
        while let Ok(taken) = room.take(if large.is_empty() { None } else { LARGE }).await {
            large.push(taken);
        }
        assert_eq!(large.len(), LARGE_BYTES / BATCH_BYTES_MAX);
        assert_eq!(room.take(None).await.unwrap_err().code().status(), 503);
        assert!(room.take(Some(65_537)).await.is_err());
        for _ in 0..1_000 {
            assert!(room.take(SMALL).await.is_ok() && room.take(Some(65_536)).await.is_ok());
        }
        large.pop();
        assert!(room.take(LARGE).await.is_ok());
    }

    #[tokio::test]
    async fn a_body_waits_for_room() {
        let room = BodyBudget { patience: Duration::from_mins(1), ..BodyBudget::default() };
        let mut all = room.take(LARGE).await.unwrap();
        while room.large.available_permits() > 0 {
            all.merge(room.take(LARGE).await.unwrap());
        }
        let freed = async {
            tokio::task::yield_now().await;
            drop(all);
        };
        assert!(tokio::join!(room.take(LARGE), freed).0.is_ok());
    }

    #[tokio::test]
    async fn room_is_free_when_the_last_of_a_body_is_gone() {
        let room = BodyBudget::default();
        let body = held(Bytes::from(vec![7; 100_000]), room.take(None).await.unwrap());
        assert_eq!(
            room.large.available_permits(),
            LARGE_BYTES - 100_000,
            "what it did not need is free at once"
        );
        let part = body.slice_ref(&body[1..2]);
        drop(body);
        assert_eq!(room.large.available_permits(), LARGE_BYTES - 100_000);
        assert_eq!(*part, [7]);
        drop(part);
        assert_eq!(room.large.available_permits(), LARGE_BYTES);
    }
}

//! Idempotency keys: a batch that is sent twice is decided once.
//!
//! A key belongs to one caller and one body. While the first batch is in progress, a second one is refused. Afterwards it gets the
//! stored response, marked as replayed, for five minutes. Responses are bounded in bytes: the oldest are evicted first, and evictions are
//! counted. What this node stores on Redis in five minutes has the same bound, so that batches cannot take the memory that counters
//! need. A batch that ends without a response releases its key.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tollgate::{Span, Timestamp};
use tollgate_stores::redis::{IdempotencyLock, RedisCounters};

use super::error::CheckError;

const RETENTION: Span = Span::from_secs(300);
/// A node that holds a key on Redis for longer than this without a response is considered dead.
const LOCK_TIMEOUT: Duration = Duration::from_secs(30);
/// Between attempts to store a response on Redis.
const RETRY_INTERVAL: Duration = Duration::from_millis(250);
const BYTES_MAX: usize = 32 << 20;
/// Upper estimate of what a key occupies besides its response.
const KEY_BYTES: usize = 256;

type Fingerprint = [u8; 32];
/// When an entry expires, and a sequence number that makes it unique.
type Expiry = (Timestamp, u64);

/// The keys in progress and the responses of the last five minutes.
pub(crate) struct IdempotencyStore {
    state: Mutex<State>,
    /// Where nodes that share counters find each other's keys.
    redis: Option<RedisCounters>,
}

#[derive(Default)]
struct State {
    keys: HashMap<Fingerprint, Slot>,
    /// The keys in order of expiry.
    order: BTreeMap<Expiry, Fingerprint>,
    bytes: usize,
    /// Bytes stored on Redis since then; starts again from zero after [`RETENTION`].
    shared_bytes: usize,
    shared_since: Timestamp,
    sequence: u64,
    evicted: u64,
}

struct Slot {
    body: Fingerprint,
    expiry: Expiry,
    /// Absent while the batch is in progress.
    response: Option<Bytes>,
}

/// The state of a batch's key.
pub(crate) enum KeyState<'a> {
    /// This batch is the first with the key and must be decided.
    Locked(KeyLock<'a>),
    /// The batch was decided before; this was its response.
    Completed(Bytes),
}

/// The right to decide a batch. Dropped without [`KeyLock::complete`], it releases the key.
pub(crate) struct KeyLock<'a> {
    store: &'a IdempotencyStore,
    key: Fingerprint,
    body: Fingerprint,
    expiry: Expiry,
    is_completed: bool,
    is_locked_on_redis: bool,
}

impl IdempotencyStore {
    pub(crate) fn new(redis: Option<RedisCounters>) -> Self {
        IdempotencyStore { state: Mutex::default(), redis }
    }

    /// Locks a caller's key for a batch with this body, on this node and on Redis.
    ///
    /// While Redis is unreachable, the key is locked on this node alone: the batch is then decided at most once per node.
    ///
    /// # Errors
    /// When the key was used with another body, or the first batch with it is in progress.
    pub(crate) async fn lock(
        &self,
        caller: &str,
        key: &str,
        body: &[u8],
        now: Timestamp,
    ) -> Result<KeyState<'_>, CheckError> {
        let mut lock = match self.lock_here(caller, key, body, now)? {
            KeyState::Locked(lock) => lock,
            completed @ KeyState::Completed(_) => return Ok(completed),
        };
        match lock.lock_on_redis(now).await? {
            None => Ok(KeyState::Locked(lock)),
            Some(response) => {
                lock.keep(&response);
                Ok(KeyState::Completed(response))
            }
        }
    }

    /// Responses that were evicted before they expired.
    pub(crate) fn evicted(&self) -> u64 {
        self.state.lock().evicted
    }

    fn lock_here(
        &self,
        caller: &str,
        key: &str,
        body: &[u8],
        now: Timestamp,
    ) -> Result<KeyState<'_>, CheckError> {
        let key = fingerprint(&[caller.as_bytes(), key.as_bytes()]);
        let body = fingerprint(&[body]);
        let mut state = self.state.lock();
        state.expire(now);
        match state.keys.get(&key) {
            None => {
                let expiry = state.expiry(now + RETENTION);
                state.keys.insert(key, Slot { body, expiry, response: None });
                state.order.insert(expiry, key);
                state.bytes += KEY_BYTES;
                state.shrink(expiry);
                Ok(KeyState::Locked(KeyLock {
                    store: self,
                    key,
                    body,
                    expiry,
                    is_completed: false,
                    is_locked_on_redis: false,
                }))
            }
            Some(slot) if slot.body != body => Err(CheckError::IdempotencyKeyReused),
            Some(Slot { response: Some(response), .. }) => Ok(KeyState::Completed(response.clone())),
            Some(_) => Err(CheckError::IdempotencyInProgress),
        }
    }
}

impl KeyLock<'_> {
    /// Locks the key on Redis; returns the response if another node has decided the batch.
    async fn lock_on_redis(&mut self, now: Timestamp) -> Result<Option<Bytes>, CheckError> {
        let Some(redis) = &self.store.redis else { return Ok(None) };
        if !self.store.state.lock().share(KEY_BYTES, now) {
            return Ok(None);
        }
        match redis.idempotency().acquire(self.key, self.body, LOCK_TIMEOUT).await {
            Ok(IdempotencyLock::Acquired) => {
                self.is_locked_on_redis = true;
                Ok(None)
            }
            Ok(IdempotencyLock::Completed(response)) => Ok(Some(response.into())),
            Ok(IdempotencyLock::BodyMismatch) => Err(CheckError::IdempotencyKeyReused),
            Ok(IdempotencyLock::InProgress) => Err(CheckError::IdempotencyInProgress),
            // The lock may have been written; it expires by itself.
            Err(_) => Ok(None),
        }
    }

    /// Stores the response for batches that are sent again, on this node and on Redis.
    pub(crate) async fn complete(mut self, response: &Bytes, now: Timestamp) {
        self.store_on_redis(response, now).await;
        self.keep(response);
    }

    async fn store_on_redis(&mut self, response: &Bytes, now: Timestamp) {
        let Some(redis) = &self.store.redis else { return };
        let was_locked = std::mem::take(&mut self.is_locked_on_redis);
        let fits = self.store.state.lock().share(response.len(), now);
        if !was_locked && !fits {
            return;
        }
        // A response that does not fit releases the lock: another node may decide the batch again.
        let stored = if fits {
            redis.idempotency().complete(self.key, self.body, response, RETENTION.into()).await
        } else {
            redis.idempotency().release(self.key).await
        };
        if let Err(error) = stored {
            tracing::debug!(%error, "the response to a batch was not stored on Redis");
            // Until it is, other nodes refuse the batch as in progress.
            if was_locked && fits {
                tokio::spawn(store_with_retries(redis.clone(), self.key, self.body, response.clone()));
            }
        }
    }

    fn keep(mut self, response: &Bytes) {
        self.is_completed = true;
        let mut state = self.store.state.lock();
        if let Some(slot) = state.keys.get_mut(&self.key).filter(|slot| slot.expiry == self.expiry) {
            slot.response = Some(response.clone());
            state.bytes += response.len();
        }
        state.shrink(self.expiry);
    }
}

/// Stores a response for as long as the lock may live.
async fn store_with_retries(redis: RedisCounters, key: [u8; 32], body: [u8; 32], response: Bytes) {
    let started = Instant::now();
    while started.elapsed() < LOCK_TIMEOUT {
        tokio::time::sleep(RETRY_INTERVAL).await;
        if redis.idempotency().complete(key, body, &response, RETENTION.into()).await.is_ok() {
            return;
        }
    }
}

impl Drop for KeyLock<'_> {
    fn drop(&mut self) {
        if !self.is_completed {
            self.store.state.lock().remove(self.expiry);
        }
        // A lock that cannot be released expires soon.
        if self.is_locked_on_redis
            && let Some(redis) = self.store.redis.clone()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let key = self.key;
            runtime.spawn(async move { redis.idempotency().release(key).await });
        }
    }
}

impl State {
    fn expiry(&mut self, at: Timestamp) -> Expiry {
        self.sequence += 1;
        (at, self.sequence)
    }

    fn expire(&mut self, now: Timestamp) {
        while let Some((expiry, _)) = self.order.first_key_value()
            && expiry.0 <= now
        {
            self.remove(*expiry);
        }
    }

    /// Accounts for bytes stored on Redis, if the bound allows them.
    fn share(&mut self, bytes: usize, now: Timestamp) -> bool {
        if now.since(self.shared_since) >= RETENTION {
            (self.shared_since, self.shared_bytes) = (now, 0);
        }
        let fits = self.shared_bytes + bytes <= BYTES_MAX;
        if fits {
            self.shared_bytes += bytes;
        } else {
            self.evicted += 1;
        }
        fits
    }

    /// Evicts the oldest keys until the rest fits, but never the newest.
    fn shrink(&mut self, newest: Expiry) {
        while self.bytes > BYTES_MAX
            && let Some((expiry, _)) = self.order.first_key_value()
            && *expiry != newest
        {
            self.remove(*expiry);
            self.evicted += 1;
        }
    }

    /// Removes the key with this expiry, unless it was evicted.
    fn remove(&mut self, expiry: Expiry) {
        if let Some(key) = self.order.remove(&expiry)
            && let Some(slot) = self.keys.remove(&key)
        {
            self.bytes -= KEY_BYTES + slot.response.map_or(0, |response| response.len());
        }
    }
}

/// Hashes the parts with their lengths, so that no two lists collide.
fn fingerprint(parts: &[&[u8]]) -> Fingerprint {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_000);

    fn store() -> IdempotencyStore {
        IdempotencyStore::new(None)
    }

    fn locked(state: Result<KeyState<'_>, CheckError>) -> KeyLock<'_> {
        match state.unwrap() {
            KeyState::Locked(lock) => lock,
            KeyState::Completed(_) => panic!("completed"),
        }
    }

    fn is_in_progress(state: &Result<KeyState<'_>, CheckError>) -> bool {
        matches!(state, Err(CheckError::IdempotencyInProgress))
    }

    #[test]
    fn key_belongs_to_one_caller_and_one_body() {
        let store = store();
        locked(store.lock_here("a", "k", b"one", NOW)).keep(&Bytes::from_static(b"first"));
        assert!(
            matches!(store.lock_here("a", "k", b"one", NOW), Ok(KeyState::Completed(response)) if response == "first")
        );
        assert!(matches!(store.lock_here("a", "k", b"two", NOW), Err(CheckError::IdempotencyKeyReused)));
        locked(store.lock_here("b", "k", b"two", NOW));
    }

    #[test]
    fn bytes_shared_on_redis_are_bounded_and_expire() {
        let mut state = State::default();
        let shared = (0..1_000).filter(|_| state.share(BYTES_MAX / 100, NOW)).count();
        assert_eq!((shared, state.evicted), (100, 900), "what does not fit is counted");
        assert!(!state.share(BYTES_MAX / 100, NOW + Span::from_secs(299)));
        assert!(state.share(BYTES_MAX, NOW + RETENTION), "expired bytes are available again");
    }

    #[test]
    fn batches_without_response_leave_no_key() {
        let store = store();
        locked(store.lock_here("a", "kept", b"one", NOW)).keep(&Bytes::from_static(b"first"));
        for number in 0..10_000 {
            drop(locked(store.lock_here("a", &number.to_string(), b"one", NOW)));
        }
        let state = store.state.lock();
        assert_eq!((state.keys.len(), state.order.len()), (1, 1));
        assert_eq!((state.bytes, state.evicted), (KEY_BYTES + "first".len(), 0));
    }

    #[test]
    fn evicted_lock_does_not_affect_its_successor() {
        let store = store();
        let (early, late) =
            (locked(store.lock_here("a", "k", b"", NOW)), locked(store.lock_here("a", "l", b"", NOW)));
        locked(store.lock_here("a", "large", b"", NOW)).keep(&Bytes::from(vec![0; BYTES_MAX]));
        let again =
            [locked(store.lock_here("a", "k", b"", NOW)), locked(store.lock_here("a", "l", b"", NOW))];
        drop(early);
        late.keep(&Bytes::from_static(b"first"));
        for key in ["k", "l"] {
            assert!(is_in_progress(&store.lock_here("a", key, b"", NOW)), "{key}");
        }
        drop(again);
        assert!(store.state.lock().bytes <= BYTES_MAX);
    }

    #[test]
    fn second_batch_is_refused_until_first_is_released() {
        let store = store();
        let first = locked(store.lock_here("a", "k", b"one", NOW));
        assert!(is_in_progress(&store.lock_here("a", "k", b"one", NOW)));
        drop(first);
        locked(store.lock_here("a", "k", b"one", NOW));
    }

    #[test]
    fn responses_expire_and_oldest_is_evicted() {
        let store = store();
        locked(store.lock_here("a", "k", b"", NOW)).keep(&Bytes::from_static(b"first"));
        locked(store.lock_here("a", "k", b"", NOW + RETENTION)).keep(&Bytes::from_static(b"second"));
        let large = Bytes::from(vec![0; BYTES_MAX]);
        locked(store.lock_here("a", "large", b"", NOW + RETENTION)).keep(&large);
        assert_eq!(store.evicted(), 1);
        locked(store.lock_here("a", "k", b"", NOW + RETENTION));
    }
}

//! Batches that are sent twice are decided once.
//!
//! A key belongs to its caller and to one body. While the first batch is under way a second is told so; afterwards
//! it gets the first one's answer, marked as replayed, for five minutes. The store is bounded in bytes: when it
//! is full the oldest answers go first, and that is counted. So is what a node leaves on Redis for the others: beyond the bound
//! it keeps answers to itself, so that batches cannot fill what counters need. A batch that gets no answer leaves nothing, here or
//! there: its caller pays nothing for it either, and could send any number.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tollgate::{Span, Timestamp};
use tollgate_stores::redis::{IdempotencyLock, RedisCounters};

use crate::app::App;
use crate::http::error::{ApiError, Code};

const KEPT_FOR: Span = Span::from_secs(300);
/// A node that decides a batch for longer than this is taken for dead.
const UNDER_WAY_MAX: Duration = Duration::from_secs(30);
const BYTES_MAX: usize = 32 << 20;
/// What a key takes beside its answer, generously.
const SLOT_BYTES: usize = 256;

type Fingerprint = [u8; 32];
/// When something ends, and a number of its own: a place in an order of ends from which it can be taken out.
type Place = (Timestamp, u64);

#[derive(Default)]
pub(crate) struct Idempotency {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    answers: HashMap<Fingerprint, Slot>,
    /// Keys in the order in which they end: one for each answer that is there or expected.
    order: BTreeMap<Place, Fingerprint>,
    bytes: usize,
    /// What lies on Redis because of this node, in the order in which it ends.
    shared: BTreeMap<Place, usize>,
    shared_bytes: usize,
    places: u64,
    evicted: u64,
}

struct Slot {
    body: Fingerprint,
    place: Place,
    answer: Option<Bytes>,
}

/// What to do with a batch that carries a key.
#[derive(Debug)]
pub(crate) enum Turn<'a> {
    /// Decide it, and say how it ended.
    Decide(Ticket<'a>),
    /// It was decided before.
    Replay(Bytes),
}

/// The right to decide a batch. Dropped without an answer, it lets the next one try.
pub(crate) struct Ticket<'a> {
    store: &'a Idempotency,
    key: Fingerprint,
    body: Fingerprint,
    place: Place,
    answered: bool,
    /// Where the batch is known to be ours among other nodes, and what that takes there.
    claimed: Option<(RedisCounters, Place)>,
}

impl std::fmt::Debug for Ticket<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ticket")
    }
}

impl Idempotency {
    /// The turn of this caller's batch with this key and body.
    pub(crate) fn turn(
        &self,
        caller: &str,
        key: &str,
        body: &[u8],
        now: Timestamp,
    ) -> Result<Turn<'_>, ApiError> {
        let key = fingerprint(&[caller.as_bytes(), key.as_bytes()]);
        let body = fingerprint(&[body]);
        let mut state = self.state.lock();
        state.expire(now);
        match state.answers.get(&key) {
            None => {
                let place = state.place(now + KEPT_FOR);
                state.answers.insert(key, Slot { body, place, answer: None });
                state.order.insert(place, key);
                state.bytes += SLOT_BYTES;
                state.shrink(place);
                Ok(Turn::Decide(Ticket { store: self, key, body, place, answered: false, claimed: None }))
            }
            Some(slot) if slot.body != body => Err(other_body()),
            Some(Slot { answer: Some(answer), .. }) => Ok(Turn::Replay(answer.clone())),
            Some(_) => Err(under_way()),
        }
    }

    /// Answers that had to go before their time.
    pub(crate) fn evicted(&self) -> u64 {
        self.state.lock().evicted
    }
}

fn other_body() -> ApiError {
    let reason = "was used for another body in the last five minutes";
    ApiError::field(Code::IdempotencyMismatch, "idempotency_key", reason)
}

fn under_way() -> ApiError {
    ApiError::field(Code::Conflict, "idempotency_key", "the first batch with this key is still under way")
}

impl Ticket<'_> {
    /// Asks the other nodes, if there are any: the answer that one of them gave, or nothing if the batch is ours.
    ///
    /// Where they cannot be asked it is ours too: the batch is decided once per node then.
    pub(crate) async fn claim(&mut self, app: &App) -> Result<Option<Bytes>, ApiError> {
        let Some(redis) = app.counters().redis() else { return Ok(None) };
        let Some(place) = self.store.state.lock().share(SLOT_BYTES, UNDER_WAY_MAX.into(), app.now()) else {
            return Ok(None);
        };
        match redis.idempotency().acquire(self.key, self.body, UNDER_WAY_MAX).await {
            Ok(IdempotencyLock::Acquired) => {
                self.claimed = Some((redis.clone(), place));
                Ok(None)
            }
            // It may lie there all the same, until it ends by itself.
            Err(_) => Ok(None),
            Ok(by_another) => {
                self.store.state.lock().unshare(place);
                match by_another {
                    IdempotencyLock::Completed(answer) => Ok(Some(answer.into())),
                    IdempotencyLock::BodyMismatch => Err(other_body()),
                    IdempotencyLock::Acquired | IdempotencyLock::InProgress => Err(under_way()),
                }
            }
        }
    }

    /// Tells the other nodes the answer.
    pub(crate) async fn tell_others(&mut self, app: &App, answer: &Bytes) {
        let Some(redis) = app.counters().redis() else { return };
        // What is claimed and does not fit is given up: the next may try on any node.
        let claimed = self.claimed.take();
        let fits = {
            let mut state = self.store.state.lock();
            if let Some((_, place)) = &claimed {
                state.unshare(*place);
            }
            state.share(SLOT_BYTES + answer.len(), KEPT_FOR, app.now()).is_some()
        };
        if claimed.is_none() && !fits {
            return;
        }
        let told =
            redis.idempotency().complete(self.key, self.body, fits.then_some(answer), KEPT_FOR.into()).await;
        if let Err(error) = told {
            tracing::debug!(%error, "other nodes do not know the answer to a batch yet");
            let (key, body, answer) = (self.key, self.body, fits.then(|| answer.to_vec()));
            // As long as they know that it is claimed, they take it to be under way.
            if let Some((redis, _)) = claimed {
                tokio::spawn(async move {
                    redis
                        .idempotency()
                        .complete_with_retries(key, body, answer, KEPT_FOR.into(), UNDER_WAY_MAX)
                        .await;
                });
            }
        }
    }

    /// Keeps the answer for those who send the batch again.
    pub(crate) fn answer(mut self, answer: &Bytes) {
        self.answered = true;
        let mut state = self.store.state.lock();
        if let Some(slot) = state.answers.get_mut(&self.key).filter(|slot| slot.place == self.place) {
            slot.answer = Some(answer.clone());
            state.bytes += answer.len();
        }
        state.shrink(self.place);
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        if !self.answered {
            self.store.state.lock().remove(self.place);
        }
        let Some((redis, place)) = self.claimed.take() else { return };
        // What cannot be given up ends by itself soon.
        self.store.state.lock().unshare(place);
        // Without an answer the next may try on any node.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let key = self.key;
            runtime.spawn(async move { redis.idempotency().release(key, UNDER_WAY_MAX).await });
        }
    }
}

impl State {
    /// A place behind all that end as early.
    fn place(&mut self, ends: Timestamp) -> Place {
        self.places += 1;
        (ends, self.places)
    }

    fn expire(&mut self, now: Timestamp) {
        while let Some((place, _)) = self.order.first_key_value()
            && place.0 <= now
        {
            self.remove(*place);
        }
    }

    /// Counts so much more as lying on Redis for so long, if it may: the place from which it can be taken back.
    fn share(&mut self, bytes: usize, kept_for: Span, now: Timestamp) -> Option<Place> {
        while let Some((place, _)) = self.shared.first_key_value()
            && place.0 <= now
        {
            self.unshare(*place);
        }
        if self.shared_bytes + bytes > BYTES_MAX {
            self.evicted += 1;
            return None;
        }
        let place = self.place(now + kept_for);
        self.shared_bytes += bytes;
        self.shared.insert(place, bytes);
        Some(place)
    }

    /// What was counted there lies on Redis no longer.
    fn unshare(&mut self, place: Place) {
        self.shared_bytes -= self.shared.remove(&place).unwrap_or(0);
    }

    /// Makes the answers fit, oldest first, but never the one just given.
    fn shrink(&mut self, newest: Place) {
        while self.bytes > BYTES_MAX
            && let Some((place, _)) = self.order.first_key_value()
            && *place != newest
        {
            self.remove(*place);
            self.evicted += 1;
        }
    }

    /// Removes what has this place, if anything still has.
    fn remove(&mut self, place: Place) {
        if let Some(key) = self.order.remove(&place)
            && let Some(slot) = self.answers.remove(&key)
        {
            self.bytes -= SLOT_BYTES + slot.answer.map_or(0, |answer| answer.len());
        }
    }
}

/// A hash of the parts, each with its length, so that no two lists look alike.
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

    fn decided(turn: Result<Turn<'_>, ApiError>) -> Ticket<'_> {
        match turn.unwrap() {
            Turn::Decide(ticket) => ticket,
            Turn::Replay(_) => panic!("replayed"),
        }
    }

    #[test]
    fn t39_a_key_belongs_to_its_caller_and_its_body() {
        let store = Idempotency::default();
        decided(store.turn("a", "k", b"one", NOW)).answer(&Bytes::from_static(b"first"));
        assert!(matches!(store.turn("a", "k", b"one", NOW), Ok(Turn::Replay(answer)) if answer == "first"));
        assert_eq!(store.turn("a", "k", b"two", NOW).unwrap_err().code(), Code::IdempotencyMismatch);
        decided(store.turn("b", "k", b"two", NOW));
    }

    #[test]
    fn t17_what_a_node_leaves_on_redis_is_bounded_and_ends() {
        let mut state = State::default();
        let shared =
            (0..1_000).filter_map(|_| state.share(BYTES_MAX / 100, KEPT_FOR, NOW)).collect::<Vec<_>>();
        assert_eq!((shared.len(), state.evicted), (100, 900), "and it is counted that others do not know");
        assert!(state.share(BYTES_MAX / 100, KEPT_FOR, NOW + Span::from_secs(299)).is_none());
        state.unshare(shared[7]);
        state.unshare(shared[7]);
        let claim = state.share(BYTES_MAX / 100, UNDER_WAY_MAX.into(), NOW);
        assert!(claim.is_some(), "what is taken back leaves room, once");
        assert!(state.share(1_000, KEPT_FOR, NOW).is_none());
        assert!(state.share(1_000, KEPT_FOR, NOW + UNDER_WAY_MAX.into()).is_some(), "a claim ends earlier");
        state = State::default();
        assert!(state.share(BYTES_MAX, KEPT_FOR, NOW).is_some());
        assert!(
            state.share(BYTES_MAX, KEPT_FOR, NOW + KEPT_FOR).is_some(),
            "as much again, once it has ended"
        );
    }

    #[test]
    fn t17_batches_that_get_no_answer_leave_nothing() {
        let store = Idempotency::default();
        decided(store.turn("a", "kept", b"one", NOW)).answer(&Bytes::from_static(b"first"));
        for number in 0..10_000 {
            drop(decided(store.turn("a", &number.to_string(), b"one", NOW)));
        }
        let state = store.state.lock();
        assert_eq!((state.answers.len(), state.order.len()), (1, 1));
        assert_eq!((state.bytes, state.evicted), (SLOT_BYTES + "first".len(), 0));
    }

    #[test]
    fn t39_a_batch_whose_place_another_took_takes_nothing_of_it() {
        let store = Idempotency::default();
        let (early, late) =
            (decided(store.turn("a", "k", b"", NOW)), decided(store.turn("a", "l", b"", NOW)));
        decided(store.turn("a", "large", b"", NOW)).answer(&Bytes::from(vec![0; BYTES_MAX]));
        let again = [decided(store.turn("a", "k", b"", NOW)), decided(store.turn("a", "l", b"", NOW))];
        drop(early);
        late.answer(&Bytes::from_static(b"of the first"));
        for key in ["k", "l"] {
            assert_eq!(
                store.turn("a", key, b"", NOW).unwrap_err().code(),
                Code::Conflict,
                "{key}: still under way"
            );
        }
        drop(again);
        assert!(store.state.lock().bytes <= BYTES_MAX);
    }

    #[test]
    fn t39_a_second_batch_waits_its_turn_and_a_failed_first_gives_it_up() {
        let store = Idempotency::default();
        let first = decided(store.turn("a", "k", b"one", NOW));
        assert_eq!(store.turn("a", "k", b"one", NOW).unwrap_err().code(), Code::Conflict);
        drop(first);
        decided(store.turn("a", "k", b"one", NOW));
    }

    #[test]
    fn answers_end_after_five_minutes_and_when_the_store_is_full() {
        let store = Idempotency::default();
        decided(store.turn("a", "k", b"", NOW)).answer(&Bytes::from_static(b"first"));
        decided(store.turn("a", "k", b"", NOW + KEPT_FOR)).answer(&Bytes::from_static(b"second"));
        let large = Bytes::from(vec![0; BYTES_MAX]);
        decided(store.turn("a", "large", b"", NOW + KEPT_FOR)).answer(&large);
        assert_eq!(store.evicted(), 1);
        decided(store.turn("a", "k", b"", NOW + KEPT_FOR));
    }
}

//! How much users and keys have asked, counted here and added to the database from time to time.
//!
//! A decision counts in a map of this process and waits for nothing. Every few seconds what was counted leaves as a batch
//! with a number of its own: the database remembers it, so that a batch whose fate is not known is sent again and counted
//! once. While the database is away counting goes on, by user and key, up to a bound; what goes beyond it is counted as
//! dropped. What is left at the end of the process waits in a file for the next one.

mod flush;

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use tollgate::record::{Record, RecordSink};
use tollgate::{Answer, ApiKey, Id, Timestamp};
use tollgate_stores::sql::{KeyUsageDelta, UserUsageDelta};

pub(crate) use self::flush::Flusher;

const SHARDS: usize = 16;
/// Users and keys counted at most between two batches.
const ENTRIES_MAX: usize = 262_144;
const MICROS_PER_DAY: u64 = 86_400_000_000;

/// What was asked since the last batch.
#[derive(Debug)]
pub(crate) struct Usage {
    shards: [Mutex<Counted>; SHARDS],
    hashing: RandomState,
    entries: AtomicUsize,
    dropped: AtomicU64,
}

/// What was asked by some users and keys.
#[derive(Debug, Default)]
pub(crate) struct Counted {
    users: HashMap<Box<str>, Count>,
    keys: HashMap<Box<str>, Count>,
    /// Of users, from days that are over.
    past: Vec<UserUsageDelta>,
}

/// What one of them asked on one day.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
struct Count {
    day: u32,
    requests: u64,
    exceeded: u64,
    last: Timestamp,
}

impl Default for Usage {
    fn default() -> Self {
        Usage {
            shards: Default::default(),
            hashing: RandomState::new(),
            entries: AtomicUsize::new(0),
            dropped: AtomicU64::new(0),
        }
    }
}

impl Usage {
    /// Counts a request of a user that has a record.
    pub(crate) fn note_user(&self, user: &str, exceeded: bool, now: Timestamp) {
        let today = day_of(now);
        let mut shard = self.shard(user).lock();
        let Counted { users, past, .. } = &mut *shard;
        if let Some(count) = users.get_mut(user) {
            if count.day < today {
                past.push(count.of_user(user));
                *count = Count::none(today);
            }
            count.add(exceeded, now);
        } else if self.has_room() {
            let mut count = Count::none(today);
            count.add(exceeded, now);
            users.insert(user.into(), count);
        }
    }

    /// Counts a request with a known key.
    pub(crate) fn note_key(&self, id: &str, exceeded: bool, now: Timestamp) {
        let mut shard = self.shard(id).lock();
        if let Some(count) = shard.keys.get_mut(id) {
            count.add(exceeded, now);
        } else if self.has_room() {
            let mut count = Count::none(day_of(now));
            count.add(exceeded, now);
            shard.keys.insert(id.into(), count);
        }
    }

    fn shard(&self, id: &str) -> &Mutex<Counted> {
        let hash = self.hashing.hash_one(id);
        &self.shards[usize::try_from(hash % SHARDS as u64).unwrap_or(0)]
    }

    /// Takes room for one more; false, and counted, if there is none.
    fn has_room(&self) -> bool {
        let taken = self.entries.fetch_add(1, Ordering::Relaxed) < ENTRIES_MAX;
        if !taken {
            self.entries.fetch_sub(1, Ordering::Relaxed);
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        taken
    }

    /// Everything counted so far; counting starts afresh.
    fn take(&self) -> (Vec<UserUsageDelta>, Vec<KeyUsageDelta>) {
        let (mut users, mut keys) = (Vec::new(), Vec::new());
        for shard in &self.shards {
            let counted = std::mem::take(&mut *shard.lock());
            self.entries.fetch_sub(counted.users.len() + counted.keys.len(), Ordering::Relaxed);
            users.extend(counted.past);
            users.extend(counted.users.iter().map(|(user, count)| count.of_user(user)));
            keys.extend(counted.keys.iter().map(|(id, count)| count.of_key(id)));
        }
        (users, keys)
    }

    /// Users and keys with something that is not in a batch yet.
    pub(crate) fn waiting(&self) -> usize {
        self.entries.load(Ordering::Relaxed)
    }

    /// Requests that were not counted for want of room, and deltas that the database refused.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Whether the next batch should not wait.
    pub(crate) fn is_filling_up(&self) -> bool {
        self.waiting() > ENTRIES_MAX / 2
    }
}

impl RecordSink for Usage {
    /// Counts for users that have a record and for keys that are known. What only looks is no request.
    fn offer(&self, record: &Record<'_>) {
        let (request, decision) = (record.request, record.decision);
        let accounts = decision.rules().accounts();
        if request.cost == 0 || accounts.is_empty() {
            return;
        }
        let exceeded = matches!(decision.answer, Answer::Refuse { .. });
        let key = request.api_key.and_then(ApiKey::known_id).and_then(|id| accounts.key(id.as_str()));
        if let Some(key) = &key {
            self.note_key(key.id(), exceeded, decision.now);
        }
        let user = request.user.map(Id::as_str).or_else(|| key.and_then(|key| key.user()));
        if let Some(user) = user.filter(|user| accounts.user(user).is_some()) {
            // What a key says is not read yet.
            let user = decision.rules().normalization().ids.user.normalize(user);
            self.note_user(&user, exceeded, decision.now);
        }
    }
}

impl Count {
    fn none(day: u32) -> Self {
        Count { day, requests: 0, exceeded: 0, last: Timestamp::from_secs(0) }
    }

    fn add(&mut self, exceeded: bool, now: Timestamp) {
        self.requests += 1;
        self.exceeded += u64::from(exceeded);
        self.last = self.last.max(now);
    }

    fn of_user(&self, user: &str) -> UserUsageDelta {
        UserUsageDelta {
            user: user.to_owned(),
            day: self.day,
            requests: self.requests,
            exceeded: self.exceeded,
            last_micros: self.last.as_micros(),
        }
    }

    fn of_key(&self, id: &str) -> KeyUsageDelta {
        KeyUsageDelta { id: id.to_owned(), requests: self.requests, last_micros: self.last.as_micros() }
    }
}

/// The number of a day of UTC.
fn day_of(now: Timestamp) -> u32 {
    u32::try_from(now.as_micros() / MICROS_PER_DAY).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use tollgate::Span;

    use super::*;

    const DAY: u64 = 86_400;

    fn at(day: u64, second: u64) -> Timestamp {
        Timestamp::from_secs(day * DAY + second)
    }

    fn user(deltas: &[UserUsageDelta], day: u32) -> &UserUsageDelta {
        deltas.iter().find(|delta| delta.day == day).unwrap()
    }

    #[test]
    fn requests_before_and_after_midnight_are_of_different_days() {
        let usage = Usage::default();
        let midnight = at(20_001, 0);
        usage.note_user("alice", false, at(20_000, DAY - 1));
        usage.note_user("alice", true, midnight - Span::from_micros(1));
        usage.note_user("alice", false, midnight);
        let (users, keys) = usage.take();
        assert_eq!((users.len(), keys.len()), (2, 0));
        let (before, after) = (user(&users, 20_000), user(&users, 20_001));
        assert_eq!((before.requests, before.exceeded), (2, 1));
        assert_eq!(before.last_micros, midnight.as_micros() - 1);
        assert_eq!((after.requests, after.exceeded, after.last_micros), (1, 0, midnight.as_micros()));
    }

    #[test]
    fn a_request_decided_just_before_midnight_and_told_after_it_does_not_go_back() {
        let usage = Usage::default();
        usage.note_user("alice", false, at(20_001, 0));
        usage.note_user("alice", false, at(20_000, DAY - 1));
        let (users, _) = usage.take();
        assert_eq!((users.len(), users[0].day, users[0].requests), (1, 20_001, 2));
        assert_eq!(users[0].last_micros, at(20_001, 0).as_micros());
    }

    #[test]
    fn what_was_taken_is_not_counted_again() {
        let usage = Usage::default();
        usage.note_key("abc", false, at(1, 1));
        usage.note_key("abc", true, at(1, 2));
        let (_, keys) = usage.take();
        assert_eq!((keys.len(), keys[0].requests, keys[0].last_micros), (1, 2, at(1, 2).as_micros()));
        assert_eq!(usage.waiting(), 0);
        assert!(usage.take().1.is_empty());
    }

    #[test]
    fn beyond_the_bound_known_ones_are_counted_and_the_rest_are_counted_as_dropped() {
        let usage = Usage::default();
        for number in 0..ENTRIES_MAX + 10 {
            usage.note_user(&number.to_string(), false, at(1, 0));
        }
        assert_eq!((usage.waiting(), usage.dropped()), (ENTRIES_MAX, 10));
        usage.note_user("0", false, at(1, 1));
        assert_eq!(usage.dropped(), 10);
        let (users, _) = usage.take();
        assert_eq!(users.iter().map(|user| user.requests).sum::<u64>(), ENTRIES_MAX as u64 + 1);
    }

    #[test]
    fn what_is_left_is_taken_up_by_the_next_process_under_its_old_number() {
        let usage = Usage::default();
        let mut flusher = Flusher::new("first".to_owned());
        assert_eq!(flusher.left(&usage), None);
        usage.note_user("alice", true, at(3, 4));
        usage.note_key("abc", false, at(3, 5));
        let left = flusher.left(&usage).unwrap();
        let mut next = Flusher::new("second".to_owned());
        assert!(next.take_up(&left));
        assert_eq!(next.left(&Usage::default()).unwrap(), left);
        let text = String::from_utf8(left).unwrap();
        assert!(
            text.contains(r#""node":"first","number":1"#) && text.contains(r#"["alice",3,1,1,"#),
            "{text}"
        );
        assert!(!next.take_up(b"nonsense"));
    }
}

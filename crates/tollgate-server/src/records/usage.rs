//! Usage totals per user and API key, counted in memory and added to the database in batches.
//!
//! Every few seconds the counts leave as a numbered batch. The database remembers the number, so a batch with an unknown outcome is
//! sent again and counted once. While the database is unreachable, counting continues up to a bound; what exceeds it is counted as
//! dropped. What is left at shutdown is stored in a file for the next process.

mod flush;

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use tollgate::identity::InTenant;
use tollgate::record::{Record, RecordSink};
use tollgate::{Answer, ApiKey, Id, Timestamp};
use tollgate_stores::sql::{KeyUsageDelta, UserUsageDelta};

pub(crate) use self::flush::Flusher;

const SHARDS: usize = 16;
/// Users and keys counted at most between two batches.
const ENTRIES_MAX: usize = 262_144;
const MICROS_PER_DAY: u64 = 86_400_000_000;

/// Usage since the last batch.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    shards: [Mutex<UsageShard>; SHARDS],
    hashing: RandomState,
    entries: AtomicUsize,
    dropped: AtomicU64,
}

/// One shard of the usage.
#[derive(Debug, Default)]
pub(crate) struct UsageShard {
    /// Users by tenant; the tenant of users without one is empty.
    users: HashMap<Box<str>, HashMap<Box<str>, Count>>,
    keys: HashMap<Box<str>, Count>,
    /// Usage of users on earlier days.
    past: Vec<UserUsageDelta>,
}

/// Requests of one user or key on one day.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
struct Count {
    day: u32,
    requests: u64,
    exceeded: u64,
    last: Timestamp,
}

impl Usage {
    /// Counts a request of a user with an account.
    pub(crate) fn note_user<'i>(
        &self,
        user: impl Into<InTenant<'i, &'i str>>,
        exceeded: bool,
        now: Timestamp,
    ) {
        let InTenant { tenant, id: user } = user.into();
        let (tenant, today) = (tenant.unwrap_or_default(), day_of(now));
        let mut shard = self.shard(user).lock();
        let UsageShard { users, past, .. } = &mut *shard;
        if let Some(count) = users.get_mut(tenant).and_then(|users| users.get_mut(user)) {
            if count.day < today {
                past.push(count.of_user(tenant, user));
                *count = Count::new(today);
            }
            count.add(exceeded, now);
        } else if self.reserve_entry() {
            let users = users.entry(tenant.into()).or_default();
            users.entry(user.into()).or_insert(Count::new(today)).add(exceeded, now);
        }
    }

    /// Counts a request with a known key.
    pub(crate) fn note_key(&self, id: &str, exceeded: bool, now: Timestamp) {
        let mut shard = self.shard(id).lock();
        if let Some(count) = shard.keys.get_mut(id) {
            count.add(exceeded, now);
        } else if self.reserve_entry() {
            shard.keys.entry(id.into()).or_insert(Count::new(day_of(now))).add(exceeded, now);
        }
    }

    fn shard(&self, id: &str) -> &Mutex<UsageShard> {
        let hash = self.hashing.hash_one(id);
        &self.shards[usize::try_from(hash % SHARDS as u64).unwrap_or(0)]
    }

    /// Reserves an entry; false, and counted as dropped, past the bound.
    fn reserve_entry(&self) -> bool {
        let reserved = self.entries.fetch_add(1, Ordering::Relaxed) < ENTRIES_MAX;
        if !reserved {
            self.entries.fetch_sub(1, Ordering::Relaxed);
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        reserved
    }

    /// Takes all counts.
    fn take(&self) -> (Vec<UserUsageDelta>, Vec<KeyUsageDelta>) {
        let (mut users, mut keys) = (Vec::new(), Vec::new());
        for shard in &self.shards {
            let counted = std::mem::take(&mut *shard.lock());
            let counted_users: usize = counted.users.values().map(HashMap::len).sum();
            self.entries.fetch_sub(counted_users + counted.keys.len(), Ordering::Relaxed);
            users.extend(counted.past);
            for (tenant, of_tenant) in &counted.users {
                users.extend(of_tenant.iter().map(|(user, count)| count.of_user(tenant, user)));
            }
            keys.extend(counted.keys.iter().map(|(id, count)| count.of_key(id)));
        }
        (users, keys)
    }

    /// Users and keys with usage that is not in a batch yet.
    pub(crate) fn waiting(&self) -> usize {
        self.entries.load(Ordering::Relaxed)
    }

    /// Requests past the bound and rows that the database rejected.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Whether the next batch should be sent now.
    pub(crate) fn is_filling_up(&self) -> bool {
        self.waiting() > ENTRIES_MAX / 2
    }
}

impl RecordSink for Usage {
    /// Counts requests of users with an account and of known keys. Peeks (cost 0) are not counted.
    fn offer(&self, record: &Record<'_>) {
        let (request, decision) = (record.request, record.decision);
        let accounts = decision.rules().accounts();
        if request.cost == 0 || accounts.is_empty() {
            return;
        }
        let exceeded = matches!(decision.answer, Answer::Refuse { .. });
        let key = request.api_key.and_then(ApiKey::known_id).and_then(|id| accounts.key(id.as_str()));
        if let Some(key) = &key {
            self.note_key(key.id, exceeded, decision.now);
        }
        let user = request.user.map(Id::as_str).or_else(|| key.and_then(|key| key.user));
        let tenant = request.tenant.map(Id::as_str).or_else(|| key.and_then(|key| key.tenant));
        let Some(user) = user else { return };
        // User and tenant of a key are not normalized yet.
        let ids = decision.rules().normalization().ids;
        let (user, tenant) = (ids.user.normalize(user), tenant.map(|tenant| ids.tenant.normalize(tenant)));
        let user = InTenant::new(tenant.as_deref(), &*user);
        if accounts.user(user).is_some() {
            self.note_user(user, exceeded, decision.now);
        }
    }
}

impl Count {
    fn new(day: u32) -> Self {
        Count { day, requests: 0, exceeded: 0, last: Timestamp::from_secs(0) }
    }

    fn add(&mut self, exceeded: bool, now: Timestamp) {
        self.requests += 1;
        self.exceeded += u64::from(exceeded);
        self.last = self.last.max(now);
    }

    fn of_user(&self, tenant: &str, user: &str) -> UserUsageDelta {
        UserUsageDelta {
            tenant: Some(tenant.to_owned()).filter(|tenant| !tenant.is_empty()),
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

/// The day number, in UTC.
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
    fn usage_is_split_at_midnight() {
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
    fn users_of_two_tenants_are_counted_apart() {
        let usage = Usage::default();
        for tenant in [None, Some("acme"), Some("acme"), Some("beta")] {
            usage.note_user(InTenant::new(tenant, "bob"), false, at(20_000, 1));
        }
        assert_eq!(usage.waiting(), 3);
        let (mut users, _) = usage.take();
        users.sort_by(|a, b| a.tenant.cmp(&b.tenant));
        let counted: Vec<_> = users.iter().map(|user| (user.tenant.as_deref(), user.requests)).collect();
        assert_eq!(counted, [(None, 1), (Some("acme"), 2), (Some("beta"), 1)]);
        assert_eq!(usage.waiting(), 0);
    }

    #[test]
    fn late_record_counts_on_the_current_day() {
        let usage = Usage::default();
        usage.note_user("alice", false, at(20_001, 0));
        usage.note_user("alice", false, at(20_000, DAY - 1));
        let (users, _) = usage.take();
        assert_eq!((users.len(), users[0].day, users[0].requests), (1, 20_001, 2));
        assert_eq!(users[0].last_micros, at(20_001, 0).as_micros());
    }

    #[test]
    fn taken_usage_is_not_counted_again() {
        let usage = Usage::default();
        usage.note_key("abc", false, at(1, 1));
        usage.note_key("abc", true, at(1, 2));
        let (_, keys) = usage.take();
        assert_eq!((keys.len(), keys[0].requests, keys[0].last_micros), (1, 2, at(1, 2).as_micros()));
        assert_eq!(usage.waiting(), 0);
        assert!(usage.take().1.is_empty());
    }

    #[test]
    fn usage_past_the_bound_is_counted_as_dropped() {
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
    fn next_process_keeps_the_batch_number() {
        let usage = Usage::default();
        let mut flusher = Flusher::new("first".to_owned());
        assert_eq!(flusher.unsent(&usage), None);
        usage.note_user("alice", true, at(3, 4));
        usage.note_key("abc", false, at(3, 5));
        let unsent = flusher.unsent(&usage).unwrap();
        let mut next = Flusher::new("second".to_owned());
        assert!(next.load(&unsent));
        assert_eq!(next.unsent(&Usage::default()).unwrap(), unsent);
        let text = String::from_utf8(unsent).unwrap();
        assert!(
            text.contains(r#""node":"first","number":1"#) && text.contains(r#""user":"alice""#),
            "{text}"
        );
        assert!(!next.load(b"nonsense"));
    }
}

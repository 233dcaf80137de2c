//! Clients known to be in cooldown: they are not served from leases.
//!
//! The server refuses a client in cooldown before it looks at counters; a lease could not. This table neither admits nor
//! refuses: it only sends the decision to the server, so a stale entry costs one call. A node that learns of a cooldown
//! publishes it to the others.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use parking_lot::Mutex;
use tollgate::Span;
use tollgate::counters::Charges;
use tollgate::identity::Subject;

/// The message that a client is in cooldown: client and microseconds follow.
pub(crate) const COOLDOWN_MESSAGE: &str = "kept-out";

const SHARDS: usize = 16;
/// Clients per shard. Beyond it all clients of the shard are treated as in cooldown.
const SHARD_MAX: usize = 4_096;
/// An end that is later by this is a new cooldown; the same one is reported with small differences.
const SAME_COOLDOWN: Duration = Duration::from_secs(1);

/// Clients known to be in cooldown.
pub(crate) struct Cooldowns {
    shards: [Mutex<Shard>; SHARDS],
    /// The latest end, in milliseconds since `opened`. Usually no client is in cooldown, and no lock is taken.
    last_end: AtomicU64,
    opened: Instant,
}

#[derive(Default)]
struct Shard {
    until: HashMap<u128, Instant>,
    /// Until when clients beyond `SHARD_MAX` may be in cooldown.
    overflow_until: Option<Instant>,
}

impl Shard {
    fn contains(&self, client: u128, now: Instant) -> bool {
        let known = self.until.get(&client).copied();
        known.max(self.overflow_until).is_some_and(|until| now < until)
    }

    /// Returns whether the cooldown is new.
    fn insert(&mut self, client: u128, until: Instant, now: Instant) -> bool {
        if self.until.len() >= SHARD_MAX && !self.until.contains_key(&client) {
            self.until.retain(|_, until| now < *until);
        }
        if self.until.len() >= SHARD_MAX && !self.until.contains_key(&client) {
            self.overflow_until = self.overflow_until.max(Some(until));
            return false;
        }
        self.until.insert(client, until).is_none_or(|known| known + SAME_COOLDOWN < until)
    }
}

impl Cooldowns {
    pub(crate) fn new(now: Instant) -> Self {
        Cooldowns { shards: Default::default(), last_end: AtomicU64::new(0), opened: now }
    }

    /// Whether the client of these charges is known to be in cooldown.
    pub(crate) fn contains(&self, charges: &Charges<'_>, now: Instant) -> bool {
        let Some(penalty) = &charges.penalty else { return false };
        let client = penalty.subject.0;
        self.millis(now) <= self.last_end.load(Ordering::Relaxed)
            && self.shard(client).lock().contains(client, now)
    }

    /// Adds a cooldown. Returns whether it is new.
    pub(crate) fn insert(&self, client: u128, left: Duration, now: Instant) -> bool {
        // A published duration may be anything.
        let Some(until) = now.checked_add(left) else { return false };
        self.last_end.fetch_max(self.millis(until).saturating_add(1), Ordering::Relaxed);
        self.shard(client).lock().insert(client, until, now)
    }

    pub(crate) fn remove(&self, clients: &[u128]) {
        if self.last_end.load(Ordering::Relaxed) == 0 {
            return;
        }
        for client in clients {
            self.shard(*client).lock().until.remove(client);
        }
    }

    /// Applies the server's report on a client. Returns the message to publish if the cooldown is new.
    pub(crate) fn update(&self, client: Subject, left: Option<Span>) -> Option<String> {
        let Some(left) = left else {
            self.remove(&[client.0]);
            return None;
        };
        let is_new = self.insert(client.0, left.into(), Instant::now());
        is_new.then(|| format!("{COOLDOWN_MESSAGE} {:032x} {}", client.0, left.as_micros()))
    }

    /// Applies the arguments of a published message.
    pub(crate) fn receive(&self, arguments: &str) {
        let Some((client, micros)) = arguments.split_once(' ') else { return };
        if let (Ok(client), Ok(micros)) = (u128::from_str_radix(client, 16), micros.parse()) {
            self.insert(client, Duration::from_micros(micros), Instant::now());
        }
    }

    fn millis(&self, instant: Instant) -> u64 {
        let passed = instant.saturating_duration_since(self.opened).as_millis();
        u64::try_from(passed).unwrap_or(u64::MAX)
    }

    fn shard(&self, client: u128) -> &Mutex<Shard> {
        &self.shards[(client % SHARDS as u128) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_mins(1);

    #[test]
    fn cooldown_is_new_once_and_ends() {
        let now = Instant::now();
        let mut shard = Shard::default();
        assert!(shard.insert(1, now + MINUTE, now));
        assert!(!shard.insert(1, now + MINUTE, now));
        assert!(shard.insert(1, now + 2 * MINUTE, now), "another");
        assert!(shard.contains(1, now + MINUTE) && !shard.contains(1, now + 2 * MINUTE));
        assert!(!shard.contains(2, now));
    }

    #[test]
    fn full_shard_treats_all_clients_as_in_cooldown() {
        let now = Instant::now();
        let mut shard = Shard::default();
        for client in 0..SHARD_MAX as u128 {
            shard.insert(client, now + MINUTE, now);
        }
        assert!(!shard.contains(u128::MAX, now));
        shard.insert(u128::MAX, now + MINUTE, now);
        assert!(shard.contains(u128::MAX, now) && shard.contains(u128::MAX - 1, now));
        assert_eq!(shard.until.len(), SHARD_MAX);
        let later = now + MINUTE;
        assert!(!shard.contains(u128::MAX, later));
        assert!(shard.insert(u128::MAX, later + MINUTE, later), "the others have expired");
        assert_eq!(shard.until.len(), 1);
    }
}

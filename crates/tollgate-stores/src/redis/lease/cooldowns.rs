//! Clients that this node knows to be kept out: no lease serves them.
//!
//! A client in cooldown is refused before its counters are looked at, and a slice of a counter knows nothing of that. What
//! is known here admits nobody and refuses nobody: it only has the server asked, which knows better, so that a cooldown
//! that ended early costs a call and nothing else. A node that learns of one from a server tells the others.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use parking_lot::Mutex;
use tollgate::Span;
use tollgate::counters::Charges;
use tollgate::identity::Subject;

use crate::redis::Store;
use crate::redis::fleet::CHANNEL;
use crate::redis::script::keys;

/// The hint that a client is kept out, and for how many microseconds.
pub(crate) const KEPT_OUT: &str = "kept-out";

const SHARDS: usize = 16;
/// Clients known in one shard. Beyond it all clients of the shard are taken for such.
const SHARD_MAX: usize = 4_096;
/// What ends later than was known by this is another cooldown: the same is told a little differently each time.
const ANOTHER: Duration = Duration::from_secs(1);

/// Who is known to be kept out.
pub(crate) struct Cooldowns {
    shards: [Mutex<Shard>; SHARDS],
    /// When the last of them ends, in milliseconds of `opened`: as a rule nobody is kept out, and nothing is looked up.
    last_end: AtomicU64,
    opened: Instant,
}

#[derive(Default)]
struct Shard {
    until: HashMap<u128, Instant>,
    /// Until when there may be others that found no room.
    crowded_until: Option<Instant>,
}

impl Shard {
    fn keeps_out(&self, client: u128, now: Instant) -> bool {
        let known = self.until.get(&client).copied();
        known.max(self.crowded_until).is_some_and(|until| now < until)
    }

    /// Whether that is news.
    fn note(&mut self, client: u128, until: Instant, now: Instant) -> bool {
        if self.until.len() >= SHARD_MAX && !self.until.contains_key(&client) {
            self.until.retain(|_, until| now < *until);
        }
        if self.until.len() >= SHARD_MAX && !self.until.contains_key(&client) {
            self.crowded_until = self.crowded_until.max(Some(until));
            return false;
        }
        self.until.insert(client, until).is_none_or(|known| known + ANOTHER < until)
    }
}

impl Cooldowns {
    pub(crate) fn new(now: Instant) -> Self {
        Cooldowns { shards: Default::default(), last_end: AtomicU64::new(0), opened: now }
    }

    /// Whether the client of these charges is, as far as is known, kept out.
    pub(crate) fn keep_out(&self, charges: &Charges<'_>, now: Instant) -> bool {
        let Some(penalty) = &charges.penalty else { return false };
        let client = penalty.subject.0;
        self.millis(now) <= self.last_end.load(Ordering::Relaxed)
            && self.shard(client).lock().keeps_out(client, now)
    }

    /// A client is kept out for so long from now on. Whether that is news.
    pub(crate) fn note(&self, client: u128, left: Duration, now: Instant) -> bool {
        // A hint may say anything.
        let Some(until) = now.checked_add(left) else { return false };
        self.last_end.fetch_max(self.millis(until).saturating_add(1), Ordering::Relaxed);
        self.shard(client).lock().note(client, until, now)
    }

    /// These clients are not kept out any more.
    pub(crate) fn forget(&self, clients: &[u128]) {
        if self.last_end.load(Ordering::Relaxed) == 0 {
            return;
        }
        for client in clients {
            self.shard(*client).lock().until.remove(client);
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

impl Store {
    /// A server has said whether a client is kept out, and for how long. The other nodes are told of news.
    pub(crate) fn note_cooldown(&self, client: Subject, left: Option<Span>) {
        let Some(left) = left else { return self.cooldowns.forget(&[client.0]) };
        if self.cooldowns.note(client.0, left.into(), Instant::now()) {
            let mut publish = redis::cmd("PUBLISH");
            let message = format!("{KEPT_OUT} {:032x} {}", client.0, left.as_micros());
            publish.arg(keys::shared(CHANNEL)).arg(message);
            self.background.send(self.home(), publish);
        }
    }

    /// Another node says that a client is kept out.
    pub(crate) fn heed_cooldown(&self, words: &str) {
        let Some((client, micros)) = words.split_once(' ') else { return };
        if let (Ok(client), Ok(micros)) = (u128::from_str_radix(client, 16), micros.parse()) {
            self.cooldowns.note(client, Duration::from_micros(micros), Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_mins(1);

    #[test]
    fn a_cooldown_is_news_once_and_over_when_it_ends_or_is_forgotten() {
        let now = Instant::now();
        let mut shard = Shard::default();
        assert!(shard.note(1, now + MINUTE, now));
        assert!(!shard.note(1, now + MINUTE, now));
        assert!(shard.note(1, now + 2 * MINUTE, now), "another");
        assert!(shard.keeps_out(1, now + MINUTE) && !shard.keeps_out(1, now + 2 * MINUTE));
        assert!(!shard.keeps_out(2, now));
    }

    #[test]
    fn who_finds_no_room_is_kept_out_with_all_others_until_it_ends() {
        let now = Instant::now();
        let mut shard = Shard::default();
        for client in 0..SHARD_MAX as u128 {
            shard.note(client, now + MINUTE, now);
        }
        assert!(!shard.keeps_out(u128::MAX, now));
        shard.note(u128::MAX, now + MINUTE, now);
        assert!(shard.keeps_out(u128::MAX, now) && shard.keeps_out(u128::MAX - 1, now));
        assert_eq!(shard.until.len(), SHARD_MAX);
        let later = now + MINUTE;
        assert!(!shard.keeps_out(u128::MAX, later));
        assert!(shard.note(u128::MAX, later + MINUTE, later), "the others are over");
        assert_eq!(shard.until.len(), 1);
    }
}

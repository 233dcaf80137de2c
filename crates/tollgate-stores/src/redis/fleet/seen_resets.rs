//! Which resets this node has seen, so that each is applied once and none is missed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hashbrown::{HashMap, HashSet};
use parking_lot::Mutex;

use crate::redis::topology::ShardId;

/// Entries this much older than the latest are read again: of two concurrent resets, the first to read the clock may be
/// the last to write.
const OVERLAP_MICROS: u64 = 2_000_000;
/// For how long; no write takes longer.
const OVERLAP_FOR: Duration = Duration::from_secs(10);
/// How long a reset is remembered: longer than it is read again.
const REMEMBERED_FOR: Duration = Duration::from_secs(15);
/// Resets remembered. One more is applied twice, which loses the charges in between.
const REMEMBERED_MAX: usize = 20_000;
/// Charges taken out for reconciliation this long before a reset was seen are still dropped.
const RACE_WINDOW: Duration = Duration::from_millis(200);

/// The resets that this node has seen.
#[derive(Default)]
pub(super) struct SeenResets {
    /// Odd while subscribed. Changes by one when the subscription starts or ends, and by two when there may be entries to
    /// read. While it is odd and unchanged since a log was read, the log has no further entries.
    subscription: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// How far the log of each shard was read.
    logs: HashMap<ShardId, LogPosition>,
    /// Resets that were applied, by counter and score, and when.
    applied: HashMap<(u128, u64), Instant>,
}

struct LogPosition {
    /// The score of the latest reset, and since when it is the latest.
    latest: u64,
    latest_since: Instant,
    /// `subscription` when the log was last read.
    subscription: u64,
}

impl SeenResets {
    /// The logs may have new entries: a message says so, or this node may be cut off from messages.
    pub(super) fn note_unread(&self) {
        self.subscription.fetch_add(2, Ordering::SeqCst);
    }

    /// The subscription started or ended.
    pub(super) fn toggle_subscription(&self) {
        self.subscription.fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn subscription(&self) -> u64 {
        self.subscription.load(Ordering::SeqCst)
    }

    /// Whether the log may contain resets that this node has not seen.
    pub(super) fn may_have_missed(&self, shard: ShardId) -> bool {
        let subscription = self.subscription();
        subscription.is_multiple_of(2)
            || self.state.lock().logs.get(&shard).is_none_or(|log| log.subscription != subscription)
    }

    /// The score from which to read a log; all of it at first.
    pub(super) fn read_from(&self, shard: ShardId) -> u64 {
        match self.state.lock().logs.get(&shard) {
            Some(log) if log.latest_since.elapsed() < OVERLAP_FOR => {
                log.latest.saturating_sub(OVERLAP_MICROS)
            }
            Some(log) => log.latest + 1,
            None => 0,
        }
    }

    /// Notes entries of a log, the latest last. Returns the counters of resets not applied yet.
    pub(super) fn note_log(&self, shard: ShardId, subscription: u64, entries: &[(u128, u64)]) -> Vec<u128> {
        let now = Instant::now();
        let state = &mut *self.state.lock();
        let log = LogPosition { latest: 0, latest_since: now, subscription };
        let log = state.logs.entry(shard).or_insert(log);
        log.subscription = subscription;
        if let Some((_, latest)) = entries.last().filter(|(_, latest)| *latest > log.latest) {
            (log.latest, log.latest_since) = (*latest, now);
        }
        state.apply(entries.iter().copied(), now)
    }

    /// Notes resets of this node with this score.
    pub(super) fn note_own(&self, counters: &[u128], score: u64) {
        let resets = counters.iter().map(|counter| (*counter, score));
        self.state.lock().apply(resets, Instant::now());
    }

    /// Counters whose reset was applied after this instant, or shortly before.
    pub(super) fn applied_around(&self, instant: Instant) -> HashSet<u128> {
        self.applied(|at| instant.saturating_duration_since(at) < RACE_WINDOW)
    }

    /// Counters whose reset was applied since this instant.
    pub(super) fn applied_since(&self, instant: Instant) -> HashSet<u128> {
        self.applied(|at| at >= instant)
    }

    fn applied(&self, is_wanted: impl Fn(Instant) -> bool) -> HashSet<u128> {
        let state = self.state.lock();
        state.applied.iter().filter(|(_, at)| is_wanted(**at)).map(|((counter, _), _)| *counter).collect()
    }
}

impl State {
    fn apply(&mut self, resets: impl Iterator<Item = (u128, u64)>, now: Instant) -> Vec<u128> {
        self.applied.retain(|_, at| now.saturating_duration_since(*at) < REMEMBERED_FOR);
        let mut new = Vec::new();
        for reset in resets {
            if !self.applied.contains_key(&reset) {
                new.push(reset.0);
                if self.applied.len() < REMEMBERED_MAX {
                    self.applied.insert(reset, now);
                }
            }
        }
        new
    }
}

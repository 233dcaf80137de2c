//! One shard: all the logic of the memory store, with the lock already held.

use hashbrown::HashTable;

use super::packed::Entry;
use super::table::Table;
use super::{Key, MemoryBounds};
use crate::algorithms::sliding_window_log::Log;
use crate::algorithms::{self, Next, Verdict};
use crate::counters::{Charge, Penalised, PenaltyCharge};
use crate::limit::Algorithm;
use crate::penalties::Conduct;
use crate::time::{Span, Timestamp};

/// The subject that newcomers share when there is no room for them.
const OVERFLOW: u128 = 0x6f76_6572_666c_6f77_6f76_6572_666c_6f77;

/// What a log of one counter takes beside its entries: key, bookkeeping and the table's own byte.
const LOG_BYTES: usize = size_of::<LogEntry>() + 1;
/// What one remembered charge takes.
const LOG_ENTRY_BYTES: usize = size_of::<(Timestamp, u32)>();

pub(super) struct LogEntry {
    pub(super) key: Key,
    pub(super) log: Log,
    /// Bytes set aside so that the log can grow to its limit.
    pub(super) reserved: usize,
    pub(super) restored_at: Timestamp,
}

pub(super) struct PenaltyEntry {
    pub(super) key: Key,
    pub(super) client: Box<str>,
    pub(super) conduct: Conduct,
    pub(super) forgotten_at: Timestamp,
}

/// What [`Shard::judge`] found, for [`Shard::commit`] to write.
pub(super) enum Slot {
    /// Nothing to write: a refusal or a peek.
    None,
    /// The next state of the counter with this key.
    Cell(Key, Next),
    /// An entry for the log with this key.
    Log(Key),
}

pub(super) struct Shard {
    pub(super) cells: Table,
    pub(super) logs: HashTable<LogEntry>,
    pub(super) penalties: HashTable<PenaltyEntry>,
    keys_max: usize,
    log_bytes_max: usize,
    penalties_max: usize,
    log_bytes: usize,
    /// Nothing is restored before this instant, so looking for room before it is in vain.
    next_restored_at: Timestamp,
    overflows: u64,
}

impl Shard {
    pub(super) fn new(bounds: MemoryBounds, shards: usize) -> Self {
        Shard {
            cells: Table::default(),
            logs: HashTable::new(),
            penalties: HashTable::new(),
            keys_max: bounds.keys_max.get().div_ceil(shards),
            log_bytes_max: bounds.log_bytes_max.div_ceil(shards),
            penalties_max: bounds.penalties_max.div_ceil(shards),
            log_bytes: 0,
            next_restored_at: Timestamp::default(),
            overflows: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.cells.len() + self.logs.len()
    }

    pub(super) fn bytes(&self) -> usize {
        let penalty = size_of::<PenaltyEntry>() + 1;
        self.cells.bytes() + self.log_bytes + self.penalties.len() * penalty
    }

    pub(super) fn overflows(&self) -> u64 {
        self.overflows
    }

    /// Judges and, if admitted, commits a charge that stands alone: one lookup instead of two.
    pub(super) fn charge(&mut self, key: Key, charge: &Charge<'_>, now: Timestamp) -> Verdict {
        if charge.limit.algorithm() != Algorithm::SlidingWindowLog
            && let Some(entry) = self.cells.find_mut(key)
        {
            heal(entry, charge, now);
            let judgement = algorithms::judge(charge.limit, Some(entry.cell()), charge.cost, now);
            if let Some(next) = judgement.next {
                entry.set(&next);
            }
            return judgement.verdict;
        }
        let (verdict, slot) = self.judge(key, charge, now);
        if verdict.admits() {
            self.commit(slot, charge, now);
        }
        verdict
    }

    /// What the charge is told, and what to write if the whole decision admits.
    pub(super) fn judge(&mut self, key: Key, charge: &Charge<'_>, now: Timestamp) -> (Verdict, Slot) {
        if charge.limit.algorithm() == Algorithm::SlidingWindowLog {
            return self.judge_log(key, charge, now);
        }
        let key = self.key_with_room(key, charge, now);
        let cell = self.cells.find_mut(key).map(|entry| {
            heal(entry, charge, now);
            entry.cell()
        });
        let judgement = algorithms::judge(charge.limit, cell, charge.cost, now);
        (judgement.verdict, judgement.next.map_or(Slot::None, |next| Slot::Cell(key, next)))
    }

    fn judge_log(&mut self, key: Key, charge: &Charge<'_>, now: Timestamp) -> (Verdict, Slot) {
        let key = self.log_key_with_room(key, charge, now);
        let verdict = match self.logs.find_mut(key.hash(), |entry| entry.key == key) {
            Some(entry) => {
                if let Some(healed) = entry.log.heal(charge.limit, now) {
                    entry.log = healed;
                }
                entry.log.judge(charge.limit, charge.cost, now)
            }
            None => Log::default().judge(charge.limit, charge.cost, now),
        };
        let writes = verdict.admits() && charge.cost > 0;
        (verdict, if writes { Slot::Log(key) } else { Slot::None })
    }

    /// Writes what [`Shard::judge`] found.
    pub(super) fn commit(&mut self, slot: Slot, charge: &Charge<'_>, now: Timestamp) {
        match slot {
            Slot::None => {}
            Slot::Cell(key, next) => {
                self.next_restored_at = self.next_restored_at.min(next.restored_at);
                match self.cells.find_mut(key) {
                    Some(entry) => entry.set(&next),
                    None => self.cells.insert(Entry::new(key, &next)),
                }
            }
            Slot::Log(key) => self.commit_log(key, charge, now),
        }
    }

    fn commit_log(&mut self, key: Key, charge: &Charge<'_>, now: Timestamp) {
        let reserved = log_bytes(charge);
        let mut added = 0;
        let mut slot = self
            .logs
            .entry(key.hash(), |entry| entry.key == key, |entry| entry.key.hash())
            .or_insert_with(|| {
                added = reserved;
                LogEntry { key, log: Log::default(), reserved, restored_at: now }
            });
        let entry = slot.get_mut();
        entry.log.record(charge.limit, charge.cost, now);
        entry.restored_at = entry.log.last().unwrap_or(now) + charge.limit.window_length();
        // A raised limit needs a larger reservation than the one the log began with.
        added += reserved.saturating_sub(entry.reserved);
        entry.reserved = entry.reserved.max(reserved);
        self.next_restored_at = self.next_restored_at.min(entry.restored_at);
        self.log_bytes += added;
    }

    /// The key itself if it is known or there is room for it, else the key that newcomers share.
    fn key_with_room(&mut self, key: Key, charge: &Charge<'_>, now: Timestamp) -> Key {
        let full = |shard: &Self| shard.cells.len() >= shard.keys_max;
        if !full(self) || self.cells.contains(key) {
            return key;
        }
        self.make_room(now);
        if full(self) { self.overflow_key(charge) } else { key }
    }

    fn log_key_with_room(&mut self, key: Key, charge: &Charge<'_>, now: Timestamp) -> Key {
        let full = |shard: &Self| shard.log_bytes + log_bytes(charge) > shard.log_bytes_max;
        if !full(self) || self.logs.find(key.hash(), |entry| entry.key == key).is_some() {
            return key;
        }
        self.make_room(now);
        if full(self) { self.overflow_key(charge) } else { key }
    }

    fn overflow_key(&mut self, charge: &Charge<'_>) -> Key {
        self.overflows += 1;
        Key(OVERFLOW ^ charge.counter.0)
    }

    fn make_room(&mut self, now: Timestamp) {
        if now >= self.next_restored_at {
            self.drop_restored(now);
        }
    }

    /// Drops what is as good as new and gives back memory that is no longer needed.
    pub(super) fn sweep(&mut self, now: Timestamp) {
        self.drop_restored(now);
        self.penalties.retain(|entry| entry.forgotten_at > now);
        self.cells.shrink();
        if self.logs.len() < self.logs.capacity() / 4 {
            self.logs.shrink_to(self.logs.len() * 2, |entry| entry.key.hash());
        }
    }

    fn drop_restored(&mut self, now: Timestamp) {
        let mut next = Timestamp::MAX;
        let mut keep = |restored_at: Timestamp| {
            if restored_at > now {
                next = next.min(restored_at);
            }
            restored_at > now
        };
        self.cells.retain(|entry| keep(entry.restored_at()));
        let mut freed = 0;
        self.logs.retain(|entry| {
            let kept = keep(entry.restored_at);
            freed += if kept { 0 } else { entry.reserved };
            kept
        });
        self.log_bytes -= freed;
        self.next_restored_at = next;
    }

    /// Forgets a counter. Whether it held anything.
    pub(super) fn forget(&mut self, key: Key) -> bool {
        if self.cells.remove(key) {
            return true;
        }
        if let Ok(found) = self.logs.find_entry(key.hash(), |entry| entry.key == key) {
            let (entry, _) = found.remove();
            self.log_bytes -= entry.reserved;
            return true;
        }
        false
    }

    pub(super) fn cooldown_left(&self, key: Key, now: Timestamp) -> Option<Span> {
        self.penalties.find(key.hash(), |entry| entry.key == key)?.conduct.cooldown_left(now)
    }

    pub(super) fn note_refusal(
        &mut self,
        key: Key,
        penalty: &PenaltyCharge<'_>,
        window: Span,
        now: Timestamp,
    ) {
        if let Some(entry) = self.penalties.find_mut(key.hash(), |entry| entry.key == key) {
            entry.conduct.refused(penalty.policy, window, now);
            entry.forgotten_at = entry.conduct.forgotten_at(penalty.policy);
            return;
        }
        if self.penalties.len() >= self.penalties_max {
            self.penalties.retain(|entry| entry.forgotten_at > now);
        }
        if self.penalties.len() < self.penalties_max {
            let mut conduct = Conduct::default();
            conduct.refused(penalty.policy, window, now);
            let forgotten_at = conduct.forgotten_at(penalty.policy);
            let client = penalty.client.to_string().into_boxed_str();
            let entry = PenaltyEntry { key, client, conduct, forgotten_at };
            self.penalties.insert_unique(key.hash(), entry, |entry| entry.key.hash());
        }
    }

    pub(super) fn pardon(&mut self, key: Key) {
        if let Ok(found) = self.penalties.find_entry(key.hash(), |entry| entry.key == key) {
            found.remove();
        }
    }

    pub(super) fn penalised(&self, now: Timestamp) -> Vec<Penalised> {
        let on_record = self.penalties.iter().filter(|entry| entry.forgotten_at > now);
        on_record
            .map(|entry| Penalised {
                client: entry.client.to_string(),
                violations: entry.conduct.violations.len(),
                cooldown_until: (entry.conduct.cooldown_until > now).then_some(entry.conduct.cooldown_until),
            })
            .collect()
    }

    /// Takes a saved log in, with its reservation.
    pub(super) fn adopt_log(&mut self, entry: LogEntry) {
        self.log_bytes += entry.reserved;
        self.logs.insert_unique(entry.key.hash(), entry, |entry| entry.key.hash());
    }

    /// Takes a saved counter in.
    pub(super) fn adopt_cell(&mut self, entry: Entry) {
        self.cells.insert(entry);
    }

    /// Takes a saved record in.
    pub(super) fn adopt_penalty(&mut self, entry: PenaltyEntry) {
        self.penalties.insert_unique(entry.key.hash(), entry, |entry| entry.key.hash());
    }
}

/// A state from an impossible future is repaired in place, on a refusal too, so that waiting for it ends.
fn heal(entry: &mut Entry, charge: &Charge<'_>, now: Timestamp) {
    if entry.cell().at > now
        && let Some(healed) = algorithms::heal(charge.limit, entry.cell(), now)
    {
        entry.move_to(healed);
    }
}

/// What a log may grow to under the limit in force.
fn log_bytes(charge: &Charge<'_>) -> usize {
    LOG_BYTES + charge.limit.requests() as usize * LOG_ENTRY_BYTES
}

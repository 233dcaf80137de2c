//! One shard, with the lock already held: what a charge is told, and what it writes.

use hashbrown::HashTable;

use super::entry::Entry;
use super::fair_share::{TenantSlot, TenantUsage};
use super::table::Table;
use super::{Key, MemoryBounds};
use crate::algorithms::sliding_window_log::Log;
use crate::algorithms::{self, CounterState, NextState, Verdict, bucket};
use crate::counters::Charge;
use crate::identity::Tenant;
use crate::limit::Algorithm;
use crate::penalties::PenaltyState;
use crate::time::Timestamp;

/// What a log of one counter takes beside its entries: key, bookkeeping and the table's own byte, in a table that has
/// just doubled.
const LOG_BYTES: usize = (size_of::<LogEntry>() + 1) * 16 / 7;
/// What one remembered charge takes.
const LOG_ENTRY_BYTES: usize = size_of::<(Timestamp, u32)>();

pub(super) struct LogEntry {
    pub(super) key: Key,
    pub(super) holder: TenantSlot,
    pub(super) log: Log,
    /// Bytes set aside so that the log can grow to its limit.
    pub(super) reserved: usize,
    pub(super) restored_at: Timestamp,
}

pub(super) struct PenaltyEntry {
    pub(super) key: Key,
    pub(super) holder: TenantSlot,
    pub(super) client: Box<str>,
    pub(super) conduct: PenaltyState,
    pub(super) expires_at: Timestamp,
}

/// What [`Shard::evaluate`] found, for [`Shard::commit`] or [`Shard::repair`] to write.
pub(super) struct Evaluated {
    pub(super) verdict: Verdict,
    /// The counter, or the one that newcomers share.
    key: Key,
    /// Whose it is, if it is new.
    holder: TenantSlot,
    /// Whether its state lay in an impossible future and was evaluated as if it did not.
    rewound: bool,
    next: Write,
}

/// What an admitted charge writes.
enum Write {
    /// Nothing: a refusal or a peek.
    Nothing,
    /// The next state of a counter.
    State(NextState),
    /// An entry of a log.
    Entry,
}

pub(super) struct Shard {
    pub(super) cells: Table,
    /// Nothing is restored before this instant, so looking for room before it is in vain. Beside the table, because
    /// every charge looks at both.
    pub(super) next_restored_at: Timestamp,
    pub(super) logs: HashTable<LogEntry>,
    pub(super) penalties: HashTable<PenaltyEntry>,
    pub(super) keys_max: usize,
    pub(super) log_bytes_max: usize,
    pub(super) penalties_max: usize,
    pub(super) log_bytes: usize,
    pub(super) held: Held,
    /// Who came since the shard was last looked through for room, with or without finding some.
    pub(super) newcomers: usize,
    pub(super) overflow_charges: u64,
}

/// What tenants hold: counters, bytes of logs, clients on record.
#[derive(Default)]
pub(super) struct Held {
    pub(super) cells: TenantUsage,
    pub(super) log_bytes: TenantUsage,
    pub(super) penalties: TenantUsage,
}

impl Shard {
    /// The shard with this number of so many. What does not divide evenly goes to the first of them, so that all together
    /// have what the bounds say and no more.
    pub(super) fn new(bounds: MemoryBounds, number: usize, shards: usize) -> Self {
        let share = |of: usize| of / shards + usize::from(number < of % shards);
        Shard {
            cells: Table::default(),
            next_restored_at: Timestamp::default(),
            logs: HashTable::new(),
            penalties: HashTable::new(),
            // Without room for one no client of the shard would have a counter of its own.
            keys_max: share(bounds.keys_max.get()).max(1),
            log_bytes_max: share(bounds.log_bytes_max),
            penalties_max: share(bounds.penalties_max).max(usize::from(bounds.penalties_max > 0)),
            log_bytes: 0,
            held: Held::default(),
            newcomers: 0,
            overflow_charges: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.cells.len() + self.logs.len()
    }

    pub(super) fn bytes(&self) -> usize {
        let outside = |entry: &PenaltyEntry| entry.client.len() + entry.conduct.violations.capacity() * 8;
        let penalties: usize = self.penalties.iter().map(outside).sum();
        let held = self.held.cells.bytes() + self.held.log_bytes.bytes() + self.held.penalties.bytes();
        self.cells.bytes() + self.log_bytes + self.penalties.allocation_size() + penalties + held
    }

    pub(super) fn overflow_charges(&self) -> u64 {
        self.overflow_charges
    }

    /// [`Shard::charge`] for what is charged most: a bucket that is known and admits. Nothing, and nothing written, if it
    /// is anything else.
    #[inline]
    pub(super) fn charge_known_bucket(
        &mut self,
        key: Key,
        charge: &Charge<'_>,
        now: Timestamp,
    ) -> Option<Verdict> {
        if charge.cost == 0 || !charge.limit.algorithm().has_burst() {
            return None;
        }
        let entry = self.cells.find_mut(key)?;
        let cell = Some(entry.cell()).filter(|cell| cell.at <= now)?;
        let (verdict, next) = bucket::admit(charge.limit, Some(cell), charge.cost, now)?;
        entry.set(&next);
        self.expect_restored(next.restored_at);
        Some(verdict)
    }

    /// Judges and, if admitted, commits a charge that stands alone: one lookup instead of two.
    #[inline(never)]
    pub(super) fn charge(
        &mut self,
        key: Key,
        tenant: Option<Tenant<'_>>,
        charge: &Charge<'_>,
        now: Timestamp,
    ) -> Verdict {
        if charge.limit.algorithm() != Algorithm::SlidingWindowLog
            && let Some(entry) = self.cells.find_mut(key)
        {
            let (cell, rewound) = rewound(entry.cell(), charge, now);
            let judgement = algorithms::evaluate(charge.limit, Some(cell), charge.cost, now);
            if let Some(next) = judgement.next {
                entry.set(&next);
                self.expect_restored(next.restored_at);
            } else if rewound && charge.cost > 0 {
                self.repair_cell(key, cell);
            }
            return judgement.verdict;
        }
        let evaluated = self.evaluate(key, TenantSlot::of(tenant), charge, now);
        if evaluated.verdict.admits() {
            self.commit(&evaluated, charge, now);
        } else {
            self.repair(&evaluated, charge, now);
        }
        evaluated.verdict
    }

    /// What the charge is told, and what to write if the whole decision admits. Writes nothing.
    pub(super) fn evaluate(
        &mut self,
        key: Key,
        holder: TenantSlot,
        charge: &Charge<'_>,
        now: Timestamp,
    ) -> Evaluated {
        if charge.limit.algorithm() == Algorithm::SlidingWindowLog {
            let key = self.log_key_with_room(key, holder, charge, now);
            return self.evaluate_log(key, holder, charge, now);
        }
        let key = self.key_with_room(key, holder, charge, now);
        self.evaluate_cell(key, holder, charge, now)
    }

    /// What a charge is told that is not taken, whatever this limit says of it: the counter as it stands.
    pub(super) fn uncharged(&self, evaluated: &Evaluated, charge: &Charge<'_>, now: Timestamp) -> Verdict {
        if !evaluated.verdict.admits() || charge.cost == 0 {
            return evaluated.verdict;
        }
        let look = Charge { cost: 0, ..*charge };
        let seen = match look.limit.algorithm() {
            Algorithm::SlidingWindowLog => self.evaluate_log(evaluated.key, evaluated.holder, &look, now),
            _ => self.evaluate_cell(evaluated.key, evaluated.holder, &look, now),
        };
        let Verdict { remaining, reset_after, .. } = seen.verdict;
        Verdict { remaining, reset_after, ..evaluated.verdict }
    }

    fn evaluate_cell(&self, key: Key, holder: TenantSlot, charge: &Charge<'_>, now: Timestamp) -> Evaluated {
        let found = self.cells.find(key);
        let seen = found.map(|entry| rewound(entry.cell(), charge, now));
        let judgement = algorithms::evaluate(charge.limit, seen.map(|(cell, _)| cell), charge.cost, now);
        Evaluated {
            verdict: judgement.verdict,
            key,
            holder,
            rewound: seen.is_some_and(|(_, rewound)| rewound),
            next: judgement.next.map_or(Write::Nothing, Write::State),
        }
    }

    fn evaluate_log(&self, key: Key, holder: TenantSlot, charge: &Charge<'_>, now: Timestamp) -> Evaluated {
        let found = self.logs.find(key.hash(), |entry| entry.key == key);
        let rewound = found.and_then(|entry| entry.log.rewind_future(charge.limit, now));
        let verdict = match rewound.as_ref().or(found.map(|entry| &entry.log)) {
            Some(log) => log.evaluate(charge.limit, charge.cost, now),
            None => Log::default().evaluate(charge.limit, charge.cost, now),
        };
        let writes = verdict.admits() && charge.cost > 0;
        let next = if writes { Write::Entry } else { Write::Nothing };
        Evaluated { verdict, key, holder, rewound: rewound.is_some(), next }
    }

    /// Writes what [`Shard::evaluate`] found.
    pub(super) fn commit(&mut self, evaluated: &Evaluated, charge: &Charge<'_>, now: Timestamp) {
        let key = evaluated.key;
        match &evaluated.next {
            Write::Nothing => self.repair(evaluated, charge, now),
            Write::State(next) => {
                self.expect_restored(next.restored_at);
                match self.cells.find_mut(key) {
                    Some(entry) => entry.set(next),
                    None => self.adopt_cell(Entry::new(key, evaluated.holder, next)),
                }
            }
            Write::Entry => self.commit_log(key, evaluated.holder, charge, now),
        }
    }

    /// Brings a state back from an impossible future, though the request is refused: waiting for it would not end.
    /// A look repairs nothing, because it must change nothing, whatever clock it comes with.
    pub(super) fn repair(&mut self, evaluated: &Evaluated, charge: &Charge<'_>, now: Timestamp) {
        if !evaluated.rewound || charge.cost == 0 {
            return;
        }
        let key = evaluated.key;
        if charge.limit.algorithm() != Algorithm::SlidingWindowLog {
            let found = self.cells.find(key);
            if let Some((cell, true)) = found.map(|entry| rewound(entry.cell(), charge, now)) {
                self.repair_cell(key, cell);
            }
        } else if let Some(entry) = self.logs.find_mut(key.hash(), |entry| entry.key == key)
            && let Some(rewound) = entry.log.rewind_future(charge.limit, now)
        {
            entry.log = rewound;
            entry.restored_at = now + charge.limit.window_length();
            let at = entry.restored_at;
            self.expect_restored(at);
        }
    }

    fn repair_cell(&mut self, key: Key, cell: CounterState) {
        if let Some(entry) = self.cells.find_mut(key) {
            entry.move_to(cell);
            let at = entry.restored_at();
            self.expect_restored(at);
        }
    }

    fn commit_log(&mut self, key: Key, holder: TenantSlot, charge: &Charge<'_>, now: Timestamp) {
        let reserved = log_bytes(charge);
        let mut added = 0;
        let mut slot = self
            .logs
            .entry(key.hash(), |entry| entry.key == key, |entry| entry.key.hash())
            .or_insert_with(|| {
                added = reserved;
                LogEntry { key, holder, log: Log::default(), reserved, restored_at: now }
            });
        let entry = slot.get_mut();
        if let Some(rewound) = entry.log.rewind_future(charge.limit, now) {
            entry.log = rewound;
        }
        entry.log.record(charge.limit, charge.cost, now);
        entry.restored_at = entry.log.last().unwrap_or(now) + charge.limit.window_length();
        // A raised limit needs a larger reservation than the one the log began with.
        added += reserved.saturating_sub(entry.reserved);
        entry.reserved = entry.reserved.max(reserved);
        let (at, holder) = (entry.restored_at, entry.holder);
        self.expect_restored(at);
        self.reserve_log_bytes(holder, added);
    }

    fn reserve_log_bytes(&mut self, holder: TenantSlot, bytes: usize) {
        self.log_bytes += bytes;
        self.held.log_bytes.take(holder, bytes);
        self.newcomers += 1;
    }

    /// Notes when a counter is restored. Written only when it is news: a line of the cache that every charge writes is
    /// one that the processors take from each other.
    #[inline]
    fn expect_restored(&mut self, at: Timestamp) {
        if at < self.next_restored_at {
            self.next_restored_at = at;
        }
    }

    /// Forgets a counter. Whether it held anything.
    pub(super) fn remove(&mut self, key: Key) -> bool {
        if let Some(entry) = self.cells.remove(key) {
            self.held.cells.give_back(entry.holder(), 1);
            return true;
        }
        if let Ok(found) = self.logs.find_entry(key.hash(), |entry| entry.key == key) {
            let (entry, _) = found.remove();
            self.log_bytes -= entry.reserved;
            self.held.log_bytes.give_back(entry.holder, entry.reserved);
            return true;
        }
        false
    }

    /// Forgets a counter, and says how much of the charge's limit it held at `now`.
    pub(super) fn take(&mut self, key: Key, charge: &Charge<'_>, now: Timestamp) -> u32 {
        if !self.cells.contains(key) && !self.has_log(key) {
            return 0;
        }
        let looked = self.evaluate(key, TenantSlot::COMMON, &Charge { cost: 0, ..*charge }, now);
        self.remove(key);
        charge.limit.capacity().saturating_sub(looked.verdict.remaining)
    }

    /// Takes a saved log in, with its reservation.
    pub(super) fn adopt_log(&mut self, entry: LogEntry) {
        self.reserve_log_bytes(entry.holder, entry.reserved);
        self.logs.insert_unique(entry.key.hash(), entry, |entry| entry.key.hash());
    }

    /// Takes a counter in that is new here, or saved.
    pub(super) fn adopt_cell(&mut self, entry: Entry) {
        self.held.cells.take(entry.holder(), 1);
        self.newcomers += 1;
        self.cells.insert(entry);
    }
}

/// The state as it is evaluated, and whether it had to be brought back from an impossible future for that.
fn rewound(cell: CounterState, charge: &Charge<'_>, now: Timestamp) -> (CounterState, bool) {
    if cell.at <= now {
        return (cell, false);
    }
    algorithms::rewind_future(charge.limit, cell, now).map_or((cell, false), |rewound| (rewound, true))
}

/// What a log may grow to under the limit in force.
pub(super) fn log_bytes(charge: &Charge<'_>) -> usize {
    bytes_of_log(charge.limit.requests())
}

/// What a log of so many requests may grow to.
pub(super) const fn bytes_of_log(requests: u32) -> usize {
    LOG_BYTES + requests as usize * LOG_ENTRY_BYTES
}

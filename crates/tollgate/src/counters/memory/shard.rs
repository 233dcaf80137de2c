//! One shard of the memory counters. Its lock is held by the caller.

use hashbrown::HashTable;

use super::entry::Entry;
use super::fair_share::{TenantSlot, TenantUsage};
use super::penalties::PenaltyTable;
use super::refunds::Ledger;
use super::table::Table;
use super::{Key, MemoryBounds};
use crate::algorithms::sliding_window_log::Log;
use crate::algorithms::{self, CounterState, Evaluation, NextState, Outcome, Verdict, bucket};
use crate::counters::Charge;
use crate::identity::Tenant;
use crate::limit::Algorithm;
use crate::time::{Span, Timestamp};

/// The bytes of one log without its charges: the entry and its control byte in a hash table that has just doubled.
const LOG_BYTES: usize = (size_of::<LogEntry>() + 1) * 16 / 7;
/// The bytes of one stored charge.
const LOG_ENTRY_BYTES: usize = size_of::<(Timestamp, u32)>();

pub(super) struct LogEntry {
    pub(super) key: Key,
    pub(super) tenant: TenantSlot,
    pub(super) log: Log,
    /// Bytes reserved so that the log can grow to its limit.
    pub(super) reserved: usize,
    pub(super) restored_at: Timestamp,
}

/// The result of [`Shard::evaluate`], for [`Shard::commit`] or [`Shard::repair`] to write.
pub(super) struct Evaluated {
    pub(super) verdict: Verdict,
    /// The counter, or the overflow counter in its place.
    pub(super) key: Key,
    /// The tenant that a new counter is accounted to.
    tenant: TenantSlot,
    /// Whether a wrong clock wrote the state from the future, so that it was moved to now.
    rewound: bool,
    pub(super) next: Write,
}

/// What an admitted charge writes.
pub(super) enum Write {
    /// Nothing, for a refusal or a peek.
    Nothing,
    /// The next state of a counter.
    State(NextState),
    /// An entry of a log.
    Entry,
}

pub(super) struct Shard {
    pub(super) counters: Table,
    /// No counter is restored before this instant, so there is nothing to evict. Next to the table, because every charge
    /// reads both.
    pub(super) next_restored_at: Timestamp,
    pub(super) logs: HashTable<LogEntry>,
    pub(super) penalties: PenaltyTable,
    pub(super) ledger: Ledger,
    pub(super) keys_max: usize,
    pub(super) log_bytes_max: usize,
    pub(super) log_bytes: usize,
    pub(super) usage: Usage,
    /// New counters, and attempts to add one, since the last scan for counters to evict.
    pub(super) newcomers: usize,
    pub(super) overflow_charges: u64,
}

/// What tenants use: counters, and bytes of logs.
#[derive(Default)]
pub(super) struct Usage {
    pub(super) counters: TenantUsage,
    pub(super) log_bytes: TenantUsage,
}

impl Shard {
    /// Creates shard `number` of `shards`. The remainder of a division of the bounds goes to the first shards, so that
    /// the shards together have exactly the bounds.
    pub(super) fn new(bounds: MemoryBounds, number: usize, shards: usize) -> Self {
        let share = |of: usize| of / shards + usize::from(number < of % shards);
        Shard {
            counters: Table::default(),
            next_restored_at: Timestamp::default(),
            logs: HashTable::new(),
            penalties: PenaltyTable::new(
                share(bounds.penalties_max).max(usize::from(bounds.penalties_max > 0)),
            ),
            ledger: Ledger::default(),
            // At least one: otherwise no client of the shard would have its own counter.
            keys_max: share(bounds.keys_max.get()).max(1),
            log_bytes_max: share(bounds.log_bytes_max),
            log_bytes: 0,
            usage: Usage::default(),
            newcomers: 0,
            overflow_charges: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.counters.len() + self.logs.len()
    }

    pub(super) fn bytes(&self) -> usize {
        let usage = self.usage.counters.bytes() + self.usage.log_bytes.bytes();
        self.counters.bytes() + self.log_bytes + self.penalties.bytes() + self.ledger.bytes() + usage
    }

    /// The fast path of [`Shard::charge`]: a bucket that exists and admits. Otherwise returns `None` and writes nothing.
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
        let entry = self.counters.find_mut(key)?;
        let state = Some(entry.state()).filter(|state| state.at <= now)?;
        let (verdict, next) = bucket::admit(charge.limit, Some(state), charge.cost, now)?;
        entry.set(&next);
        self.note_restored_at(next.restored_at);
        Some(verdict)
    }

    /// Evaluates a single charge and commits it if it is admitted, with one lookup instead of two.
    #[inline(never)]
    pub(super) fn charge(
        &mut self,
        key: Key,
        tenant: Option<Tenant<'_>>,
        charge: &Charge<'_>,
        now: Timestamp,
    ) -> Verdict {
        if !is_log(charge)
            && let Some(entry) = self.counters.find_mut(key)
        {
            let (state, rewound) = rewound(entry.state(), charge, now);
            let evaluation = evaluate_until(charge, state, entry.retention(), now);
            if let Some(next) = evaluation.next {
                entry.set(&next);
                self.note_restored_at(next.restored_at);
            } else if rewound && charge.cost > 0 {
                self.repair_counter(key, state);
            }
            return evaluation.verdict;
        }
        let evaluated = self.evaluate(key, TenantSlot::of(tenant), charge, now);
        if evaluated.verdict.admits() {
            self.commit(&evaluated, charge, now);
        } else {
            self.repair(&evaluated, charge, now);
        }
        evaluated.verdict
    }

    /// Evaluates a charge. What it would write is committed only if the whole request is admitted.
    pub(super) fn evaluate(
        &mut self,
        key: Key,
        tenant: TenantSlot,
        charge: &Charge<'_>,
        now: Timestamp,
    ) -> Evaluated {
        let key = self.key_with_capacity(key, tenant, charge, now);
        self.evaluate_at(key, tenant, charge, now)
    }

    fn evaluate_at(&self, key: Key, tenant: TenantSlot, charge: &Charge<'_>, now: Timestamp) -> Evaluated {
        if is_log(charge) {
            self.evaluate_log(key, tenant, charge, now)
        } else {
            self.evaluate_counter(key, tenant, charge, now)
        }
    }

    /// The verdict on a charge that is not taken: the outcome stays, the rest describes the counter as it stands.
    pub(super) fn uncharged(&self, evaluated: &Evaluated, charge: &Charge<'_>, now: Timestamp) -> Verdict {
        if !evaluated.verdict.admits() || charge.cost == 0 {
            return evaluated.verdict;
        }
        let peek = Charge { cost: 0, ..*charge };
        let current = self.evaluate_at(evaluated.key, evaluated.tenant, &peek, now);
        let Verdict { remaining, reset_after, .. } = current.verdict;
        Verdict { remaining, reset_after, ..evaluated.verdict }
    }

    fn evaluate_counter(
        &self,
        key: Key,
        tenant: TenantSlot,
        charge: &Charge<'_>,
        now: Timestamp,
    ) -> Evaluated {
        let found = self.counters.find(key);
        let seen = found.map(|entry| (rewound(entry.state(), charge, now), entry.retention()));
        let evaluation = match seen {
            Some(((state, _), retention)) => evaluate_until(charge, state, retention, now),
            None => algorithms::evaluate(charge.limit, None, charge.cost, now),
        };
        Evaluated {
            verdict: evaluation.verdict,
            key,
            tenant,
            rewound: seen.is_some_and(|((_, rewound), _)| rewound),
            next: evaluation.next.map_or(Write::Nothing, Write::State),
        }
    }

    fn evaluate_log(&self, key: Key, tenant: TenantSlot, charge: &Charge<'_>, now: Timestamp) -> Evaluated {
        let found = self.logs.find(key.hash(), |entry| entry.key == key);
        let rewound = found.and_then(|entry| entry.log.rewind_future(charge.limit, now));
        let verdict = match rewound.as_ref().or(found.map(|entry| &entry.log)) {
            Some(log) => log.evaluate(charge.limit, charge.cost, now),
            None => Log::default().evaluate(charge.limit, charge.cost, now),
        };
        let writes = verdict.admits() && charge.cost > 0;
        let next = if writes { Write::Entry } else { Write::Nothing };
        Evaluated { verdict, key, tenant, rewound: rewound.is_some(), next }
    }

    /// Writes the result of [`Shard::evaluate`].
    pub(super) fn commit(&mut self, evaluated: &Evaluated, charge: &Charge<'_>, now: Timestamp) {
        let key = evaluated.key;
        match &evaluated.next {
            Write::Nothing => self.repair(evaluated, charge, now),
            Write::State(next) => {
                self.note_restored_at(next.restored_at);
                match self.counters.find_mut(key) {
                    Some(entry) => entry.set(next),
                    None => self.insert_counter(Entry::new(key, evaluated.tenant, next)),
                }
            }
            Write::Entry => self.commit_log(key, evaluated.tenant, charge, now),
        }
    }

    /// Moves a state from the future to now, also when the request is refused: otherwise the wait would never end. A peek
    /// repairs nothing, because it must not change anything.
    pub(super) fn repair(&mut self, evaluated: &Evaluated, charge: &Charge<'_>, now: Timestamp) {
        if !evaluated.rewound || charge.cost == 0 {
            return;
        }
        let key = evaluated.key;
        if !is_log(charge) {
            let found = self.counters.find(key);
            if let Some((state, true)) = found.map(|entry| rewound(entry.state(), charge, now)) {
                self.repair_counter(key, state);
            }
        } else if let Some(entry) = self.logs.find_mut(key.hash(), |entry| entry.key == key)
            && let Some(rewound) = entry.log.rewind_future(charge.limit, now)
        {
            entry.log = rewound;
            entry.restored_at = now + charge.limit.window_length();
            let at = entry.restored_at;
            self.note_restored_at(at);
        }
    }

    fn repair_counter(&mut self, key: Key, state: CounterState) {
        if let Some(entry) = self.counters.find_mut(key) {
            entry.move_to(state);
            let at = entry.restored_at();
            self.note_restored_at(at);
        }
    }

    fn commit_log(&mut self, key: Key, tenant: TenantSlot, charge: &Charge<'_>, now: Timestamp) {
        let reserved = log_bytes(charge);
        let mut added = 0;
        let mut slot = self
            .logs
            .entry(key.hash(), |entry| entry.key == key, |entry| entry.key.hash())
            .or_insert_with(|| {
                added = reserved;
                LogEntry { key, tenant, log: Log::default(), reserved, restored_at: now }
            });
        let entry = slot.get_mut();
        if let Some(rewound) = entry.log.rewind_future(charge.limit, now) {
            entry.log = rewound;
        }
        entry.log.record(charge.limit, charge.cost, now);
        entry.restored_at = entry.log.last().unwrap_or(now) + charge.limit.window_length();
        // A raised limit needs a larger reservation.
        added += reserved.saturating_sub(entry.reserved);
        entry.reserved = entry.reserved.max(reserved);
        let (at, tenant) = (entry.restored_at, entry.tenant);
        self.note_restored_at(at);
        self.reserve_log_bytes(tenant, added);
    }

    fn reserve_log_bytes(&mut self, tenant: TenantSlot, bytes: usize) {
        self.log_bytes += bytes;
        self.usage.log_bytes.add(tenant, bytes);
        self.newcomers += 1;
    }

    /// Lowers `next_restored_at`. Written only on change: a cache line written by every charge moves between processors.
    #[inline]
    fn note_restored_at(&mut self, at: Timestamp) {
        if at < self.next_restored_at {
            self.next_restored_at = at;
        }
    }

    /// Removes a counter. Returns whether there was one.
    pub(super) fn remove(&mut self, key: Key) -> bool {
        if let Some(entry) = self.counters.remove(key) {
            self.usage.counters.subtract(entry.tenant(), 1);
            self.ledger.note_removal(key, entry.restored_at());
            return true;
        }
        if let Ok(found) = self.logs.find_entry(key.hash(), |entry| entry.key == key) {
            let (entry, _) = found.remove();
            self.log_bytes -= entry.reserved;
            self.usage.log_bytes.subtract(entry.tenant, entry.reserved);
            self.ledger.note_removal(key, entry.restored_at);
            return true;
        }
        false
    }

    /// Removes a counter and returns how much of the charge's limit it held at `now`.
    pub(super) fn take(&mut self, key: Key, charge: &Charge<'_>, now: Timestamp) -> u32 {
        if !self.counters.contains(key) && !self.has_log(key) {
            return 0;
        }
        let evaluated = self.evaluate(key, TenantSlot::NONE, &Charge { cost: 0, ..*charge }, now);
        self.remove(key);
        charge.limit.capacity().saturating_sub(evaluated.verdict.remaining)
    }

    /// Charges a counter so that at most `remaining` is left. An overflow counter is not lowered: it has other clients.
    pub(super) fn lower(
        &mut self,
        key: Key,
        tenant: TenantSlot,
        charge: &Charge<'_>,
        remaining: u32,
        now: Timestamp,
    ) {
        let current = self.evaluate(key, tenant, &Charge { cost: 0, ..*charge }, now);
        let excess = current.verdict.remaining.saturating_sub(remaining);
        if excess > 0 && current.key == key {
            let charge = Charge { cost: excess, ..*charge };
            let evaluated = self.evaluate_at(key, tenant, &charge, now);
            self.commit(&evaluated, &charge, now);
        }
    }

    /// Adds a log from a snapshot, with its reservation.
    pub(super) fn insert_log(&mut self, entry: LogEntry) {
        self.reserve_log_bytes(entry.tenant, entry.reserved);
        self.logs.insert_unique(entry.key.hash(), entry, |entry| entry.key.hash());
    }

    /// Adds a counter that is new or was read from a snapshot.
    pub(super) fn insert_counter(&mut self, entry: Entry) {
        self.usage.counters.add(entry.tenant(), 1);
        self.newcomers += 1;
        self.counters.insert(entry);
    }
}

/// The state to evaluate, and whether it was moved from the future to now.
fn rewound(state: CounterState, charge: &Charge<'_>, now: Timestamp) -> (CounterState, bool) {
    if state.at <= now {
        return (state, false);
    }
    algorithms::rewind_future(charge.limit, state, now).map_or((state, false), |rewound| (rewound, true))
}

/// Evaluates a charge of a counter that is restored `retention` after its state, under the limit by which it was charged
/// last. If it then owed more than the limit of this charge admits, it refuses no longer than that.
fn evaluate_until(charge: &Charge<'_>, state: CounterState, retention: Span, now: Timestamp) -> Evaluation {
    let evaluation = algorithms::evaluate(charge.limit, Some(state), charge.cost, now);
    let Outcome::Refuse { retry_after } = evaluation.verdict.outcome else { return evaluation };
    if !charge.limit.algorithm().has_burst() || !bucket::exceeds(charge.limit, state) {
        return evaluation;
    }
    let left = (state.at + retention).since(now);
    if left.is_zero() {
        return algorithms::evaluate(charge.limit, None, charge.cost, now);
    }
    let outcome = Outcome::Refuse { retry_after: retry_after.min(left) };
    let reset_after = evaluation.verdict.reset_after.min(left);
    Evaluation { verdict: Verdict { outcome, reset_after, ..evaluation.verdict }, next: None }
}

pub(super) fn is_log(charge: &Charge<'_>) -> bool {
    charge.limit.algorithm() == Algorithm::SlidingWindowLog
}

/// The bytes to which a log may grow under the limit in force.
pub(super) fn log_bytes(charge: &Charge<'_>) -> usize {
    bytes_of_log(charge.limit.requests())
}

/// The bytes to which a log of `requests` may grow.
pub(super) const fn bytes_of_log(requests: u32) -> usize {
    LOG_BYTES + requests as usize * LOG_ENTRY_BYTES
}

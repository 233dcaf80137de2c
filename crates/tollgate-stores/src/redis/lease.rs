//! Leases: a node takes units of a busy counter in advance and admits requests from them without a call.
//!
//! - Leased units are charged on the server first. All nodes together never admit more than the limit; the units of a lost
//!   node stay charged.
//! - A lease is valid for two seconds at most, or until its window ends, measured from before the request was sent, so it expires
//!   here before it expires there.
//! - Unused units are returned with the next call, or within a second once the node uses none. Nothing is taken from a
//!   lease that is being returned, and none is returned twice: the server keeps a record of each lease until it is settled,
//!   so a return can be repeated (`returns.rs`). A sliding window accepts them in the next window too, where they still
//!   weigh.
//! - Units that a request took and that another limit may still refuse are pending. A lease is settled only when none are,
//!   so that what a refused request took comes back.
//! - A bucket counts leased units as used, so it does not refill behind a lease. It is settled as of the last use. Its first
//!   lease is small and settled early, because a full bucket refills nothing while its use is unknown.
//! - A node leases only counters that it uses often. When little is left, each node asks at most ten times a second and
//!   refuses in between; otherwise nodes would compete for the last units call by call. The pause is a small part of the
//!   time in which the limit is restored, and limits that are restored faster than `RESTORE_MIN` are not leased: what is
//!   restored in a pause must not be wasted (`leasable.rs`).

pub(crate) mod cooldowns;
mod entry;
mod hot_keys;
mod leasable;
pub(crate) mod returns;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use parking_lot::Mutex;
use tollgate::Span;
use tollgate::algorithms::{Outcome, Verdict};
use tollgate::counters::{Charge, CounterId};
use tollgate::identity::{Seed, Subject};
use tollgate::limit::Limit;

use self::entry::{Entry, LeasedUnits, RetiredLease, first_wanted};
use self::hot_keys::HotKeys;
use self::leasable::{can_be_leased, is_bucket, pause};
use self::returns::{LeaseReturn, PendingReturns};
use super::script::call::{LeaseId, LeaseRequest, Settlement};
use super::script::reply::Grant;
use super::topology::LeaseAction;

const SHARDS: usize = 16;
/// Leases per shard. Beyond it busy counters are charged on the server.
const SHARD_MAX: usize = 256;
/// How long an unused counter is still known to be busy: longer than a refusal is cached.
const IDLE_AFTER: Duration = Duration::from_secs(4);
/// A counter has little left below this fraction of its capacity.
const SCARCE_FRACTION: u32 = 200;

/// The leases of this node.
pub(crate) struct LeaseTable {
    shards: [Mutex<Shard>; SHARDS],
    capacity_min: u32,
    nodes: AtomicU32,
    served: AtomicU64,
    /// Units that could not be returned.
    lost: AtomicU64,
    /// Makes lease ids differ between nodes.
    seed: u128,
    returns: PendingReturns,
}

struct Shard {
    hot_keys: HotKeys,
    entries: HashMap<u128, Entry>,
    /// Leases whose successor is requested but of which units are pending. At most one per request being decided.
    retired: Vec<(u128, RetiredLease)>,
    last_ticket: Ticket,
}

/// Identifies one lease request and the lease granted for it, so that a late reply does not affect the next lease.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ticket(u64);

/// The counter of a lease, kept so that the lease can be returned without a request.
#[derive(Clone)]
pub(crate) struct LeasedCounter {
    pub(crate) subject: Subject,
    pub(crate) counter: CounterId,
    pub(crate) rule: Box<str>,
    pub(crate) limit: Limit,
}

/// How a charge is served.
#[derive(Copy, Clone, Debug)]
pub(crate) enum ServedBy {
    /// Taken from a lease.
    Lease(Verdict, Ticket),
    /// Little is left, and the server was asked a moment ago.
    Exhausted(Verdict),
    /// Charged on the server.
    Server,
    /// Charged on the server, with a request for a lease.
    NewLease(LeaseRequest, Ticket),
}

impl LeasedCounter {
    fn of(charge: &Charge<'_>) -> Self {
        LeasedCounter {
            subject: charge.subject,
            counter: charge.counter,
            rule: charge.rule.into(),
            limit: charge.limit.clone(),
        }
    }

    pub(crate) fn is_bucket(&self) -> bool {
        is_bucket(&self.limit)
    }
}

impl LeaseTable {
    /// Limits with less than `capacity_min` are never leased.
    pub(crate) fn new(capacity_min: u32, now: Instant) -> Self {
        let shard = |_| {
            let hot_keys = HotKeys::new(now);
            Mutex::new(Shard {
                hot_keys,
                entries: HashMap::new(),
                retired: Vec::new(),
                last_ticket: Ticket(0),
            })
        };
        let shards = std::array::from_fn(shard);
        LeaseTable {
            shards,
            capacity_min,
            nodes: AtomicU32::new(1),
            served: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            seed: u128::from_le_bytes(Seed::random().0),
            returns: PendingReturns::default(),
        }
    }

    /// Sets the number of nodes that share the limits.
    pub(crate) fn set_nodes(&self, nodes: u32) {
        self.nodes.store(nodes.max(1), Ordering::Relaxed);
    }

    pub(crate) fn nodes(&self) -> u32 {
        self.nodes.load(Ordering::Relaxed)
    }

    /// Takes a charge from a lease, or returns how to charge it. If `held`, [`LeaseTable::decided`] must follow: until then
    /// the lease is not settled.
    pub(crate) fn take(&self, charge: &Charge<'_>, held: bool, now: Instant) -> ServedBy {
        if !can_be_leased(charge) || charge.limit.capacity() < self.capacity_min {
            return ServedBy::Server;
        }
        let nodes = u16::try_from(self.nodes()).unwrap_or(u16::MAX);
        let key = counter_key(charge);
        let mut shard = self.shard(key).lock();
        let shard = &mut *shard;
        let next = Ticket(shard.last_ticket.0 + 1);
        let id = self.lease_id(key, next);
        let served_by = if let Some(entry) = shard.entries.get_mut(&key) {
            let (served_by, unsettled) = entry.serve(charge, nodes, (next, id), held, now);
            shard.retired.extend(unsettled.map(|lease| (key, lease)));
            served_by
        } else {
            let Some(rate) = shard.hot_keys.touch(key, charge.cost, now) else { return ServedBy::Server };
            if shard.entries.len() >= SHARD_MAX {
                return ServedBy::Server;
            }
            shard.entries.insert(key, Entry::requested(charge, rate, next, now));
            let want = first_wanted(rate, charge.limit);
            ServedBy::NewLease(LeaseRequest { want, nodes, id, settle: None }, next)
        };
        match served_by {
            ServedBy::Lease(..) => _ = self.served.fetch_add(1, Ordering::Relaxed),
            ServedBy::NewLease(..) => shard.last_ticket = next,
            _ => {}
        }
        served_by
    }

    /// Leased units of a charge's counter.
    pub(crate) fn units_left(&self, charge: &Charge<'_>, now: Instant) -> u32 {
        let key = counter_key(charge);
        let shard = self.shard(key).lock();
        shard.entries.get(&key).map_or(0, |entry| entry.units_left(now))
    }

    /// The request that held units is decided: they are used, or come back to their lease.
    pub(crate) fn decided(&self, charge: &Charge<'_>, ticket: Ticket, used: bool) {
        let key = counter_key(charge);
        let mut shard = self.shard(key).lock();
        let found = shard.retired.iter().position(|(of, lease)| *of == key && lease.ticket == ticket);
        let Some(position) = found else {
            if let Some(entry) = shard.entry(key, ticket) {
                entry.units.decided(charge.cost, used);
            }
            return;
        };
        let units = &mut shard.retired[position].1.units;
        units.decided(charge.cost, used);
        if units.pending == 0 {
            let (_, lease) = shard.retired.swap_remove(position);
            drop(shard);
            self.return_later(lease.into());
        }
    }

    /// Applies the reply to a lease request that was sent at `sent_at`.
    pub(crate) fn grant(
        &self,
        charge: &Charge<'_>,
        (request, ticket): (&LeaseRequest, Ticket),
        verdict: Verdict,
        grant: Grant,
        sent_at: Instant,
    ) {
        let key = counter_key(charge);
        self.lost.fetch_add(grant.lost.into(), Ordering::Relaxed);
        let mut shard = self.shard(key).lock();
        let Some(entry) = shard.entry(key, ticket) else {
            drop(shard);
            // The lease was revoked meanwhile; the server knows whether the units still count.
            if grant.granted > 0 {
                let (id, granted) = (request.id, grant.granted);
                let unused = Settlement { id, granted, unspent: granted, used_at: Some(sent_at) };
                self.return_later(LeaseReturn::new(LeasedCounter::of(charge), unused));
            }
            return;
        };
        if request.want == 0 {
            // No longer busy: the request only settled the previous lease.
            shard.entries.remove(&key);
            return;
        }
        entry.renewing = false;
        (entry.verdict, entry.verdict_at, entry.verdict_cost) = (verdict, Instant::now(), charge.cost);
        entry.units = LeasedUnits {
            granted: grant.granted,
            left: grant.granted,
            pending: 0,
            since: sent_at,
            until: sent_at + Duration::from(grant.valid),
            used_at: sent_at,
            id: request.id,
        };
        let refused = matches!(verdict.outcome, Outcome::Refuse { .. });
        // A single node may take the last unit; several would compete for it call by call.
        let little_left = request.nodes > 1 && verdict.remaining <= charge.limit.capacity() / SCARCE_FRACTION;
        let scarce = refused || little_left && grant.granted < request.want;
        entry.scarce_until = scarce.then(|| sent_at + pause(charge.limit));
    }

    /// Drops a request whose reply is unknown. What it may have granted, and the lease that it may not have settled, are
    /// returned later.
    pub(crate) fn abandon(&self, charge: &Charge<'_>, request: &LeaseRequest, ticket: Ticket) {
        let key = counter_key(charge);
        let mut shard = self.shard(key).lock();
        if shard.entry(key, ticket).is_some() {
            shard.entries.remove(&key);
        }
        drop(shard);
        if let Some(settlement) = request.settle {
            self.return_later(LeaseReturn::new(LeasedCounter::of(charge), settlement));
        }
        if request.want > 0 {
            self.return_later(LeaseReturn::of_lost_reply(LeasedCounter::of(charge), request.id));
        }
    }

    /// Undoes a request that was certainly not executed: the previous lease is still to be settled.
    pub(crate) fn withdraw(&self, charge: &Charge<'_>, request: &LeaseRequest, ticket: Ticket) {
        let key = counter_key(charge);
        if let Some(entry) = self.shard(key).lock().entry(key, ticket) {
            entry.renewing = false;
        }
        // It is not used any further: its units may belong to a limit that has changed.
        if let Some(settlement) = request.settle {
            self.return_later(LeaseReturn::new(LeasedCounter::of(charge), settlement));
        }
    }

    /// Takes out the returns that are due: of expired leases, and those that failed. Counters used lately are still known to
    /// be busy.
    pub(crate) fn take_expired(&self, now: Instant) -> Vec<LeaseReturn> {
        let mut expired = self.returns.take();
        for shard in &self.shards {
            let mut shard = shard.lock();
            let due = shard.entries.values_mut().filter(|entry| entry.is_due(now));
            expired.extend(due.filter_map(|entry| {
                entry.update_rate();
                entry.retire().map(LeaseReturn::from)
            }));
            let is_used = |entry: &Entry| now < entry.used_at + IDLE_AFTER || entry.units.granted > 0;
            shard.entries.retain(|_, entry| entry.renewing || is_used(entry));
        }
        expired
    }

    /// Takes out the returns of all leases.
    pub(crate) fn take_all(&self) -> Vec<LeaseReturn> {
        let mut all = self.returns.take();
        for shard in &self.shards {
            let mut shard = shard.lock();
            all.extend(shard.retired.drain(..).map(|(_, lease)| LeaseReturn::from(lease)));
            all.extend(
                shard.entries.drain().filter_map(|(_, mut entry)| entry.retire()).map(LeaseReturn::from),
            );
        }
        all
    }

    /// Keeps a return that is to be tried again.
    pub(crate) fn return_later(&self, lease: LeaseReturn) {
        self.note_lost(self.returns.push(lease));
    }

    /// Stops using a lease, because its counter was reset. Its units are returned all the same: the lease may have been
    /// granted since, and the server ignores one from before.
    pub(crate) fn revoke(&self, key: u128) {
        let mut shard = self.shard(key).lock();
        let Some(lease) = shard.entries.remove(&key).and_then(|mut entry| entry.retire()) else { return };
        if lease.units.pending > 0 {
            shard.retired.push((key, lease));
            return;
        }
        drop(shard);
        self.return_later(lease.into());
    }

    /// Keeps, returns or revokes each lease after servers changed. Returns what is to be returned. A lease being requested
    /// comes from the new server.
    pub(crate) fn apply_changes(&self, action: impl Fn(Subject) -> LeaseAction) -> Vec<LeaseReturn> {
        let keeps = |counter: &LeasedCounter| action(counter.subject) != LeaseAction::Revoke;
        let mut lost = self.returns.retain(keeps);
        let mut returned = Vec::new();
        for shard in &self.shards {
            let mut shard = shard.lock();
            let Shard { entries, retired, .. } = &mut *shard;
            retired.retain(|(_, lease)| {
                let is_kept = keeps(&lease.counter);
                lost += if is_kept { 0 } else { u64::from(lease.units.left) };
                is_kept
            });
            entries.retain(|key, entry| {
                match action(entry.counter.subject) {
                    LeaseAction::Keep => {}
                    LeaseAction::Return => match entry.retire() {
                        Some(lease) if lease.units.pending > 0 => retired.push((*key, lease)),
                        lease => returned.extend(lease.map(LeaseReturn::from)),
                    },
                    LeaseAction::Revoke => {
                        lost += u64::from(entry.units.left);
                        return false;
                    }
                }
                true
            });
        }
        self.note_lost(lost);
        returned
    }

    /// Counts units that could not be returned.
    pub(crate) fn note_lost(&self, units: u64) {
        self.lost.fetch_add(units, Ordering::Relaxed);
    }

    /// Units that could not be returned: of failed servers, and of returns that came too late.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Charges served from leases.
    pub(crate) fn served(&self) -> u64 {
        self.served.load(Ordering::Relaxed)
    }

    /// Leases and their unused units. That many units may be admitted beyond limits if the server that granted them loses
    /// its memory.
    pub(crate) fn outstanding(&self, now: Instant) -> (usize, u64) {
        let mut total = (0, 0);
        for shard in &self.shards {
            let shard = shard.lock();
            for left in shard.entries.values().map(|entry| entry.units_left(now)).filter(|left| *left > 0) {
                total = (total.0 + 1, total.1 + u64::from(left));
            }
        }
        total
    }

    /// The id of the lease that is requested with a ticket; tickets are unique within a shard.
    fn lease_id(&self, key: u128, ticket: Ticket) -> LeaseId {
        let shard = key % SHARDS as u128;
        LeaseId(self.seed ^ (shard << 64 | u128::from(ticket.0)))
    }

    fn shard(&self, key: u128) -> &Mutex<Shard> {
        &self.shards[(key % SHARDS as u128) as usize]
    }
}

impl Shard {
    /// The lease of a counter, if it belongs to this ticket.
    fn entry(&mut self, key: u128, ticket: Ticket) -> Option<&mut Entry> {
        self.entries.get_mut(&key).filter(|entry| entry.ticket == ticket)
    }
}

/// What is left of a span.
pub(crate) fn minus(span: Span, passed: Duration) -> Span {
    Span::from_micros(span.as_micros().saturating_sub(Span::from(passed).as_micros()))
}

/// Identifies a counter in leases, cached refusals and resets.
pub(crate) fn counter_key(charge: &Charge<'_>) -> u128 {
    charge.subject.0 ^ charge.counter.0
}

//! Leases: a node takes units of a busy counter in advance and admits requests from them without a call.
//!
//! - Leased units are charged on the server first. All nodes together never admit more than the limit; the units of a lost
//!   node stay charged.
//! - A lease is valid for two seconds or until its window ends, measured from before the request was sent, so it expires
//!   here before it expires there.
//! - Unused units are returned with the next call. Nothing is taken from a lease that is being returned, and none is
//!   returned twice: the server keeps a record of each lease until it is settled, so a return can be repeated (`returns.rs`).
//!   A sliding window accepts them in the next window too, where they still weigh.
//! - A bucket counts leased units as used, so it does not refill behind a lease. Its first lease is small and settled
//!   early, because a full bucket refills nothing while its use is unknown.
//! - A node leases only counters that it uses often. When little is left, each node asks at most ten times a second and
//!   refuses in between; otherwise nodes would compete for the last units call by call.

pub(crate) mod cooldowns;
mod entry;
mod hot_keys;
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
use tollgate::limit::{Algorithm, Limit};

use self::entry::{Entry, LeasedUnits, first_wanted};
use self::hot_keys::HotKeys;
use self::returns::{LeaseReturn, PendingReturns};
use super::script::call::{LeaseId, LeaseRequest, Settlement};
use super::script::reply::Grant;
use super::topology::LeaseAction;

const SHARDS: usize = 16;
/// Leases per shard. Beyond it busy counters are charged on the server.
const SHARD_MAX: usize = 256;
/// How long an unused counter is still known to be busy: longer than a refusal is cached.
const IDLE_AFTER: Duration = Duration::from_secs(4);
/// Pause before the server is asked again for a counter that has little left.
const SCARCE_FOR: Duration = Duration::from_millis(100);
/// A counter has little left below this fraction of its capacity.
const SCARCE_FRACTION: u32 = 200;

/// The leases of this node.
pub(crate) struct LeaseTable {
    shards: [Mutex<Shard>; SHARDS],
    capacity_min: u32,
    nodes: AtomicU32,
    served: AtomicU64,
    /// Makes lease ids differ between nodes.
    seed: u128,
    returns: PendingReturns,
}

struct Shard {
    hot_keys: HotKeys,
    entries: HashMap<u128, Entry>,
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
    pub(crate) fn is_bucket(&self) -> bool {
        is_bucket(&self.limit)
    }
}

impl LeaseTable {
    /// Limits with less than `capacity_min` are never leased.
    pub(crate) fn new(capacity_min: u32, now: Instant) -> Self {
        let shard = |_| {
            let hot_keys = HotKeys::new(now);
            Mutex::new(Shard { hot_keys, entries: HashMap::new(), last_ticket: Ticket(0) })
        };
        let shards = std::array::from_fn(shard);
        LeaseTable {
            shards,
            capacity_min,
            nodes: AtomicU32::new(1),
            served: AtomicU64::new(0),
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

    /// Takes a charge from a lease, or returns how to charge it.
    pub(crate) fn take(&self, charge: &Charge<'_>, now: Instant) -> ServedBy {
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
            entry.serve(charge, nodes, (next, id), now)
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

    /// Puts back units that a refused decision had taken. If the lease is settled already, they stay charged.
    pub(crate) fn put_back(&self, charge: &Charge<'_>, ticket: Ticket) {
        let key = counter_key(charge);
        if let Some(entry) = self.shard(key).lock().entry(key, ticket) {
            entry.units.left = entry.units.left.saturating_add(charge.cost).min(entry.units.granted);
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
        let mut shard = self.shard(key).lock();
        let Some(entry) = shard.entry(key, ticket) else { return };
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
            since: sent_at,
            until: sent_at + Duration::from(grant.valid),
            used_at: sent_at,
            id: request.id,
        };
        let refused = matches!(verdict.outcome, Outcome::Refuse { .. });
        // A single node may take the last unit; several would compete for it call by call.
        let little_left = request.nodes > 1 && verdict.remaining <= charge.limit.capacity() / SCARCE_FRACTION;
        let scarce = refused || little_left && grant.granted < request.want;
        entry.scarce_until = scarce.then(|| sent_at + SCARCE_FOR);
    }

    /// Drops a request whose reply is unknown. What it may have granted, and the lease that it may not have settled, are
    /// returned later.
    pub(crate) fn abandon(&self, charge: &Charge<'_>, request: &LeaseRequest, ticket: Ticket) {
        let key = counter_key(charge);
        let mut shard = self.shard(key).lock();
        if shard.entry(key, ticket).is_none_or(|entry| !entry.renewing) {
            return;
        }
        let entry = shard.entries.remove(&key);
        drop(shard);
        let Some(Entry { counter, .. }) = entry else { return };
        if let Some(settlement) = request.settle {
            self.returns.push(LeaseReturn::new(counter.clone(), settlement));
        }
        if request.want > 0 {
            self.returns.push(LeaseReturn::of_lost_reply(counter, request.id));
        }
    }

    /// Undoes a request that was certainly not executed: the previous lease is still to be settled.
    pub(crate) fn withdraw(&self, charge: &Charge<'_>, request: &LeaseRequest, ticket: Ticket) {
        let key = counter_key(charge);
        let mut shard = self.shard(key).lock();
        let Some(entry) = shard.entry(key, ticket).filter(|entry| entry.renewing) else { return };
        entry.renewing = false;
        if let Some(Settlement { granted, unspent, .. }) = request.settle {
            // Expired at once: its units may belong to a limit that has changed.
            entry.units = LeasedUnits { granted, left: unspent, until: entry.units.since, ..entry.units };
        }
    }

    /// Takes out the returns that are due: of expired leases, and those that failed. Counters used lately are still known to
    /// be busy.
    pub(crate) fn take_expired(&self, now: Instant) -> Vec<LeaseReturn> {
        let mut expired = self.returns.take();
        for shard in &self.shards {
            let mut shard = shard.lock();
            let ended =
                shard.entries.values_mut().filter(|entry| !entry.renewing && entry.units.until <= now);
            expired.extend(ended.filter_map(Entry::settle).map(LeaseReturn::from));
            shard.entries.retain(|_, entry| entry.renewing || now < entry.used_at + IDLE_AFTER);
        }
        expired
    }

    /// Takes out the returns of all leases.
    pub(crate) fn take_all(&self) -> Vec<LeaseReturn> {
        let mut all = self.returns.take();
        for shard in &self.shards {
            let settled = shard.lock().entries.drain().filter_map(|(_, mut entry)| entry.settle()).collect();
            let settled: Vec<(LeasedCounter, Settlement)> = settled;
            all.extend(settled.into_iter().map(LeaseReturn::from));
        }
        all
    }

    /// Keeps a return that is to be tried again.
    pub(crate) fn return_later(&self, lease: LeaseReturn) {
        self.returns.push(lease);
    }

    /// Drops a lease without returning its units, because its counter was reset.
    pub(crate) fn revoke(&self, key: u128) {
        self.shard(key).lock().entries.remove(&key);
    }

    /// Keeps, returns or revokes each lease after servers changed. Returns what is to be returned. A lease being requested
    /// comes from the new server.
    pub(crate) fn apply_changes(&self, action: impl Fn(Subject) -> LeaseAction) -> Vec<LeaseReturn> {
        self.returns.retain(|counter| action(counter.subject) != LeaseAction::Revoke);
        let mut returned = Vec::new();
        for shard in &self.shards {
            shard.lock().entries.retain(|_, entry| match action(entry.counter.subject) {
                LeaseAction::Keep => true,
                LeaseAction::Return => {
                    returned.extend(entry.settle().map(LeaseReturn::from));
                    true
                }
                LeaseAction::Revoke => false,
            });
        }
        returned
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

/// A sliding log cannot be leased: its units expire one by one. Neither can a queue, whose order matters, nor a charge that
/// may be refunded, because its lease may have been returned by then.
fn can_be_leased(charge: &Charge<'_>) -> bool {
    let algorithm = matches!(
        charge.limit.algorithm(),
        Algorithm::TokenBucket | Algorithm::Gcra | Algorithm::FixedWindow | Algorithm::SlidingWindowCounter
    );
    algorithm && charge.leases && !charge.refundable && charge.cost > 0 && charge.limit.max_delay().is_none()
}

fn is_bucket(limit: &Limit) -> bool {
    matches!(limit.algorithm(), Algorithm::TokenBucket | Algorithm::Gcra)
}

/// What is left of a span.
pub(crate) fn minus(span: Span, passed: Duration) -> Span {
    Span::from_micros(span.as_micros().saturating_sub(Span::from(passed).as_micros()))
}

/// Identifies a counter in leases, cached refusals and resets.
pub(crate) fn counter_key(charge: &Charge<'_>) -> u128 {
    charge.subject.0 ^ charge.counter.0
}

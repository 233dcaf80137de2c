//! One lease: its units, and how long to refuse when little is left.

use std::time::{Duration, Instant};

use tollgate::Span;
use tollgate::algorithms::{Outcome, Verdict};
use tollgate::counters::{Charge, Effect};
use tollgate::limit::Limit;

use super::hot_keys::{BUSY, RATE_PERIOD_MIN, per_second};
use super::{LeasedCounter, ServedBy, Ticket, is_bucket, minus};
use crate::redis::script::LEASE_TTL;
use crate::redis::script::call::{LeaseId, LeaseRequest, Settlement};

/// The first lease of a bucket is this fraction of the expected use: a full bucket refills nothing until the use is
/// settled.
const FIRST_FRACTION: u32 = 4;

/// A lease that was not used for this long is returned.
const RETURN_AFTER: Duration = Duration::from_millis(500);

/// One lease.
pub(super) struct Entry {
    pub(super) counter: LeasedCounter,
    /// Of the last request and of the units granted for it.
    pub(super) ticket: Ticket,
    pub(super) units: LeasedUnits,
    /// Whether a call is in flight that settles the units and requests the next.
    pub(super) renewing: bool,
    /// Until when nothing is requested, because the last call found little left.
    pub(super) scarce_until: Option<Instant>,
    /// The server's last verdict, when it came, and for which cost.
    pub(super) verdict: Verdict,
    pub(super) verdict_at: Instant,
    pub(super) verdict_cost: u32,
    /// Units per second used on this node.
    pub(super) rate: u32,
    pub(super) used_at: Instant,
}

/// Units granted by the server.
#[derive(Copy, Clone)]
pub(super) struct LeasedUnits {
    pub(super) granted: u32,
    pub(super) left: u32,
    /// Units taken by requests that are not decided yet: they may come back.
    pub(super) pending: u32,
    pub(super) since: Instant,
    pub(super) until: Instant,
    pub(super) used_at: Instant,
    pub(super) id: LeaseId,
}

/// A lease that no units are taken from any more. It is settled once no units are pending.
pub(super) struct RetiredLease {
    pub(super) counter: LeasedCounter,
    pub(super) ticket: Ticket,
    pub(super) units: LeasedUnits,
}

impl LeasedUnits {
    fn take(&mut self, cost: u32, held: bool, now: Instant) {
        self.left -= cost;
        // Threads read the clock before they wait for the lock.
        self.used_at = self.used_at.max(now);
        if held {
            self.pending += cost;
        }
    }

    /// Units that were taken are used, or come back.
    pub(super) fn decided(&mut self, cost: u32, used: bool) {
        self.pending = self.pending.saturating_sub(cost);
        if !used {
            self.left = self.left.saturating_add(cost).min(self.granted);
        }
    }
}

impl RetiredLease {
    pub(super) fn settlement(&self) -> Settlement {
        let LeasedUnits { granted, left: unspent, used_at, id, .. } = self.units;
        Settlement { id, granted, unspent, used_at: Some(used_at) }
    }
}

impl Entry {
    /// A lease that is being requested.
    pub(super) fn requested(charge: &Charge<'_>, rate: u32, ticket: Ticket, now: Instant) -> Self {
        let outcome = Outcome::Admit { delay: Span::ZERO };
        Entry {
            counter: LeasedCounter::of(charge),
            ticket,
            units: LeasedUnits {
                granted: 0,
                left: 0,
                pending: 0,
                since: now,
                until: now,
                used_at: now,
                id: LeaseId::default(),
            },
            renewing: true,
            scarce_until: None,
            verdict: Verdict { outcome, remaining: 0, reset_after: Span::ZERO },
            verdict_at: now,
            verdict_cost: charge.cost,
            rate,
            used_at: now,
        }
    }

    /// Takes a charge, or returns how to charge it, and a lease that cannot be settled yet. With `held`, the units may come
    /// back.
    pub(super) fn serve(
        &mut self,
        charge: &Charge<'_>,
        nodes: u16,
        (next, id): (Ticket, LeaseId),
        held: bool,
        now: Instant,
    ) -> (ServedBy, Option<RetiredLease>) {
        self.used_at = now;
        // A changed limit is judged by the server.
        let same_limit = self.counter.limit == *charge.limit;
        if same_limit && now < self.units.until && charge.cost <= self.units.left {
            self.units.take(charge.cost, held, now);
            return (ServedBy::Lease(self.admission(now), self.ticket), None);
        }
        if self.renewing {
            return (ServedBy::Server, None);
        }
        if same_limit
            && charge.effect == Effect::Enforce
            && let Some(refusal) = self.refusal(charge.cost, now)
        {
            return (ServedBy::Exhausted(refusal), None);
        }
        self.update_rate();
        let (settled, unsettled) = match self.retire() {
            Some(lease) if lease.units.pending > 0 => (None, Some(lease)),
            lease => (lease, None),
        };
        self.counter.limit = charge.limit.clone();
        (self.renewing, self.ticket) = (true, next);
        let want = Some(wanted(self.rate, charge.limit)).filter(|want| *want >= BUSY).unwrap_or(0);
        let settle = settled.map(|lease| lease.settlement());
        (ServedBy::NewLease(LeaseRequest { want, nodes, id, settle }, next), unsettled)
    }

    pub(super) fn units_left(&self, now: Instant) -> u32 {
        if now < self.units.until { self.units.left } else { 0 }
    }

    /// Learns the rate from how fast the units were used.
    pub(super) fn update_rate(&mut self) {
        let LeasedUnits { granted, left, since, until, used_at, .. } = self.units;
        if granted == 0 {
            return;
        }
        let seen = per_second(granted - left, used_at.saturating_duration_since(since));
        let measured_over = if left == 0 { used_at } else { until }.saturating_duration_since(since);
        self.rate = if measured_over < RATE_PERIOD_MIN {
            // A short lease at the end of a window underestimates the rate.
            seen.max(self.rate)
        } else if left == 0 {
            // All units were used: the demand may have been higher.
            seen.max(self.rate / 2)
        } else {
            seen
        };
    }

    /// Whether the lease is to be returned: it has expired, or was not used lately. Others may need the units.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        let idle = self.units.until <= now || self.units.used_at + RETURN_AFTER <= now;
        idle && !self.renewing && self.units.pending == 0
    }

    /// Takes out the units.
    pub(super) fn retire(&mut self) -> Option<RetiredLease> {
        let units = self.units;
        self.units = LeasedUnits { granted: 0, left: 0, pending: 0, ..units };
        let (counter, ticket) = (self.counter.clone(), self.ticket);
        (units.granted > 0).then_some(RetiredLease { counter, ticket, units })
    }

    /// Admits, with what remains here and, as of the last reply, on the server.
    fn admission(&self, now: Instant) -> Verdict {
        let remaining =
            self.verdict.remaining.saturating_add(self.units.left).min(self.counter.limit.capacity());
        Verdict {
            outcome: Outcome::Admit { delay: Span::ZERO },
            remaining,
            reset_after: minus(self.verdict.reset_after, now.saturating_duration_since(self.verdict_at)),
        }
    }

    /// Refuses until the server is asked again, or longer if it said so. None if more than little is left, or only the
    /// server knows the wait.
    fn refusal(&self, cost: u32, now: Instant) -> Option<Verdict> {
        let until = self.scarce_until.filter(|until| now < *until)?;
        let passed = now.saturating_duration_since(self.verdict_at);
        let wait = match self.verdict.outcome {
            Outcome::Refuse { retry_after } if cost == self.verdict_cost => minus(retry_after, passed),
            Outcome::Admit { .. } if cost <= self.verdict.remaining => Span::ZERO,
            _ => return None,
        };
        Some(Verdict {
            outcome: Outcome::Refuse { retry_after: wait.max(Span::from(until - now)) },
            remaining: self.units.left,
            reset_after: minus(self.verdict.reset_after, passed),
        })
    }
}

/// Units used at this rate while a lease is valid.
pub(super) fn wanted(rate: u32, limit: &Limit) -> u32 {
    let seconds = u32::try_from(LEASE_TTL.as_secs_ceil()).unwrap_or(1);
    rate.saturating_mul(seconds).min(limit.capacity())
}

/// Units of the first lease, when the rate is known from a few requests only. At least `BUSY`, or a lease does not pay.
pub(super) fn first_wanted(rate: u32, limit: &Limit) -> u32 {
    let want = wanted(rate, limit);
    if is_bucket(limit) { want.min((want / FIRST_FRACTION).max(BUSY)) } else { want }
}

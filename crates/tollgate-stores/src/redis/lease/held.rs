//! One lease: what is left of its slice, and how long to refuse when there is little.

use std::time::Instant;

use tollgate::Span;
use tollgate::algorithms::{Outcome, Verdict};
use tollgate::counters::{Charge, Effect};
use tollgate::limit::Limit;

use super::hot_keys::{BUSY, PACE_FROM, per_second};
use super::{Owner, Serving, Ticket, is_bucket, less};
use crate::redis::script::{LEASE, LeaseRequest, Settle};

/// The first slice of a bucket is this part of what is wanted. Longer than that, a bucket that is full when the rush
/// begins knows of no use that could be paid back: with whole slices twenty nodes lose half a second's worth.
const FIRST_PART: u32 = 4;

/// One lease.
pub(crate) struct Held {
    pub(crate) owner: Owner,
    /// Of the last wish, and of the slice that was granted to it.
    pub(crate) ticket: Ticket,
    pub(crate) slice: Slice,
    /// Whether a call is under way that settles the slice and asks for the next.
    pub(crate) renewing: bool,
    /// Whether the last call found little left; until then nothing is asked for.
    pub(crate) scarce_until: Option<Instant>,
    /// What the server said last, when, and to a charge of how much.
    pub(crate) told: Verdict,
    pub(crate) told_at: Instant,
    pub(crate) told_cost: u32,
    /// Units a second that are asked for here, as far as is known.
    pub(crate) rate: u32,
    pub(crate) used_at: Instant,
}

/// What is left of what was granted.
#[derive(Copy, Clone)]
pub(crate) struct Slice {
    pub(crate) granted: u32,
    pub(crate) left: u32,
    pub(crate) since: Instant,
    pub(crate) until: Instant,
    pub(crate) used_at: Instant,
    pub(crate) born: u64,
    pub(crate) mark: u64,
}

impl Held {
    /// A lease that is being asked for.
    pub(crate) fn begin(charge: &Charge<'_>, rate: u32, ticket: Ticket, now: Instant) -> Self {
        let owner = Owner {
            subject: charge.subject,
            counter: charge.counter,
            rule: charge.rule.into(),
            limit: charge.limit.clone(),
        };
        let slice = Slice { granted: 0, left: 0, since: now, until: now, used_at: now, born: 0, mark: 0 };
        let told =
            Verdict { outcome: Outcome::Admit { delay: Span::ZERO }, remaining: 0, reset_after: Span::ZERO };
        let (told_at, told_cost) = (now, charge.cost);
        let (renewing, scarce_until) = (true, None);
        Held { owner, ticket, slice, renewing, scarce_until, told, told_at, told_cost, rate, used_at: now }
    }

    pub(crate) fn serve(&mut self, charge: &Charge<'_>, nodes: u16, next: Ticket, now: Instant) -> Serving {
        self.used_at = now;
        // Numbers that changed are the server's business at once.
        let same = self.owner.limit == *charge.limit;
        if same && now < self.slice.until && charge.cost <= self.slice.left {
            self.slice.left -= charge.cost;
            self.slice.used_at = now;
            return Serving::Leased(self.verdict(now), self.ticket);
        }
        if self.renewing {
            return Serving::Ask;
        }
        if same
            && charge.effect == Effect::Enforce
            && let Some(refusal) = self.refusal(charge.cost, now)
        {
            return Serving::Scarce(refusal);
        }
        self.learn_rate();
        let settle = self.hand_over().map(|(_, settle)| settle);
        self.owner.limit = charge.limit.clone();
        (self.renewing, self.ticket) = (true, next);
        let want = Some(wanted(self.rate, charge.limit)).filter(|want| *want >= BUSY).unwrap_or(0);
        Serving::AskFor(LeaseRequest { want, nodes, settle }, next)
    }

    /// What of the slice may still be used.
    pub(crate) fn left(&self, now: Instant) -> u32 {
        if now < self.slice.until { self.slice.left } else { 0 }
    }

    /// How busy the counter is, by how fast the slice went.
    fn learn_rate(&mut self) {
        let Slice { granted, left, since, until, used_at, .. } = self.slice;
        if granted == 0 {
            return;
        }
        let seen = per_second(granted - left, used_at.saturating_duration_since(since));
        let told_in = if left == 0 { used_at } else { until }.saturating_duration_since(since);
        self.rate = if told_in < PACE_FROM {
            // A small one, because little remains or the window is about to end: a pace told from it is too slow.
            seen.max(self.rate)
        } else if left == 0 {
            // A slice that is used up says only how much there was, not how much was asked for.
            seen.max(self.rate / 2)
        } else {
            seen
        };
    }

    /// What is to be given back; afterwards nothing is held.
    pub(crate) fn hand_over(&mut self) -> Option<(Owner, Settle)> {
        let Slice { granted, left: unspent, born, mark, .. } = self.slice;
        self.slice = Slice { granted: 0, left: 0, ..self.slice };
        (granted > 0).then(|| (self.owner.clone(), Settle { born, mark, granted, unspent }))
    }

    /// What remains here and, when it was last asked, there.
    fn verdict(&self, now: Instant) -> Verdict {
        let remaining = self.told.remaining.saturating_add(self.slice.left).min(self.owner.limit.capacity());
        Verdict {
            outcome: Outcome::Admit { delay: Span::ZERO },
            remaining,
            reset_after: less(self.told.reset_after, now.saturating_duration_since(self.told_at)),
        }
    }

    /// Refused until it is asked for again, or longer if the server said so. Nothing if there is more than little, or if
    /// only the server knows how long the wait is.
    fn refusal(&self, cost: u32, now: Instant) -> Option<Verdict> {
        let until = self.scarce_until.filter(|until| now < *until)?;
        let passed = now.saturating_duration_since(self.told_at);
        let told = match self.told.outcome {
            Outcome::Refuse { retry_after } if cost == self.told_cost => less(retry_after, passed),
            Outcome::Admit { .. } if cost <= self.told.remaining => Span::ZERO,
            _ => return None,
        };
        Some(Verdict {
            outcome: Outcome::Refuse { retry_after: told.max(Span::from(until - now)) },
            remaining: self.slice.left,
            reset_after: less(self.told.reset_after, passed),
        })
    }
}

/// What is used at this rate in the life of a lease.
pub(crate) fn wanted(rate: u32, limit: &Limit) -> u32 {
    let seconds = u32::try_from(LEASE.as_secs_ceil()).unwrap_or(1);
    rate.saturating_mul(seconds).min(limit.capacity())
}

/// What is asked for at first, when the pace is known from a few units only.
pub(crate) fn first_wanted(rate: u32, limit: &Limit) -> u32 {
    let want = wanted(rate, limit);
    // Not less than what a lease pays for.
    if is_bucket(limit) { want.min((want / FIRST_PART).max(BUSY)) } else { want }
}

//! Refusals that are known to last, answered without asking.
//!
//! A refused request changes nothing, so the answer to the next one of the same cost is known until the wait that was
//! told is over. Another cost has to wait for another time, so a few costs are remembered of each counter. It is kept for a second at most, so that a reset or a change of rules on another node is seen even if
//! the message about it is lost; and never longer than the window, so that a client's next episode is noted.
//! What the other limits of the request hold is not asked then: only the limit that refuses is told of truly.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use parking_lot::Mutex;
use smallvec::SmallVec;
use tollgate::Span;
use tollgate::algorithms::{Outcome, Verdict};
use tollgate::counters::{Charge, Charges, Effect, Verdicts};

use super::leases::{key, less};

const KEPT_MAX: Duration = Duration::from_secs(1);
const SHARDS: usize = 16;
/// Refusals remembered in one shard; beyond it the oldest are dropped all at once.
const SHARD_MAX: usize = 4_096;

/// Costs of which a refusal is remembered for one counter; beyond it the one that ends first gives way.
const COSTS_MAX: usize = 4;

/// What is known of one counter or client, by cost. Most are asked for with one.
type Costs = SmallVec<[Known; 1]>;

/// What is known to be refused.
#[derive(Default)]
pub(super) struct Refusals {
    shards: [Mutex<HashMap<u128, Costs>>; SHARDS],
    hits: AtomicU64,
}

/// A refusal, as it was told.
#[derive(Copy, Clone)]
struct Known {
    told_at: Instant,
    until: Instant,
    /// The numbers it was refused by: others may admit.
    numbers: (u32, u64),
    /// What was refused: more would have to wait longer, less might pass. Zero for a client that is kept out.
    cost: u32,
    /// What the limit said; nothing for a client that is kept out.
    verdict: Option<Verdict>,
    /// How long the client is kept out.
    cooldown: Option<Span>,
}

impl Refusals {
    /// The answer to these charges, if it is known.
    pub(super) fn answer(&self, charges: &Charges<'_>, now: Instant) -> Option<Verdicts> {
        if let Some(penalty) = &charges.penalty
            && let Some(known) = self.find(penalty.subject.0, 0, now)
            && let Some(cooldown) = known.cooldown
        {
            self.hits.fetch_add(1, Ordering::Relaxed);
            let left = less(cooldown, now - known.told_at);
            let known = |charge| self.known(charge, now).unwrap_or_else(|| unasked(charge));
            let verdicts = charges.charges.iter().map(known).collect();
            return Some(Verdicts { verdicts, cooldown: Some(left), kept_out: true });
        }
        let refused = |(position, charge): (usize, &Charge<'_>)| {
            if charge.effect == Effect::Shadow || charge.cost == 0 {
                return None;
            }
            Some((position, self.known(charge, now)?))
        };
        let (position, verdict) = charges.charges.iter().enumerate().find_map(refused)?;
        self.hits.fetch_add(1, Ordering::Relaxed);
        Some(refused_by(charges, position, verdict))
    }

    /// Remembers what refused. The server decided at some moment since it was asked: what is known ends at the earliest
    /// moment that this leaves open, and waits are told for the latest, or an obedient client would come too early.
    pub(super) fn remember(&self, charges: &Charges<'_>, verdicts: &Verdicts, asked: Instant) {
        let told_at = Instant::now();
        if let (Some(penalty), Some(cooldown)) = (&charges.penalty, verdicts.cooldown) {
            let until = asked + Duration::from(cooldown).min(KEPT_MAX);
            let known =
                Known { told_at, until, cost: 0, numbers: (0, 0), verdict: None, cooldown: Some(cooldown) };
            self.put(penalty.subject.0, known);
        }
        for (charge, verdict) in charges.charges.iter().zip(&verdicts.verdicts) {
            if let Outcome::Refuse { retry_after } = verdict.outcome
                && charge.effect == Effect::Enforce
                && charge.cost > 0
            {
                let kept = retry_after.min(charge.limit.window_length());
                let until = asked + Duration::from(kept).min(KEPT_MAX);
                let known = Known {
                    told_at,
                    until,
                    cost: charge.cost,
                    numbers: numbers(charge),
                    verdict: Some(*verdict),
                    cooldown: None,
                };
                self.put(key(charge), known);
            }
        }
    }

    /// Forgets what was refused of counters that have just been charged: who is refused next has longer to wait.
    pub(super) fn outdate(&self, charges: &Charges<'_>) {
        for charge in &charges.charges {
            let key = key(charge);
            let mut shard = self.shard(key).lock();
            if !shard.is_empty() {
                shard.remove(&key);
            }
        }
    }

    /// Forgets what is known of these counters and clients: somebody reset them.
    pub(super) fn forget(&self, keys: &[u128]) {
        for key in keys {
            self.shard(*key).lock().remove(key);
        }
    }

    pub(super) fn hits(&self) -> u64 {
        self.hits.load(Ordering::Relaxed)
    }

    /// What the limit says to this charge, if it refused it a moment ago.
    fn known(&self, charge: &Charge<'_>, now: Instant) -> Option<Verdict> {
        let known = self.find(key(charge), charge.cost, now)?;
        let verdict = known.verdict.filter(|_| known.numbers == numbers(charge))?;
        Some(verdict.after(now - known.told_at))
    }

    fn find(&self, key: u128, cost: u32, now: Instant) -> Option<Known> {
        let shard = self.shard(key).lock();
        shard.get(&key)?.iter().find(|known| known.until > now && known.cost == cost).copied()
    }

    fn put(&self, key: u128, known: Known) {
        let mut shard = self.shard(key).lock();
        if shard.len() >= SHARD_MAX {
            shard.retain(|_, costs| costs.iter().any(|old| old.until > known.told_at));
        }
        if shard.len() >= SHARD_MAX {
            shard.clear();
        }
        let costs = shard.entry(key).or_default();
        costs.retain(|old| old.cost != known.cost && old.until > known.told_at);
        if costs.len() >= COSTS_MAX
            && let Some(first) = (0..costs.len()).min_by_key(|index| costs[*index].until)
        {
            costs.swap_remove(first);
        }
        costs.push(known);
    }

    fn shard(&self, key: u128) -> &Mutex<HashMap<u128, Costs>> {
        &self.shards[(key % SHARDS as u128) as usize]
    }
}

fn numbers(charge: &Charge<'_>) -> (u32, u64) {
    (charge.limit.requests(), charge.limit.debt_units_max())
}

/// A refusal by one limit, where the others were not asked.
pub(super) fn refused_by(charges: &Charges<'_>, position: usize, verdict: Verdict) -> Verdicts {
    let verdicts = (charges.charges.iter().enumerate())
        .map(|(other, charge)| if other == position { verdict } else { unasked(charge) })
        .collect();
    Verdicts { verdicts, ..Verdicts::default() }
}

/// A limit that was not asked is told of as if nobody had used it.
fn unasked(charge: &Charge<'_>) -> Verdict {
    let remaining = charge.limit.capacity();
    Verdict { outcome: Outcome::Admit { delay: Span::ZERO }, remaining, reset_after: Span::ZERO }
}

/// A verdict some time after it was given.
trait After {
    fn after(self, passed: Duration) -> Self;
}

impl After for Verdict {
    fn after(self, passed: Duration) -> Self {
        let outcome = match self.outcome {
            Outcome::Refuse { retry_after } => Outcome::Refuse { retry_after: less(retry_after, passed) },
            other => other,
        };
        Verdict { outcome, reset_after: less(self.reset_after, passed), ..self }
    }
}

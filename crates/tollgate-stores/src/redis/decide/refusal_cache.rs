//! Cache of refusals, so that a client that keeps asking costs no calls.
//!
//! A refused request changes nothing, so an identical request is refused too, until a refusing limit would admit it or is
//! charged or reset. The cache key contains all charges with their costs: another cost has another wait.
//!
//! A counter that refuses a cost of one cannot be charged by any node until it admits again, so the entry is exact. A
//! higher cost may be refused while other nodes still charge what is left, which lengthens the wait: where there are other
//! nodes, such refusals are not cached.
//!
//! An entry lives at most one second, so that a reset or a rule change on another node takes effect even if its message is
//! lost, and at most one window, so that the client's next violation is recorded. Limits that did not refuse may be up to a
//! second out of date: a limit shared by all clients changes constantly and must not invalidate the entry.

use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use parking_lot::Mutex;
use tollgate::Span;
use tollgate::algorithms::{Outcome, Verdict};
use tollgate::counters::{Charge, Charges, Effect, Verdicts};

use crate::redis::lease::{counter_key, minus};

const TTL_MAX: Duration = Duration::from_secs(1);
const SHARDS: usize = 16;
/// Entries per shard; beyond it expired entries are dropped, then all.
const SHARD_MAX: usize = 4_096;
/// Counters share generation numbers by hash. A collision only ends an entry early.
const GENERATIONS: usize = 1 << 16;

/// The cache.
pub(crate) struct RefusalCache {
    shards: [Mutex<HashMap<u64, Refusal>>; SHARDS],
    hasher: RandomState,
    /// How often each counter or client was charged or reset.
    generations: Box<[AtomicU32]>,
    resets: AtomicU64,
    hits: AtomicU64,
}

struct Refusal {
    decided_at: Instant,
    until: Instant,
    /// Sum of the generations of the refusing counters.
    generation: u32,
    verdicts: Box<[Verdict]>,
    cooldown: Option<Span>,
}

/// The state of the cache when a server was asked.
#[derive(Copy, Clone)]
pub(crate) struct Query {
    at: Instant,
    resets: u64,
}

impl Default for RefusalCache {
    fn default() -> Self {
        RefusalCache {
            shards: Default::default(),
            hasher: RandomState::new(),
            generations: (0..GENERATIONS).map(|_| AtomicU32::new(0)).collect(),
            resets: AtomicU64::new(0),
            hits: AtomicU64::new(0),
        }
    }
}

impl RefusalCache {
    /// The cached refusal of these charges.
    pub(crate) fn lookup(&self, charges: &Charges<'_>, now: Instant) -> Option<Verdicts> {
        let key = self.key(charges);
        let shard = self.shard(key).lock();
        let refusal = shard.get(&key).filter(|refusal| refusal.until > now)?;
        if refusal.generation != self.generation_of(charges, &refusal.verdicts) {
            return None;
        }
        self.hits.fetch_add(1, Ordering::Relaxed);
        let passed = now - refusal.decided_at;
        let verdicts = refusal.verdicts.iter().map(|verdict| aged(*verdict, passed)).collect();
        let cooldown = refusal.cooldown.map(|cooldown| minus(cooldown, passed));
        Some(Verdicts { verdicts, cooldown, in_cooldown: cooldown.is_some(), ..Verdicts::default() })
    }

    /// To be called before a server is asked.
    pub(crate) fn query(&self, at: Instant) -> Query {
        Query { at, resets: self.resets.load(Ordering::Acquire) }
    }

    /// Adds a refusal. The server decided between `query` and now. The entry ends by the earliest of these instants and its
    /// waits count from the latest, so that a client that obeys them does not come too early.
    pub(crate) fn insert(&self, charges: &Charges<'_>, verdicts: &Verdicts, query: Query, nodes: u32) {
        let judged = || charges.charges.iter().zip(&verdicts.verdicts);
        if nodes > 1 && judged().any(|(charge, verdict)| charge.cost > 1 && ttl(charge, verdict).is_some()) {
            return;
        }
        let cooldown = verdicts.cooldown.filter(|_| charges.penalty.is_some());
        let ttl = judged().filter_map(|(charge, verdict)| ttl(charge, verdict)).chain(cooldown).min();
        let Some(ttl) = ttl else { return };
        let decided_at = Instant::now();
        let refusal = Refusal {
            decided_at,
            until: query.at + Duration::from(ttl).min(TTL_MAX),
            generation: self.generation_of(charges, &verdicts.verdicts),
            verdicts: verdicts.verdicts.as_slice().into(),
            cooldown,
        };
        // A reset since the query may have come after the refusal.
        if self.resets.load(Ordering::Acquire) == query.resets {
            self.put(self.key(charges), refusal);
        }
    }

    /// Ends entries of counters that were just charged: their waits are longer now.
    pub(crate) fn invalidate(&self, charges: &Charges<'_>) {
        for charge in charges.charges.iter().filter(|charge| charge.cost > 0) {
            self.generation(counter_key(charge)).fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Ends entries of a counter to which a charge was refunded. An entry of another node, or of a refusal whose reply is
    /// processed at this moment, ends within a second.
    pub(crate) fn invalidate_counter(&self, charge: &Charge<'_>) {
        self.generation(counter_key(charge)).fetch_add(1, Ordering::Relaxed);
    }

    /// Ends entries of counters and clients that were reset.
    pub(crate) fn forget(&self, keys: &[u128]) {
        for key in keys {
            self.generation(*key).fetch_add(1, Ordering::Relaxed);
        }
        self.resets.fetch_add(1, Ordering::Release);
    }

    pub(crate) fn hits(&self) -> u64 {
        self.hits.load(Ordering::Relaxed)
    }

    /// The sum of the generations of what refused. Generations only grow, so a change of one changes the sum.
    fn generation_of(&self, charges: &Charges<'_>, verdicts: &[Verdict]) -> u32 {
        let judged = charges.charges.iter().zip(verdicts);
        let refused = judged.filter(|(charge, verdict)| ttl(charge, verdict).is_some());
        let keys = refused.map(|(charge, _)| counter_key(charge));
        let keys = keys.chain(charges.penalty.as_ref().map(|penalty| penalty.subject.0));
        keys.fold(0, |sum, key| sum.wrapping_add(self.generation(key).load(Ordering::Relaxed)))
    }

    /// A keyed hash of the charges, so that clients cannot construct collisions.
    fn key(&self, charges: &Charges<'_>) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        charges.penalty.as_ref().map(|penalty| penalty.subject.0).hash(&mut hasher);
        for charge in &charges.charges {
            let limit = (charge.limit.requests(), charge.limit.debt_units_max());
            (counter_key(charge), charge.cost, limit, charge.effect == Effect::Enforce).hash(&mut hasher);
        }
        hasher.finish()
    }

    fn put(&self, key: u64, refusal: Refusal) {
        let mut shard = self.shard(key).lock();
        if shard.len() >= SHARD_MAX {
            shard.retain(|_, old| old.until > refusal.decided_at);
        }
        if shard.len() >= SHARD_MAX {
            shard.clear();
        }
        shard.insert(key, refusal);
    }

    fn shard(&self, key: u64) -> &Mutex<HashMap<u64, Refusal>> {
        &self.shards[usize::from(key.to_le_bytes()[0]) % SHARDS]
    }

    fn generation(&self, key: u128) -> &AtomicU32 {
        &self.generations[(key % GENERATIONS as u128) as usize]
    }
}

/// How long a limit keeps refusing; none if it does not refuse, or never admits.
fn ttl(charge: &Charge<'_>, verdict: &Verdict) -> Option<Span> {
    match verdict.outcome {
        Outcome::Refuse { retry_after } if charge.effect == Effect::Enforce && charge.cost > 0 => {
            Some(retry_after.min(charge.limit.window_length()))
        }
        _ => None,
    }
}

/// A verdict some time after it was given.
fn aged(verdict: Verdict, passed: Duration) -> Verdict {
    let outcome = match verdict.outcome {
        Outcome::Refuse { retry_after } => Outcome::Refuse { retry_after: minus(retry_after, passed) },
        other => other,
    };
    Verdict { outcome, reset_after: minus(verdict.reset_after, passed), ..verdict }
}

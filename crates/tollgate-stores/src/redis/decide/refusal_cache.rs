//! RefusalCache that are known to last, answered without asking.
//!
//! A refused request changes nothing, so the answer to the next one like it is known: until a limit that refused would
//! admit it, and until such a limit is charged or reset. Like it is what asks the same of the same counters: another cost
//! has another time to wait, and what a counter says that was not asked nobody knows. What is told of limits that did not
//! refuse is up to a second old: a limit that all share is charged all the time, and must not make everybody ask again.
//! An answer is kept for a second at most, so that a reset or a change of rules on another node is seen even if
//! the message about it is lost; and never longer than the window, so that a client's next episode is noted.

use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use parking_lot::Mutex;
use tollgate::Span;
use tollgate::algorithms::{Outcome, Verdict};
use tollgate::counters::{Charge, Charges, Effect, Verdicts};

use crate::redis::lease::{key, less};

const KEPT_MAX: Duration = Duration::from_secs(1);
const SHARDS: usize = 16;
/// Answers remembered in one shard; beyond it the oldest are dropped all at once.
const SHARD_MAX: usize = 4_096;
/// Places for counts of changes. Counters that share one make each other's answers end early, no more.
const PLACES: usize = 1 << 16;

/// What is known to be refused.
pub(crate) struct RefusalCache {
    /// Answers by what was asked.
    shards: [Mutex<HashMap<u64, Known>>; SHARDS],
    questions: RandomState,
    /// How often counters and clients were charged or reset.
    changes: Box<[AtomicU32]>,
    resets: AtomicU64,
    hits: AtomicU64,
}

/// A refusal, as it was told.
struct Known {
    told_at: Instant,
    until: Instant,
    /// How often what refused had changed.
    changes: u32,
    verdicts: Box<[Verdict]>,
    /// How long the client is kept out.
    cooldown: Option<Span>,
}

/// The moment at which a server was asked.
#[derive(Copy, Clone)]
pub(crate) struct Asked {
    at: Instant,
    resets: u64,
}

impl Default for RefusalCache {
    fn default() -> Self {
        RefusalCache {
            shards: Default::default(),
            questions: RandomState::new(),
            changes: (0..PLACES).map(|_| AtomicU32::new(0)).collect(),
            resets: AtomicU64::new(0),
            hits: AtomicU64::new(0),
        }
    }
}

impl RefusalCache {
    /// The answer to these charges, if it is known.
    pub(crate) fn answer(&self, charges: &Charges<'_>, now: Instant) -> Option<Verdicts> {
        let question = self.question(charges);
        let shard = self.shard(question).lock();
        let known = shard.get(&question).filter(|known| known.until > now)?;
        if known.changes != self.changes_of(charges, &known.verdicts) {
            return None;
        }
        self.hits.fetch_add(1, Ordering::Relaxed);
        let passed = now - known.told_at;
        let verdicts = known.verdicts.iter().map(|verdict| verdict.after(passed)).collect();
        let cooldown = known.cooldown.map(|cooldown| less(cooldown, passed));
        Some(Verdicts { verdicts, cooldown, in_cooldown: cooldown.is_some() })
    }

    /// To be called before a server is asked.
    pub(crate) fn asking(&self, at: Instant) -> Asked {
        Asked { at, resets: self.resets.load(Ordering::Acquire) }
    }

    /// Remembers a refusal. The server decided at some moment since it was asked: what is known ends at the earliest
    /// moment that this leaves open, and waits are told for the latest, or an obedient client would come too early.
    pub(crate) fn remember(&self, charges: &Charges<'_>, verdicts: &Verdicts, asked: Asked) {
        let cooldown = verdicts.cooldown.filter(|_| charges.penalty.is_some());
        let refused = charges.charges.iter().zip(&verdicts.verdicts);
        let kept = refused.filter_map(|(charge, verdict)| kept(charge, verdict)).chain(cooldown).min();
        let Some(kept) = kept else { return };
        let told_at = Instant::now();
        let known = Known {
            told_at,
            until: asked.at + Duration::from(kept).min(KEPT_MAX),
            changes: self.changes_of(charges, &verdicts.verdicts),
            verdicts: verdicts.verdicts.as_slice().into(),
            cooldown,
        };
        // Reset meanwhile: perhaps after it was refused.
        if self.resets.load(Ordering::Acquire) == asked.resets {
            self.put(self.question(charges), known);
        }
    }

    /// These have just been charged: who is refused next has longer to wait.
    pub(crate) fn outdate(&self, charges: &Charges<'_>) {
        for charge in charges.charges.iter().filter(|charge| charge.cost > 0) {
            self.place(key(charge)).fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Forgets what is known of these counters and clients: somebody reset them.
    pub(crate) fn forget(&self, keys: &[u128]) {
        for key in keys {
            self.place(*key).fetch_add(1, Ordering::Relaxed);
        }
        self.resets.fetch_add(1, Ordering::Release);
    }

    pub(crate) fn hits(&self) -> u64 {
        self.hits.load(Ordering::Relaxed)
    }

    /// How often what refused was changed, all together: counts only grow, so that a sum tells whether one has.
    fn changes_of(&self, charges: &Charges<'_>, verdicts: &[Verdict]) -> u32 {
        let refused = charges.charges.iter().zip(verdicts);
        let refused = refused.filter(|(charge, verdict)| kept(charge, verdict).is_some());
        let keys = refused.map(|(charge, _)| key(charge));
        let keys = keys.chain(charges.penalty.as_ref().map(|penalty| penalty.subject.0));
        keys.fold(0, |sum, key| sum.wrapping_add(self.place(key).load(Ordering::Relaxed)))
    }

    /// What is asked, in short. The hash is keyed: nobody can make two of them alike.
    fn question(&self, charges: &Charges<'_>) -> u64 {
        let mut hasher = self.questions.build_hasher();
        charges.penalty.as_ref().map(|penalty| penalty.subject.0).hash(&mut hasher);
        for charge in &charges.charges {
            let numbers = (charge.limit.requests(), charge.limit.debt_units_max());
            (key(charge), charge.cost, numbers, charge.effect == Effect::Enforce).hash(&mut hasher);
        }
        hasher.finish()
    }

    fn put(&self, question: u64, known: Known) {
        let mut shard = self.shard(question).lock();
        if shard.len() >= SHARD_MAX {
            shard.retain(|_, old| old.until > known.told_at);
        }
        if shard.len() >= SHARD_MAX {
            shard.clear();
        }
        shard.insert(question, known);
    }

    fn shard(&self, question: u64) -> &Mutex<HashMap<u64, Known>> {
        &self.shards[usize::from(question.to_le_bytes()[0]) % SHARDS]
    }

    fn place(&self, key: u128) -> &AtomicU32 {
        &self.changes[(key % PLACES as u128) as usize]
    }
}

/// How long a limit that refuses is known to go on so. Of one that never admits nobody asks often.
fn kept(charge: &Charge<'_>, verdict: &Verdict) -> Option<Span> {
    match verdict.outcome {
        Outcome::Refuse { retry_after } if charge.effect == Effect::Enforce && charge.cost > 0 => {
            Some(retry_after.min(charge.limit.window_length()))
        }
        _ => None,
    }
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

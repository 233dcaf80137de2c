//! Leases: a busy counter's units, taken from the server in slices and given out here.
//!
//! A slice is charged on the server before any of it is used, so what all nodes admit together is never more than the
//! limit: whatever becomes of a node, its slice was counted. A slice is valid for two seconds, or until its window ends,
//! reckoned from before it was asked for; what is left of it goes back with the next call. A bucket counts what is out as
//! taken, so that it does not refill behind a slice's back.
//!
//! A node asks only for counters that it is asked for often itself. When a counter has nothing left, or of several nodes
//! next to nothing, each asks ten times a second at most and refuses in between: twenty nodes that fight for the last
//! units would else ask for each.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use parking_lot::Mutex;
use tollgate::Span;
use tollgate::algorithms::{Outcome, Verdict};
use tollgate::counters::{Charge, CounterId, Effect};
use tollgate::identity::Subject;
use tollgate::limit::{Algorithm, Limit};

use super::hot::{BUSY, Sketch, per_second};
use super::script::{Grant, LEASE, LeaseRequest, Settle};

const SHARDS: usize = 16;
/// Leases held in one shard at most; beyond it busy counters are asked for one by one.
const SHARD_MAX: usize = 256;
/// How long a counter that nobody asks for is still known to be busy: longer than a refusal is remembered.
const REMEMBERED_FOR: Duration = Duration::from_secs(4);
/// Of a limit that holds less, slices would be single units.
const CAPACITY_MIN: u32 = 2 * BUSY;
/// How long a node waits before it asks again for a counter that has little left.
const SCARCE_FOR: Duration = Duration::from_millis(100);
/// A counter has little left when less than this part of it remains.
const SCARCE_PART: u32 = 200;

/// The leases of this node.
pub(super) struct Leases {
    shards: [Mutex<Shard>; SHARDS],
    nodes: AtomicU32,
    served: AtomicU64,
}

struct Shard {
    sketch: Sketch,
    held: HashMap<u128, Held>,
}

/// One lease.
struct Held {
    owner: Owner,
    slice: Slice,
    /// Whether a call is under way that settles the slice and asks for the next.
    renewing: bool,
    /// Whether the last call found little left; until then nothing is asked for.
    scarce_until: Option<Instant>,
    /// What the server said last, and to which cost.
    told: Verdict,
    told_cost: u32,
    /// Units a second that are asked for here, as far as is known.
    rate: u32,
    used_at: Instant,
}

/// What is left of what was granted.
#[derive(Copy, Clone)]
struct Slice {
    granted: u32,
    left: u32,
    since: Instant,
    until: Instant,
    used_at: Instant,
    born: u64,
    mark: u64,
}

/// Whose lease it is, kept so that it can be given back when nobody asks any more.
#[derive(Clone)]
pub(super) struct Owner {
    pub(super) subject: Subject,
    pub(super) counter: CounterId,
    pub(super) rule: Box<str>,
    pub(super) limit: Limit,
}

/// How a charge is served.
#[derive(Copy, Clone, Debug)]
pub(super) enum Serving {
    /// From a lease: it is taken.
    Leased(Verdict),
    /// It is known that there is little left and that nothing is to be asked for yet.
    Scarce(Verdict),
    /// By the server.
    Ask,
    /// By the server, and a slice is wanted.
    AskFor(LeaseRequest),
}

impl Leases {
    pub(super) fn new(now: Instant) -> Self {
        let shard = |_| Mutex::new(Shard { sketch: Sketch::new(now), held: HashMap::new() });
        Leases { shards: std::array::from_fn(shard), nodes: AtomicU32::new(1), served: AtomicU64::new(0) }
    }

    /// How many nodes share the limits.
    pub(super) fn set_nodes(&self, nodes: u32) {
        self.nodes.store(nodes.max(1), Ordering::Relaxed);
    }

    pub(super) fn nodes(&self) -> u32 {
        self.nodes.load(Ordering::Relaxed)
    }

    /// Takes a charge from a lease, or says how to ask for it.
    pub(super) fn take(&self, charge: &Charge<'_>, now: Instant) -> Serving {
        if !can_be_leased(charge) {
            return Serving::Ask;
        }
        let nodes = u16::try_from(self.nodes()).unwrap_or(u16::MAX);
        let key = key(charge.subject, charge.counter);
        let mut shard = self.shard(key).lock();
        let shard = &mut *shard;
        if let Some(held) = shard.held.get_mut(&key) {
            let serving = held.serve(charge, nodes, now);
            match serving {
                Serving::Leased(_) => _ = self.served.fetch_add(1, Ordering::Relaxed),
                // Little use, and it is not worth it any more.
                Serving::AskFor(LeaseRequest { want: 0, .. }) => _ = shard.held.remove(&key),
                _ => {}
            }
            return serving;
        }
        let Some(rate) = shard.sketch.touch(key, charge.cost, now) else { return Serving::Ask };
        if shard.held.len() >= SHARD_MAX {
            return Serving::Ask;
        }
        shard.held.insert(key, Held::begin(charge, rate, now));
        Serving::AskFor(LeaseRequest { want: wanted(rate, charge.limit), nodes, settle: None })
    }

    /// What this node holds of a charge's counter.
    pub(super) fn left(&self, charge: &Charge<'_>, now: Instant) -> u32 {
        let key = key(charge.subject, charge.counter);
        let shard = self.shard(key).lock();
        shard.held.get(&key).filter(|held| now < held.slice.until).map_or(0, |held| held.slice.left)
    }

    /// Puts back what a decision took from a lease and did not use after all.
    pub(super) fn put_back(&self, charge: &Charge<'_>) {
        let key = key(charge.subject, charge.counter);
        if let Some(held) = self.shard(key).lock().held.get_mut(&key) {
            held.slice.left = held.slice.left.saturating_add(charge.cost).min(held.slice.granted);
        }
    }

    /// What a call that asked for a slice was told. `asked_at` is from before it was sent, so that the lease ends here
    /// before it ends there.
    pub(super) fn granted(
        &self,
        charge: &Charge<'_>,
        request: &LeaseRequest,
        verdict: Verdict,
        grant: Grant,
        asked_at: Instant,
    ) {
        let key = key(charge.subject, charge.counter);
        let mut shard = self.shard(key).lock();
        let Some(held) = shard.held.get_mut(&key) else { return };
        held.renewing = false;
        (held.told, held.told_cost) = (verdict, charge.cost);
        held.slice = Slice {
            granted: grant.granted,
            left: grant.granted,
            since: asked_at,
            until: asked_at + Duration::from(grant.valid),
            used_at: asked_at,
            born: grant.born,
            mark: grant.mark,
        };
        let refused = matches!(verdict.outcome, Outcome::Refuse { .. });
        // Alone, a node takes the last unit; many would fight for it, call by call.
        let few = request.nodes > 1 && verdict.remaining <= charge.limit.capacity() / SCARCE_PART;
        let scarce = refused || few && grant.granted < request.want;
        held.scarce_until = scarce.then(|| asked_at + SCARCE_FOR);
    }

    /// A call that asked for a slice gave no answer. What was granted by it, if anything, is lost; that errs on the safe
    /// side.
    pub(super) fn failed(&self, charge: &Charge<'_>) {
        let key = key(charge.subject, charge.counter);
        self.shard(key).lock().held.remove(&key);
    }

    /// Leases that ended and that nobody renews, with what is to be given back. Counters that were asked for of late are
    /// still known to be busy.
    pub(super) fn ended(&self, now: Instant) -> Vec<(Owner, Settle)> {
        let mut ended = Vec::new();
        for shard in &self.shards {
            let mut shard = shard.lock();
            let over = shard.held.values_mut().filter(|held| !held.renewing && held.slice.until <= now);
            ended.extend(over.filter_map(Held::hand_over));
            shard.held.retain(|_, held| held.renewing || now < held.used_at + REMEMBERED_FOR);
        }
        ended
    }

    /// All leases, with what is to be given back.
    pub(super) fn all(&self) -> Vec<(Owner, Settle)> {
        let mut all = Vec::new();
        for shard in &self.shards {
            all.extend(shard.lock().held.drain().filter_map(|(_, mut held)| held.hand_over()));
        }
        all
    }

    /// Forgets a lease without giving anything back: its counter was reset.
    pub(super) fn revoke(&self, key: u128) {
        self.shard(key).lock().held.remove(&key);
    }

    /// Forgets all leases: the servers that granted them are no longer the ones that count.
    pub(super) fn revoke_all(&self) {
        self.shards.iter().for_each(|shard| shard.lock().held.clear());
    }

    /// Decisions on one counter that no server was asked for.
    pub(super) fn served(&self) -> u64 {
        self.served.load(Ordering::Relaxed)
    }

    /// Leases held, and units in them that may still be used here. If a server that granted them is lost together with
    /// its memory of them, that many may be admitted beyond a limit.
    pub(super) fn outstanding(&self, now: Instant) -> (usize, u64) {
        let mut total = (0, 0);
        for shard in &self.shards {
            let shard = shard.lock();
            let live = shard.held.values().filter(|held| held.slice.until > now && held.slice.left > 0);
            for held in live {
                total = (total.0 + 1, total.1 + u64::from(held.slice.left));
            }
        }
        total
    }

    fn shard(&self, key: u128) -> &Mutex<Shard> {
        &self.shards[(key % SHARDS as u128) as usize]
    }
}

impl Held {
    /// A lease that is being asked for.
    fn begin(charge: &Charge<'_>, rate: u32, now: Instant) -> Self {
        let owner = Owner {
            subject: charge.subject,
            counter: charge.counter,
            rule: charge.rule.into(),
            limit: charge.limit.clone(),
        };
        let slice = Slice { granted: 0, left: 0, since: now, until: now, used_at: now, born: 0, mark: 0 };
        let told =
            Verdict { outcome: Outcome::Admit { delay: Span::ZERO }, remaining: 0, reset_after: Span::ZERO };
        Held {
            owner,
            slice,
            renewing: true,
            scarce_until: None,
            told,
            told_cost: charge.cost,
            rate,
            used_at: now,
        }
    }

    fn serve(&mut self, charge: &Charge<'_>, nodes: u16, now: Instant) -> Serving {
        self.used_at = now;
        // Numbers that changed are the server's business at once.
        let same = self.owner.limit == *charge.limit;
        if same && now < self.slice.until && charge.cost <= self.slice.left {
            self.slice.left -= charge.cost;
            self.slice.used_at = now;
            return Serving::Leased(self.verdict(now));
        }
        if self.renewing {
            return Serving::Ask;
        }
        // Another cost would have another time to wait.
        if let Some(until) = self.scarce_until.filter(|until| same && now < *until)
            && charge.effect == Effect::Enforce
            && charge.cost == self.told_cost
        {
            return Serving::Scarce(self.refusal(until - now, now));
        }
        self.learn_rate();
        let settle = self.hand_over().map(|(_, settle)| settle);
        self.owner.limit = charge.limit.clone();
        self.renewing = true;
        let want = Some(wanted(self.rate, charge.limit)).filter(|want| *want >= BUSY).unwrap_or(0);
        Serving::AskFor(LeaseRequest { want, nodes, settle })
    }

    /// How busy the counter is, by how fast the slice went.
    fn learn_rate(&mut self) {
        let Slice { granted, left, since, used_at, .. } = self.slice;
        if granted == 0 {
            return;
        }
        let seen = per_second(granted - left, used_at.saturating_duration_since(since));
        // A slice that is used up says only how much there was, not how much was asked for.
        self.rate = if left == 0 { seen.max(self.rate / 2) } else { seen };
    }

    /// What is to be given back; afterwards nothing is held.
    fn hand_over(&mut self) -> Option<(Owner, Settle)> {
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
            reset_after: less(self.told.reset_after, now.saturating_duration_since(self.slice.since)),
        }
    }

    /// Refused until it is asked for again, or longer if the server said so.
    fn refusal(&self, wait: Duration, now: Instant) -> Verdict {
        let passed = now.saturating_duration_since(self.slice.since);
        let told = match self.told.outcome {
            Outcome::Refuse { retry_after } => less(retry_after, passed),
            _ => Span::ZERO,
        };
        Verdict {
            outcome: Outcome::Refuse { retry_after: told.max(Span::from(wait)) },
            remaining: self.slice.left,
            reset_after: less(self.told.reset_after, passed),
        }
    }
}

/// A log cannot lend: its units leave one by one, a window after they were used. A queue cannot: its order is its point.
fn can_be_leased(charge: &Charge<'_>) -> bool {
    let algorithm = matches!(
        charge.limit.algorithm(),
        Algorithm::TokenBucket | Algorithm::Gcra | Algorithm::FixedWindow | Algorithm::SlidingWindowCounter
    );
    let worth_it = charge.limit.capacity() >= CAPACITY_MIN && charge.limit.max_delay().is_none();
    algorithm && worth_it && charge.leases && charge.cost > 0
}

/// What is used at this rate in the life of a lease.
fn wanted(rate: u32, limit: &Limit) -> u32 {
    let seconds = u32::try_from(LEASE.as_secs_ceil()).unwrap_or(1);
    rate.saturating_mul(seconds).min(limit.capacity())
}

fn less(span: Span, passed: Duration) -> Span {
    Span::from_micros(span.as_micros().saturating_sub(Span::from(passed).as_micros()))
}

/// The name of a counter among leases and refusals.
pub(super) fn key(subject: Subject, counter: CounterId) -> u128 {
    subject.0 ^ counter.0
}

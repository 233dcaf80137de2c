//! LeaseTable: a busy counter's units, taken from the server in slices and given out here.
//!
//! A slice is charged on the server before any of it is used, so what all nodes admit together is never more than the
//! limit: whatever becomes of a node, its slice was counted. A slice is valid for two seconds, or until its window ends,
//! reckoned from before it was asked for; what is left of it goes back with the next call, to a sliding window in the next
//! window too, since what is counted of the one before weighs on it. Nothing is taken from a slice that is being given
//! back, and none is given back twice, so what goes back was certainly not used. A bucket counts what is out as
//! taken, so that it does not refill behind a slice's back. What comes in while nothing is known to be used is lost to it,
//! so the first slice of a bucket is small and soon told of.
//!
//! A node asks only for counters that it is asked for often itself. When a counter has nothing left, or of several nodes
//! next to nothing, each asks ten times a second at most and refuses in between: twenty nodes that fight for the last
//! units would else ask for each.

pub(crate) mod cooldowns;
mod held;
pub(crate) mod hot_keys;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use parking_lot::Mutex;
use tollgate::Span;
use tollgate::algorithms::{Outcome, Verdict};
use tollgate::counters::{Charge, CounterId};
use tollgate::identity::Subject;
use tollgate::limit::{Algorithm, Limit};

use self::held::{Held, Slice, first_wanted};
use crate::redis::lease::hot_keys::Sketch;
use crate::redis::script::{Grant, LeaseRequest, Settle};
use crate::redis::topology::LeaseAction;

const SHARDS: usize = 16;
/// LeaseTable held in one shard at most; beyond it busy counters are asked for one by one.
const SHARD_MAX: usize = 256;
/// How long a counter that nobody asks for is still known to be busy: longer than a refusal is remembered.
const REMEMBERED_FOR: Duration = Duration::from_secs(4);
/// How long a node waits before it asks again for a counter that has little left.
const SCARCE_FOR: Duration = Duration::from_millis(100);
/// A counter has little left when less than this part of it remains.
const SCARCE_PART: u32 = 200;

/// The leases of this node.
pub(crate) struct LeaseTable {
    shards: [Mutex<Shard>; SHARDS],
    capacity_min: u32,
    nodes: AtomicU32,
    served: AtomicU64,
}

struct Shard {
    sketch: Sketch,
    held: HashMap<u128, Held>,
    /// The last that was given out.
    ticket: Ticket,
}

/// Which wish for a slice, or which slice, a decision has to do with. What is told of one late, when the counter was
/// reset or the slice renewed meanwhile, says nothing of the next.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ticket(u64);

/// Whose lease it is, kept so that it can be given back when nobody asks any more.
#[derive(Clone)]
pub(crate) struct Owner {
    pub(crate) subject: Subject,
    pub(crate) counter: CounterId,
    pub(crate) rule: Box<str>,
    pub(crate) limit: Limit,
}

/// How a charge is served.
#[derive(Copy, Clone, Debug)]
pub(crate) enum Serving {
    /// From a lease: it is taken.
    Leased(Verdict, Ticket),
    /// It is known that there is little left and that nothing is to be asked for yet.
    Scarce(Verdict),
    /// By the server.
    Ask,
    /// By the server, and a slice is wanted.
    AskFor(LeaseRequest, Ticket),
}

impl Owner {
    /// Whether it is paid back over time.
    pub(crate) fn is_bucket(&self) -> bool {
        is_bucket(&self.limit)
    }
}

impl LeaseTable {
    /// No limit that holds less than `capacity_min` is leased.
    pub(crate) fn new(capacity_min: u32, now: Instant) -> Self {
        let shard = |_| {
            let sketch = Sketch::new(now);
            Mutex::new(Shard { sketch, held: HashMap::new(), ticket: Ticket(0) })
        };
        let shards = std::array::from_fn(shard);
        LeaseTable { shards, capacity_min, nodes: AtomicU32::new(1), served: AtomicU64::new(0) }
    }

    /// How many nodes share the limits.
    pub(crate) fn set_nodes(&self, nodes: u32) {
        self.nodes.store(nodes.max(1), Ordering::Relaxed);
    }

    pub(crate) fn nodes(&self) -> u32 {
        self.nodes.load(Ordering::Relaxed)
    }

    /// Takes a charge from a lease, or says how to ask for it.
    pub(crate) fn take(&self, charge: &Charge<'_>, now: Instant) -> Serving {
        if !can_be_leased(charge) || charge.limit.capacity() < self.capacity_min {
            return Serving::Ask;
        }
        let nodes = u16::try_from(self.nodes()).unwrap_or(u16::MAX);
        let key = key(charge);
        let mut shard = self.shard(key).lock();
        let shard = &mut *shard;
        let next = Ticket(shard.ticket.0 + 1);
        let serving = if let Some(held) = shard.held.get_mut(&key) {
            held.serve(charge, nodes, next, now)
        } else {
            let Some(rate) = shard.sketch.touch(key, charge.cost, now) else { return Serving::Ask };
            if shard.held.len() >= SHARD_MAX {
                return Serving::Ask;
            }
            shard.held.insert(key, Held::begin(charge, rate, next, now));
            Serving::AskFor(
                LeaseRequest { want: first_wanted(rate, charge.limit), nodes, settle: None },
                next,
            )
        };
        match serving {
            Serving::Leased(..) => _ = self.served.fetch_add(1, Ordering::Relaxed),
            Serving::AskFor(..) => shard.ticket = next,
            _ => {}
        }
        serving
    }

    /// What this node holds of a charge's counter.
    pub(crate) fn left(&self, charge: &Charge<'_>, now: Instant) -> u32 {
        let key = key(charge);
        let shard = self.shard(key).lock();
        shard.held.get(&key).map_or(0, |held| held.left(now))
    }

    /// Puts back what a decision took from a slice and did not use after all. If the slice is settled it stays counted.
    pub(crate) fn put_back(&self, charge: &Charge<'_>, ticket: Ticket) {
        let key = key(charge);
        if let Some(held) = self.shard(key).lock().of(key, ticket) {
            held.slice.left = held.slice.left.saturating_add(charge.cost).min(held.slice.granted);
        }
    }

    /// What a call that asked for a slice was told. `asked_at` is from before it was sent, so that the lease ends here
    /// before it ends there.
    pub(crate) fn granted(
        &self,
        charge: &Charge<'_>,
        (request, ticket): (&LeaseRequest, Ticket),
        verdict: Verdict,
        grant: Grant,
        asked_at: Instant,
    ) {
        let key = key(charge);
        let mut shard = self.shard(key).lock();
        let Some(held) = shard.of(key, ticket) else { return };
        if request.want == 0 {
            // Little use: it was only settled.
            shard.held.remove(&key);
            return;
        }
        held.renewing = false;
        (held.told, held.told_at, held.told_cost) = (verdict, Instant::now(), charge.cost);
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

    /// A call that asked for a slice gave no answer, or nobody waits for it any more. What was granted by it, if anything,
    /// is lost; that errs on the safe side.
    pub(crate) fn failed(&self, charge: &Charge<'_>, ticket: Ticket) {
        let key = key(charge);
        let mut shard = self.shard(key).lock();
        if shard.of(key, ticket).is_some_and(|held| held.renewing) {
            shard.held.remove(&key);
        }
    }

    /// A call that would have settled a slice and asked for the next was certainly not done: the slice is still to be
    /// given back.
    pub(crate) fn withdrawn(&self, charge: &Charge<'_>, request: &LeaseRequest, ticket: Ticket) {
        let key = key(charge);
        let mut shard = self.shard(key).lock();
        let Some(held) = shard.of(key, ticket).filter(|held| held.renewing) else { return };
        held.renewing = false;
        if let Some(Settle { granted, unspent, .. }) = request.settle {
            // Nothing is taken from it any more: it may be of other numbers.
            held.slice = Slice { granted, left: unspent, until: held.slice.since, ..held.slice };
        }
    }

    /// LeaseTable that ended and that nobody renews, with what is to be given back. Counters that were asked for of late are
    /// still known to be busy.
    pub(crate) fn ended(&self, now: Instant) -> Vec<(Owner, Settle)> {
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
    pub(crate) fn all(&self) -> Vec<(Owner, Settle)> {
        let mut all = Vec::new();
        for shard in &self.shards {
            all.extend(shard.lock().held.drain().filter_map(|(_, mut held)| held.hand_over()));
        }
        all
    }

    /// Forgets a lease without giving anything back: its counter was reset.
    pub(crate) fn revoke(&self, key: u128) {
        self.shard(key).lock().held.remove(&key);
    }

    /// Other servers count than before: what becomes of each lease, and what is to be given back. A slice that is asked
    /// for at this moment comes from one that counts.
    pub(crate) fn sort_out(&self, action: impl Fn(Subject) -> LeaseAction) -> Vec<(Owner, Settle)> {
        let mut moved = Vec::new();
        for shard in &self.shards {
            shard.lock().held.retain(|_, held| match action(held.owner.subject) {
                LeaseAction::Keep => true,
                LeaseAction::Return => {
                    moved.extend(held.hand_over());
                    true
                }
                LeaseAction::Revoke => false,
            });
        }
        moved
    }

    /// Decisions on one counter that no server was asked for.
    pub(crate) fn served(&self) -> u64 {
        self.served.load(Ordering::Relaxed)
    }

    /// LeaseTable held, and units in them that may still be used here. If a server that granted them is lost together with
    /// its memory of them, that many may be admitted beyond a limit.
    pub(crate) fn outstanding(&self, now: Instant) -> (usize, u64) {
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

impl Shard {
    /// The lease of a counter, if it is the one that a decision has to do with.
    fn of(&mut self, key: u128, ticket: Ticket) -> Option<&mut Held> {
        self.held.get_mut(&key).filter(|held| held.ticket == ticket)
    }
}

/// A log cannot lend: its units leave one by one, a window after they were used. A queue cannot: its order is its point.
fn can_be_leased(charge: &Charge<'_>) -> bool {
    let algorithm = matches!(
        charge.limit.algorithm(),
        Algorithm::TokenBucket | Algorithm::Gcra | Algorithm::FixedWindow | Algorithm::SlidingWindowCounter
    );
    algorithm && charge.leases && charge.cost > 0 && charge.limit.max_delay().is_none()
}

fn is_bucket(limit: &Limit) -> bool {
    matches!(limit.algorithm(), Algorithm::TokenBucket | Algorithm::Gcra)
}

/// What is left of a span.
pub(crate) fn less(span: Span, passed: Duration) -> Span {
    Span::from_micros(span.as_micros().saturating_sub(Span::from(passed).as_micros()))
}

/// The name of a counter among leases and refusals.
pub(crate) fn key(charge: &Charge<'_>) -> u128 {
    charge.subject.0 ^ charge.counter.0
}

#[cfg(test)]
mod tests {
    use tollgate::counters::Effect;
    use tollgate::limit::Window;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn limit() -> Limit {
        Limit::new(Algorithm::FixedWindow, 1_000, Window::Length(Span::from_secs(60))).unwrap()
    }

    fn charge(limit: &Limit) -> Charge<'_> {
        let (subject, counter, effect) = (Subject(1), CounterId(2), Effect::Enforce);
        Charge { subject, counter, rule: "r", limit, cost: 1, effect, leases: true }
    }

    fn admitted(remaining: u32) -> Verdict {
        Verdict { outcome: Outcome::Admit { delay: Span::ZERO }, remaining, reset_after: Span::ZERO }
    }

    /// Asks until a slice is wished for.
    fn wish(leases: &LeaseTable, charge: &Charge<'_>, now: Instant) -> (LeaseRequest, Ticket) {
        let wish = (0..200).find_map(|_| match leases.take(charge, now) {
            Serving::AskFor(request, ticket) => Some((request, ticket)),
            _ => None,
        });
        wish.unwrap()
    }

    fn grant(
        leases: &LeaseTable,
        charge: &Charge<'_>,
        wish: &(LeaseRequest, Ticket),
        mark: u64,
        now: Instant,
    ) {
        let grant = Grant { granted: 10, valid: Span::from_secs(2), born: 1, mark };
        leases.granted(charge, (&wish.0, wish.1), admitted(500), grant, now);
    }

    fn units(leases: &LeaseTable, now: Instant) -> u64 {
        leases.outstanding(now).1
    }

    fn take(leases: &LeaseTable, charge: &Charge<'_>, now: Instant) -> Ticket {
        match leases.take(charge, now) {
            Serving::Leased(_, ticket) => ticket,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_first_slice_of_a_bucket_is_small_and_the_next_lasts() {
        let now = Instant::now();
        let ask = |algorithm| {
            let limit = Limit::new(algorithm, 10_000, Window::Length(Span::from_secs(60))).unwrap();
            let (leases, charge) = (LeaseTable::new(1, now), charge(&limit));
            let (first, ticket) = wish(&leases, &charge, now);
            let grant = Grant { granted: first.want, valid: Span::from_secs(2), born: 1, mark: 1 };
            leases.granted(&charge, (&first, ticket), admitted(500), grant, now);
            let later = now + SECOND / 4;
            (0..first.want).for_each(|_| _ = take(&leases, &charge, later));
            let (next, _) = wish(&leases, &charge, later);
            (first.want, next.want)
        };
        // Twenty within the least time that a pace is told from: 400 a second.
        assert_eq!(ask(Algorithm::TokenBucket), (200, 1_600));
        assert_eq!(ask(Algorithm::Gcra).0, 200);
        assert_eq!(ask(Algorithm::FixedWindow).0, 800);
    }

    #[test]
    fn the_last_slices_of_a_window_do_not_make_a_counter_seem_idle() {
        let (limit, now) = (limit(), Instant::now());
        let (leases, charge) = (LeaseTable::new(1, now), charge(&limit));
        let (mut asked, millisecond) = (wish(&leases, &charge, now), SECOND / 1_000);
        let at_first = asked.0.want;
        // Two are granted for the last ten milliseconds; one is used, or both are.
        for used in [1, 2, 1] {
            let grant = Grant { granted: 2, valid: Span::from_millis(10), born: 1, mark: 1 };
            leases.granted(&charge, (&asked.0, asked.1), admitted(500), grant, now);
            (0..used).for_each(|_| _ = take(&leases, &charge, now + millisecond));
            asked = wish(&leases, &charge, now + 10 * millisecond);
            assert_eq!(asked.0.want, at_first);
        }
    }

    #[test]
    fn what_was_taken_from_a_slice_is_not_put_back_into_the_next() {
        let (limit, now) = (limit(), Instant::now());
        let (leases, charge) = (LeaseTable::new(1, now), charge(&limit));
        let first = wish(&leases, &charge, now);
        grant(&leases, &charge, &first, 1, now);
        let taken: Vec<Ticket> = (0..5).map(|_| take(&leases, &charge, now)).collect();
        // The window ends, and the next slice is of the next window.
        let second = wish(&leases, &charge, now + 3 * SECOND);
        assert_eq!(second.0.settle.map(|settle| settle.unspent), Some(5));
        grant(&leases, &charge, &second, 2, now + 3 * SECOND);
        take(&leases, &charge, now + 3 * SECOND);
        leases.put_back(&charge, taken[0]);
        assert_eq!(units(&leases, now + 3 * SECOND), 9, "of ten, one is used");
    }

    #[test]
    fn a_slice_of_before_a_reset_is_not_taken_for_one_of_after_it() {
        let (limit, now) = (limit(), Instant::now());
        let (leases, charge) = (LeaseTable::new(1, now), charge(&limit));
        let before = wish(&leases, &charge, now);
        leases.revoke(key(&charge));
        let after = wish(&leases, &charge, now);
        grant(&leases, &charge, &before, 1, now);
        assert_eq!(units(&leases, now), 0);
        leases.failed(&charge, before.1);
        grant(&leases, &charge, &after, 1, now);
        assert_eq!(units(&leases, now), 10);
        leases.failed(&charge, before.1);
        assert_eq!(units(&leases, now), 10, "the failure of the first is not one of the second");
    }

    #[test]
    fn a_call_that_was_not_made_gives_nothing_away() {
        let (limit, now) = (limit(), Instant::now());
        let (leases, charge) = (LeaseTable::new(1, now), charge(&limit));
        let first = wish(&leases, &charge, now);
        grant(&leases, &charge, &first, 1, now);
        let (request, ticket) = wish(&leases, &charge, now + 3 * SECOND);
        leases.withdrawn(&charge, &request, ticket);
        let ended = leases.ended(now + 3 * SECOND);
        assert_eq!(ended.len(), 1);
        assert_eq!(Some(ended[0].1), request.settle);
    }

    #[test]
    fn nothing_left_is_refused_by_the_server_who_knows_the_wait() {
        let (limit, now) = (limit(), Instant::now());
        let (leases, charge) = (LeaseTable::new(1, now), charge(&limit));
        leases.set_nodes(3);
        let (request, ticket) = wish(&leases, &charge, now);
        leases.granted(&charge, (&request, ticket), admitted(0), Grant::default(), now);
        assert!(matches!(leases.take(&charge, now), Serving::AskFor(..)));
        let refused = Verdict { outcome: Outcome::Refuse { retry_after: Span::from_secs(9) }, ..admitted(0) };
        let (request, ticket) = match leases.take(&charge, now) {
            Serving::Ask => (request, Ticket(ticket.0 + 1)),
            other => panic!("{other:?}"),
        };
        leases.granted(&charge, (&request, ticket), refused, Grant::default(), now);
        let Serving::Scarce(Verdict { outcome: Outcome::Refuse { retry_after }, .. }) =
            leases.take(&charge, now)
        else {
            panic!("asked again")
        };
        assert!(retry_after > Span::from_secs(8));
        let dearer = Charge { cost: 2, ..charge };
        assert!(matches!(leases.take(&dearer, now), Serving::AskFor(..)), "its wait is another");
    }
}

//! Where limits remember how far they have been used: the one step of the way that may wait on the world.

#[cfg(any(test, feature = "test-util"))]
pub mod conformance;
pub(crate) mod fallback;
pub mod memory;

pub use self::fallback::ReconcileStatus;

#[cfg(any(test, feature = "test-util"))]
#[doc(inline)]
pub use crate::__conformance as conformance;

use std::future::{Future, ready};
use std::num::NonZeroU32;
use std::time::Duration;

use smallvec::SmallVec;

use crate::algorithms::{Outcome, Verdict};
use crate::identity::{Client, Subject, Tenant};
use crate::limit::{Limit, Window};
use crate::penalties::PenaltyPolicy;
use crate::time::{Span, Timestamp};

/// Which limit of which rule a counter belongs to: a hash of the rule's name, the window and the algorithm.
///
/// Never of the numbers: a counter survives their change.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct CounterId(pub u128);

/// One limit × one subject × a cost.
#[derive(Copy, Clone, Debug)]
pub struct Charge<'a> {
    /// Whose counter.
    pub subject: Subject,
    /// Which limit's counter.
    pub counter: CounterId,
    /// The name of the rule, for stores whose keys people read.
    pub rule: &'a str,
    /// The numbers in force.
    pub limit: &'a Limit,
    /// How much; zero only looks.
    pub cost: u32,
    /// Whether a refusal refuses the request.
    pub effect: Effect,
    /// Whether nodes that share the counter may take units of it in advance.
    pub leases: bool,
}

/// What a refusal by a limit means for the request.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The request is refused.
    Enforce,
    /// It is noted, and that is all.
    Shadow,
}

/// Everything one request is charged.
#[derive(Debug, Default)]
pub struct Charges<'a> {
    /// The limits, in the order of the walk.
    pub charges: SmallVec<[Charge<'a>; 4]>,
    /// Whose conduct is watched, if anyone's.
    pub penalty: Option<PenaltyCharge<'a>>,
    /// Only look: answer as usual, write nothing.
    pub dry_run: bool,
    /// The organisation that asks, if one is named: a store that is bounded leaves room for the others.
    pub tenant: Option<Tenant<'a>>,
}

/// The client whose refusals are noted.
#[derive(Copy, Clone, Debug)]
pub struct PenaltyCharge<'a> {
    /// Whose conduct.
    pub subject: Subject,
    /// The same, for people.
    pub client: Client<'a>,
    /// When and how long clients are kept out.
    pub policy: &'a PenaltyPolicy,
    /// Which of the charges count this client, as bits: only their refusals are its own doing. A limit that all share
    /// may be used up by anybody.
    pub client_charges: u32,
}

impl PenaltyCharge<'_> {
    /// Whether a refusal by the charge at this position is held against the client.
    pub fn is_violation(&self, position: usize) -> bool {
        u32::try_from(position)
            .is_ok_and(|position| self.client_charges.checked_shr(position).unwrap_or(0) & 1 == 1)
    }
}

/// What a store answers to [`Charges`].
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Verdicts {
    /// One per charge, in their order. What remains, and until when, is stated as the counters stand after this call:
    /// charged if the decision admits, and as they stood before if it refuses or only looks.
    pub verdicts: SmallVec<[Verdict; 4]>,
    /// How long the client is kept out: since an earlier refusal, or from this one on.
    pub cooldown: Option<Span>,
    /// Whether it was kept out before: then nothing was charged, and the verdicts are what its limits say to whoever only
    /// looks. They may be missing, all of them, if no limit was looked at.
    pub in_cooldown: bool,
}

impl Verdicts {
    /// Whether everything was charged, or would have been.
    pub fn admitted(&self, charges: &Charges<'_>) -> bool {
        let enforced =
            |(charge, verdict): (&Charge<'_>, &Verdict)| verdict.admits() || charge.effect == Effect::Shadow;
        self.cooldown.is_none() && charges.charges.iter().zip(&self.verdicts).all(enforced)
    }

    /// For how long further refusals of the client belong to this one: the longest window of the limits of its own that
    /// refuse, and of a calendar's what is left of it. Nothing if none of them does.
    pub fn episode(&self, charges: &Charges<'_>) -> Option<Span> {
        let penalty = charges.penalty?;
        let evaluated = charges.charges.iter().zip(&self.verdicts).enumerate();
        let episode = |(position, (charge, verdict)): (usize, (&Charge<'_>, &Verdict))| {
            let blamed =
                charge.effect == Effect::Enforce && charge.cost > 0 && penalty.is_violation(position);
            match (verdict.outcome, charge.limit.window()) {
                (Outcome::Refuse { retry_after }, Window::Calendar(_)) if blamed => Some(retry_after),
                (Outcome::Refuse { .. }, Window::Length(length)) if blamed => Some(*length),
                _ => None,
            }
        };
        evaluated.filter_map(episode).max()
    }
}

/// Shared memory of how far each limit has been used.
pub trait CounterStore: Send + Sync {
    /// Charges every limit, or none of them if an enforced one refuses. Verdicts keep the order of `charges`.
    ///
    /// One call, because between a read and a later write another caller can take the last unit. A client in
    /// cooldown is refused whatever its limits say; they are only looked at, because it must wait for them too. A limit that only shadows is charged with the others
    /// if it admits, and skipped if it does not. `now` is the caller's clock; a store shared by several nodes
    /// uses its own and says so.
    fn charge_all(
        &self,
        charges: &Charges<'_>,
        now: Timestamp,
    ) -> impl Future<Output = Result<Verdicts, StoreError>> + Send;

    /// How many nodes share these counters. While they cannot be reached, each admits its part of a limit.
    fn nodes(&self) -> NonZeroU32 {
        NonZeroU32::MIN
    }

    /// Whether these charges would likely be answered now: connected, and the last answer came. Asked only after an
    /// outage; never waits.
    fn is_reachable(&self, _charges: &Charges<'_>) -> bool {
        true
    }

    /// Told when a limit was lowered: what is counted already must not be forgotten in the time that it would have taken
    /// before. For a store that does not remember limits, and forgets what they have made up for.
    fn extend_retention(&self, _slower: &RetentionExtension) {}

    /// Adds what was counted elsewhere, whatever the limits say, and removes it from `held`. Nothing is evaluated, and no
    /// one's conduct is noted. No request waits for it.
    ///
    /// After an error what is left of `held` was certainly not added, and is brought again. What may have been is removed too:
    /// it most likely was, and in an outage that comes and goes it would be counted each time. Only a store that can be
    /// out of reach has a use for it.
    fn reconcile(
        &self,
        held: &mut Charges<'_>,
        _now: Timestamp,
    ) -> impl Future<Output = Result<(), StoreError>> + Send {
        held.charges.clear();
        ready(Ok(()))
    }

    /// [`CounterStore::reconcile`] and then [`CounterStore::charge_all`], for a request that waits for both: together they
    /// take no longer than a decision may.
    fn reconcile_and_charge(
        &self,
        held: &mut Charges<'_>,
        charges: &Charges<'_>,
        now: Timestamp,
    ) -> impl Future<Output = Result<Verdicts, StoreError>> + Send {
        async move {
            self.reconcile(held, now).await?;
            self.charge_all(charges, now).await
        }
    }
}

/// That consumption which was counted before lasts longer than was reckoned with then, because a limit was lowered.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct RetentionExtension {
    /// Which counter it is about, by its subject and its id, combined by exclusive or; nothing if it may be any.
    pub counter: Option<u128>,
    /// How many times as long at most: `times / of`.
    pub times: u32,
    /// See `times`; never zero.
    pub of: u32,
    /// How long a counter lasts at most from when it was written, by the limits that were lowered.
    pub longest: Span,
}

impl RetentionExtension {
    /// How long something lasts that was to last so long.
    pub fn apply(&self, lasts: Span) -> Span {
        let longer = u128::from(lasts.as_micros()) * u128::from(self.times);
        let longer = u64::try_from(longer.div_ceil(u128::from(self.of))).unwrap_or(u64::MAX);
        Span::from_micros(longer).min(self.longest).max(lasts)
    }
}

/// Looking at counters and clearing them: off the way of a request.
pub trait CounterAdmin: Send + Sync {
    /// Forgets what the charges' counters hold, and the client's conduct. The counters that held something.
    fn reset(&self, charges: &Charges<'_>) -> impl Future<Output = Result<usize, StoreError>> + Send;

    /// Clears the record of the client that prints as `client`. Whether there was one.
    fn pardon(&self, client: &str) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Clients that are kept out or on record, at most `count_max`, the longest kept out first.
    fn penalized_clients(
        &self,
        count_max: usize,
        now: Timestamp,
    ) -> impl Future<Output = Result<Vec<PenalizedClient>, StoreError>> + Send;
}

/// A client with a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PenalizedClient {
    /// The client, as [`Client`] prints.
    pub client: String,
    /// Violations on record.
    pub violations: usize,
    /// Kept out until then, if at all.
    pub cooldown_until: Option<Timestamp>,
}

/// Why a store gave no verdicts.
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// No answer in time. The charge may or may not have been taken: do not retry it.
    #[error("counter store gave no answer within {deadline:?}")]
    Timeout {
        /// How long was waited.
        deadline: Duration,
    },
    /// No connection. The charge was certainly not taken: another attempt is safe.
    #[error("counter store is unreachable")]
    Unreachable,
    /// The store answers and refuses us: an operator must act, and no request may pass because of it.
    #[error("counter store is misconfigured")]
    Misconfigured,
}

//! Counters: how much of each limit is used. The only step of a decision that may wait for a server.

#[cfg(any(test, feature = "test-util"))]
pub mod conformance;
pub(crate) mod fallback;
pub mod memory;
mod refund;

pub use self::fallback::ReconcileStatus;
pub use self::refund::{ChargeMark, ChargeMarks, Refund, RefundOutcome, RefundOutcomes};

#[cfg(any(test, feature = "test-util"))]
#[doc(inline)]
pub use crate::__conformance as conformance;

use std::future::{Future, ready};
use std::num::NonZeroU32;
use std::time::Duration;

use smallvec::SmallVec;

use crate::algorithms::{Outcome, Verdict};
use crate::identity::{Client, InTenant, Subject, Tenant};
use crate::limit::{Limit, Window};
use crate::penalties::PenaltyPolicy;
use crate::time::{Span, Timestamp};

/// The limit that a counter belongs to: a hash of the rule's name, the window and the algorithm.
///
/// It does not cover the values of the limit, so a counter survives a change of them.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct CounterId(pub u128);

/// One limit × one subject × a cost.
#[derive(Copy, Clone, Debug)]
pub struct Charge<'a> {
    /// What the counter counts.
    pub subject: Subject,
    /// The limit that the counter belongs to.
    pub counter: CounterId,
    /// The name of the rule, for stores with readable keys.
    pub rule: &'a str,
    /// The limit in force.
    pub limit: &'a Limit,
    /// The units to charge; zero only reads.
    pub cost: u32,
    /// Whether a refusal by this limit refuses the request.
    pub effect: Effect,
    /// Whether nodes may lease units of this counter in advance.
    pub leases: bool,
    /// Whether the charge may be refunded later: the store returns a mark of it. A refundable charge is never leased.
    pub refundable: bool,
}

/// The effect of a limit's refusal on the request.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The request is refused.
    Enforce,
    /// The refusal is only reported (`log_only`).
    Shadow,
}

/// All charges of one request.
#[derive(Debug, Default)]
pub struct Charges<'a> {
    /// The charges, in the order in which the rules were evaluated.
    pub charges: SmallVec<[Charge<'a>; 4]>,
    /// The client whose violations are counted, if penalties apply.
    pub penalty: Option<PenaltyCharge<'a>>,
    /// Return verdicts without writing anything.
    pub dry_run: bool,
    /// The tenant of the request. A bounded store limits each tenant's share of its memory.
    pub tenant: Option<Tenant<'a>>,
}

/// The client whose violations are counted.
#[derive(Copy, Clone, Debug)]
pub struct PenaltyCharge<'a> {
    /// The subject of the client's penalty record.
    pub subject: Subject,
    /// The client, for display.
    pub client: InTenant<'a, Client<'a>>,
    /// The penalty policy.
    pub policy: &'a PenaltyPolicy,
    /// The charges that count this client, as bits by position. A refusal by a limit that several clients share is not
    /// a violation.
    pub client_charges: u32,
}

impl PenaltyCharge<'_> {
    /// Whether a refusal of the charge at this position is a violation of the client.
    pub fn is_violation(&self, position: usize) -> bool {
        u32::try_from(position)
            .is_ok_and(|position| self.client_charges.checked_shr(position).unwrap_or(0) & 1 == 1)
    }
}

/// The answer of a store to [`Charges`].
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Verdicts {
    /// One verdict per charge, in the same order. They describe the counters after this call: with the charge if the
    /// request is admitted, without it if the request is refused or the call was a dry run.
    pub verdicts: SmallVec<[Verdict; 4]>,
    /// The remaining cooldown, whether it started earlier or with this refusal.
    pub cooldown: Option<Span>,
    /// Whether the client was in cooldown before this call. Then nothing was charged, and the verdicts are those of a dry
    /// run; a store may leave them out.
    pub in_cooldown: bool,
    /// Whether a server shared with other nodes gave these verdicts just now. The limiter remembers them in case the
    /// server becomes unreachable. A store in memory, or one that answers from a cache, leaves it `false`.
    pub shared: bool,
    /// The marks of refundable charges that were taken. `None` without charges, which allocates nothing.
    pub marks: Option<Box<ChargeMarks>>,
}

impl Verdicts {
    /// Whether everything was charged, or would have been in a dry run.
    pub fn admitted(&self, charges: &Charges<'_>) -> bool {
        let passes =
            |(charge, verdict): (&Charge<'_>, &Verdict)| verdict.admits() || charge.effect == Effect::Shadow;
        self.cooldown.is_none() && charges.charges.iter().zip(&self.verdicts).all(passes)
    }

    /// How long further refusals belong to the same violation: the longest window of the refusing limits that count the
    /// client, or the rest of it for a calendar window. `None` if none of them refuses.
    pub fn episode(&self, charges: &Charges<'_>) -> Option<Span> {
        let penalty = charges.penalty?;
        let verdicts = charges.charges.iter().zip(&self.verdicts).enumerate();
        let episode = |(position, (charge, verdict)): (usize, (&Charge<'_>, &Verdict))| {
            let counts =
                charge.effect == Effect::Enforce && charge.cost > 0 && penalty.is_violation(position);
            match (verdict.outcome, charge.limit.window()) {
                (Outcome::Refuse { retry_after }, Window::Calendar(_)) if counts => Some(retry_after),
                (Outcome::Refuse { .. }, Window::Length(length)) if counts => Some(*length),
                _ => None,
            }
        };
        verdicts.filter_map(episode).max()
    }
}

/// Stores how much of each limit is used.
pub trait CounterStore: Send + Sync {
    /// Charges every limit, or none of them if an enforced one refuses.
    ///
    /// - It is one call, because between a read and a later write another caller can take the last unit.
    /// - A client in cooldown is refused whatever its limits say. They are read all the same: `Retry-After` covers both.
    /// - A shadow limit is charged with the others if it admits, and skipped if it refuses.
    /// - `now` is the caller's clock. A store shared by several nodes uses its own clock instead.
    fn charge_all(
        &self,
        charges: &Charges<'_>,
        now: Timestamp,
    ) -> impl Future<Output = Result<Verdicts, StoreError>> + Send;

    /// Takes back charges that were admitted earlier, each by its mark. Returns one outcome per refund, in the same order.
    ///
    /// - A charge is taken back only as far as it certainly still counts: in the same window, from the part of a bucket that
    ///   time has not refilled, as an entry of the log, and not after a reset. Otherwise it is dropped.
    /// - It never admits more: a refund leaves at least what would be counted without the charge.
    /// - It is sent once. A refund without a reply is lost, which only counts too much.
    fn refund(&self, refunds: &[Refund<'_>], _now: Timestamp) -> impl Future<Output = RefundOutcomes> + Send {
        ready(refunds.iter().map(|_| RefundOutcome::Dropped).collect())
    }

    /// The number of nodes that share these counters. While the store is unreachable, each admits its share of a limit.
    fn nodes(&self) -> NonZeroU32 {
        NonZeroU32::MIN
    }

    /// Whether a call with these charges would likely succeed now. Asked only after an outage; never waits.
    fn is_reachable(&self, _charges: &Charges<'_>) -> bool {
        true
    }

    /// Adds what the fallback counted, regardless of the limits, and removes it from `pending`. No verdict is computed
    /// and no violation is counted. Only a store that can be unreachable needs it.
    ///
    /// After an error, what is left in `pending` was certainly not added and may be sent again. What may have been added
    /// is removed as well: adding it again on every attempt of an unstable connection would count it many times.
    fn reconcile(
        &self,
        pending: &mut Charges<'_>,
        _now: Timestamp,
    ) -> impl Future<Output = Result<(), StoreError>> + Send {
        pending.charges.clear();
        ready(Ok(()))
    }

    /// [`CounterStore::reconcile`] followed by [`CounterStore::charge_all`], within the time budget of one decision.
    fn reconcile_and_charge(
        &self,
        pending: &mut Charges<'_>,
        charges: &Charges<'_>,
        now: Timestamp,
    ) -> impl Future<Output = Result<Verdicts, StoreError>> + Send {
        async move {
            self.reconcile(pending, now).await?;
            self.charge_all(charges, now).await
        }
    }
}

/// Resets and penalty records, for administration.
pub trait CounterAdmin: Send + Sync {
    /// Verifies that [`CounterAdmin::reset`] of these charges would likely succeed. Changes nothing.
    fn verify_reset(&self, _charges: &Charges<'_>) -> impl Future<Output = Result<(), StoreError>> + Send {
        ready(Ok(()))
    }

    /// Clears the counters of the charges and the penalty record. Returns how many counters held something.
    fn reset(&self, charges: &Charges<'_>) -> impl Future<Output = Result<usize, StoreError>> + Send;

    /// Clears the penalty record of the client that prints as `client`, with its tenant. Returns whether there was one.
    fn pardon(&self, client: &str) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Lists at most `count_max` clients with a penalty record, the longest cooldown first.
    fn penalized_clients(
        &self,
        count_max: usize,
        now: Timestamp,
    ) -> impl Future<Output = Result<Vec<PenalizedClient>, StoreError>> + Send;
}

/// A client with a penalty record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PenalizedClient {
    /// The client, as [`InTenant`] prints.
    pub client: String,
    /// Violations on record.
    pub violations: usize,
    /// The end of the cooldown, if the client is in one.
    pub cooldown_until: Option<Timestamp>,
}

/// Why a store returned no verdicts.
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// No reply in time. The charge may or may not have been taken: do not retry it.
    #[error("counter store did not reply within {deadline:?}")]
    Timeout {
        /// The time limit.
        deadline: Duration,
    },
    /// Not connected. The charge was certainly not taken: a retry is safe.
    #[error("counter store is unreachable")]
    Unreachable,
    /// The store replies but rejects our calls. All checks are refused until an operator fixes the configuration.
    #[error("counter store rejects our calls: check its credentials and configuration")]
    Misconfigured,
}

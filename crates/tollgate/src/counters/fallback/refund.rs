//! Refunds of charges that were taken while the shared counters were unreachable.
//!
//! The share of this node and what is not reconciled yet are two counters. A charge is taken back from each in which it still
//! counts. What was reconciled meanwhile stays counted in the store, which has no mark of it.

use std::num::NonZeroU32;
use std::sync::atomic::Ordering;

use smallvec::SmallVec;

use super::{Fallback, charge_of_share, share};
use crate::counters::{Charge, ChargeMark, ChargeMarks, RefundOutcome};
use crate::time::Timestamp;

/// Identifies a charge that the fallback took.
#[derive(Copy, Clone, Debug)]
pub(crate) struct FallbackMark {
    /// The number of nodes by which the limit was divided.
    nodes: NonZeroU32,
    share: ChargeMark,
    /// `None` if it cannot be taken back from what will be reconciled.
    unreconciled: Option<ChargeMark>,
}

/// One mark per charge, in the same order.
pub(crate) type FallbackMarks = SmallVec<[Option<FallbackMark>; 2]>;

/// The marks of charges by those of their two counters.
pub(super) fn combine(shares: &ChargeMarks, unreconciled: ChargeMarks, nodes: NonZeroU32) -> FallbackMarks {
    let marks = shares.iter().zip(unreconciled);
    marks
        .map(|(share, unreconciled)| share.map(|share| FallbackMark { nodes, share, unreconciled }))
        .collect()
}

impl Fallback {
    /// Takes back a charge of the fallback.
    pub(crate) fn refund(&self, charge: &Charge<'_>, mark: FallbackMark, now: Timestamp) -> RefundOutcome {
        let divided_alike = self.nodes.load(Ordering::Relaxed) == mark.nodes.get();
        if let Some(unreconciled) = mark.unreconciled.filter(|_| divided_alike) {
            let limit = self.with_shared_refill(charge.limit);
            let charge = Charge { limit: limit.as_ref().unwrap_or(charge.limit), ..*charge };
            self.unreconciled.refund_charge(&charge, unreconciled, now);
        }
        let limit = share(charge.limit, mark.nodes);
        let part = match mark.nodes {
            NonZeroU32::MIN => *charge,
            _ => charge_of_share(charge, &limit),
        };
        if self.shares.refund_charge(&part, mark.share, now) {
            RefundOutcome::Refunded
        } else {
            RefundOutcome::Dropped
        }
    }
}

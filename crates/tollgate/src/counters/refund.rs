//! Refunds: taking back a charge that was admitted earlier.

use smallvec::SmallVec;

use super::Charge;

/// Identifies one admitted charge in its store. What the numbers mean is up to the store.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct ChargeMark {
    /// The window or log entry of the charge; of a bucket, when the charge will have been refilled.
    pub position: u64,
    /// The generation of the counter. A reset ends it.
    pub generation: u64,
    /// Its number among the charges of a bucket. A refund of a charge with a lower number brings its refill forward.
    pub order: u64,
    /// What had been refunded to the bucket before it.
    pub refunded: u64,
}

/// One mark per charge, in the same order; `None` for a charge that cannot be refunded.
pub type ChargeMarks = SmallVec<[Option<ChargeMark>; 2]>;

/// A charge to take back: `cost` units of the counter that was charged, under the limit by which it was charged.
#[derive(Copy, Clone, Debug)]
pub struct Refund<'a> {
    /// The charge as it was admitted.
    pub charge: Charge<'a>,
    /// Its mark.
    pub mark: ChargeMark,
}

named_enum! {
    /// What became of a refund.
    #[derive(PartialOrd, Ord)]
    pub enum RefundOutcome {
        /// The charge was taken back, as far as it still counted.
        Refunded = "refunded",
        /// The charge no longer counts, or not certainly: its window ended, its counter was reset or its limit changed.
        Dropped = "dropped",
        /// The store did not reply in time. The charge still counts, unless only the reply was lost.
        Lost = "lost",
    }
}

/// One outcome per refund, in the same order.
pub type RefundOutcomes = SmallVec<[RefundOutcome; 2]>;

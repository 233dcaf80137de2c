//! Returns of leases that could not be delivered, or whose outcome is unknown.
//!
//! The server settles a lease only while it has the lease's record, and removes the record with it. So a return is repeated
//! after any failure, and a lease whose reply was lost is returned by its id alone. The request may still be executed after
//! the first return, when a frozen server resumes, so such a return is repeated for a while.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::LeasedCounter;
use super::entry::RetiredLease;
use crate::redis::script::call::{LeaseId, Settlement};

/// Returns that wait. Beyond it units are lost until their window ends.
const PENDING_MAX: usize = 4_096;
/// How long a return is repeated. The server keeps records for longer.
const REPEAT_FOR: Duration = Duration::from_mins(1);
/// How often a server may report that it knows no such lease before that is believed: two seconds.
const UNKNOWN_MAX: u32 = 8;

/// Units to be returned.
pub(crate) struct LeaseReturn {
    pub(crate) counter: LeasedCounter,
    pub(crate) settlement: Settlement,
    until: Instant,
    /// How often the server may still report that it does not know the lease.
    unknown_left: u32,
}

impl LeaseReturn {
    pub(super) fn new(counter: LeasedCounter, settlement: Settlement) -> Self {
        LeaseReturn { counter, settlement, until: Instant::now() + REPEAT_FOR, unknown_left: 0 }
    }

    /// All units of a lease that may have been granted.
    pub(super) fn of_lost_reply(counter: LeasedCounter, id: LeaseId) -> Self {
        let settlement = Settlement::unused(id, Instant::now());
        LeaseReturn { unknown_left: UNKNOWN_MAX, ..LeaseReturn::new(counter, settlement) }
    }

    /// Whether it matters: a bucket is settled even if all units were used, because it refills only after that.
    pub(crate) fn matters(&self) -> bool {
        self.settlement.unspent > 0 || self.counter.is_bucket()
    }

    /// What is left to do if the server knew the lease, did not, or is not known to have executed the call. `None` if
    /// nothing is.
    pub(crate) fn after(mut self, was_known: Option<bool>) -> Option<Self> {
        match was_known {
            Some(true) => return None,
            Some(false) => self.unknown_left = self.unknown_left.checked_sub(1)?,
            None => {}
        }
        Some(self)
    }

    /// Units that are lost with this return, as far as they are known.
    pub(super) fn units(&self) -> u64 {
        Some(self.settlement.unspent).filter(|unspent| *unspent < u32::MAX).unwrap_or(0).into()
    }
}

impl From<RetiredLease> for LeaseReturn {
    fn from(lease: RetiredLease) -> Self {
        let settlement = lease.settlement();
        LeaseReturn::new(lease.counter, settlement)
    }
}

/// Returns that are to be tried again.
#[derive(Default)]
pub(super) struct PendingReturns(Mutex<Vec<LeaseReturn>>);

impl PendingReturns {
    /// Returns how many units are lost, because too many returns wait or this one was tried for too long.
    pub(super) fn push(&self, lease: LeaseReturn) -> u64 {
        let mut pending = self.0.lock();
        if pending.len() >= PENDING_MAX || lease.until <= Instant::now() {
            return lease.units();
        }
        pending.push(lease);
        0
    }

    pub(super) fn take(&self) -> Vec<LeaseReturn> {
        std::mem::take(&mut *self.0.lock())
    }

    /// Drops the others. Returns their units.
    pub(super) fn retain(&self, keeps: impl Fn(&LeasedCounter) -> bool) -> u64 {
        let mut pending = self.0.lock();
        let (kept, dropped) =
            std::mem::take(&mut *pending).into_iter().partition(|lease| keeps(&lease.counter));
        *pending = kept;
        let dropped: Vec<LeaseReturn> = dropped;
        dropped.iter().map(LeaseReturn::units).sum()
    }
}

//! Returns of leases that could not be delivered, or whose outcome is unknown.
//!
//! The server settles a lease only while it has the lease's record, and removes the record with it. So a return is repeated
//! after any failure, and a lease whose reply was lost is returned by its id alone. The request may still be executed after
//! the first return, when a frozen server resumes, so such a return is repeated for a while.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::LeasedCounter;
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
        LeaseReturn { unknown_left: UNKNOWN_MAX, ..LeaseReturn::new(counter, Settlement::unused(id)) }
    }

    /// Whether it matters: a bucket is settled even if all units were used, because it refills only after that.
    pub(crate) fn matters(&self) -> bool {
        self.settlement.unspent > 0 || self.counter.is_bucket()
    }

    /// What is left to do if the server knew the lease, did not, or is not known to have executed the call.
    pub(crate) fn after(mut self, was_known: Option<bool>) -> Option<Self> {
        match was_known {
            Some(true) => return None,
            Some(false) => self.unknown_left = self.unknown_left.checked_sub(1)?,
            None => {}
        }
        (Instant::now() < self.until).then_some(self)
    }
}

impl From<(LeasedCounter, Settlement)> for LeaseReturn {
    fn from((counter, settlement): (LeasedCounter, Settlement)) -> Self {
        LeaseReturn::new(counter, settlement)
    }
}

/// Returns that are to be tried again.
#[derive(Default)]
pub(super) struct PendingReturns(Mutex<Vec<LeaseReturn>>);

impl PendingReturns {
    pub(super) fn push(&self, lease: LeaseReturn) {
        let mut pending = self.0.lock();
        if pending.len() < PENDING_MAX {
            pending.push(lease);
        }
    }

    pub(super) fn take(&self) -> Vec<LeaseReturn> {
        std::mem::take(&mut *self.0.lock())
    }

    pub(super) fn retain(&self, keeps: impl Fn(&LeasedCounter) -> bool) {
        self.0.lock().retain(|lease| keeps(&lease.counter));
    }
}

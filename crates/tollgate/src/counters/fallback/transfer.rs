//! Counters on their way from the fallback to the shared store.

use smallvec::SmallVec;

use super::pending::{PendingCounter, key_of};
use super::{Fallback, TenantSlot};
use crate::counters::{Charge, Charges, Effect};
use crate::time::Timestamp;

/// Charges taken out of the fallback counters. What the store does not accept returns when this is dropped, also when
/// the call is cancelled.
pub(crate) struct Transfer<'a, 'c> {
    fallback: &'a Fallback,
    /// What to add to the shared counters. The store removes what it has added.
    pub(crate) charges: Charges<'c>,
    keys: SmallVec<[u128; 4]>,
    now: Timestamp,
}

impl<'a, 'c> Transfer<'a, 'c> {
    pub(crate) fn new(fallback: &'a Fallback, now: Timestamp) -> Self {
        Transfer { fallback, charges: Charges::default(), keys: SmallVec::new(), now }
    }

    /// Takes out a counter of the pending list.
    pub(crate) fn add_pending(&mut self, charge: &Charge<'c>, counter: PendingCounter) {
        self.fallback.pending.begin_transfer(counter);
        self.take_out(charge);
    }

    /// Takes out the counter of a charge.
    pub(super) fn add(&mut self, charge: &Charge<'c>, tenant: TenantSlot) {
        self.fallback.pending.begin_transfer_of(charge, tenant);
        self.take_out(charge);
    }

    fn take_out(&mut self, charge: &Charge<'c>) {
        self.keys.push(key_of(charge));
        let cost = self.fallback.take_out(charge, self.now);
        if cost > 0 {
            self.charges.charges.push(Charge { cost, effect: Effect::Enforce, ..*charge });
        }
    }
}

impl Drop for Transfer<'_, '_> {
    fn drop(&mut self) {
        let Transfer { fallback, charges, keys, now } = self;
        for key in keys.drain(..) {
            let left = charges.charges.iter().find(|charge| key_of(charge) == key);
            let Some((counter, charge)) = fallback.pending.end_transfer(key).zip(left) else { continue };
            fallback.count_unreconciled(charge, counter.tenant, *now);
            fallback.pending.put_back(counter);
            fallback.mark_used();
        }
    }
}

//! After an outage: what was counted here is brought to where it belongs.
//!
//! That of a client that comes here is brought before it is decided about, or looked at: a look changes no total by it, and
//! only the counter itself can say how long a wait it makes. That of all others is brought in the background, a few at a
//! time, because they may come to another node.

use smallvec::SmallVec;

use super::Limiter;
use crate::counters::fallback::{PendingCharge, Taken};
use crate::counters::{Charge, Charges, CounterStore, Effect, ReconcileStatus, StoreError, Verdicts};
use crate::limit::Limit;
use crate::record::RecordSink;
use crate::rules::RuleSet;
use crate::time::Timestamp;

impl<S, R: RecordSink> Limiter<S, R> {
    /// Whether something may have been counted here that is to be brought in. One look at a flag.
    pub fn has_pending_charges(&self) -> bool {
        self.local.is_used()
    }

    /// How far it is with bringing in what was counted here in outages.
    pub fn reconcile_status(&self) -> ReconcileStatus {
        self.local.reconcile_status()
    }
}

impl<S: CounterStore, R: RecordSink> Limiter<S, R> {
    /// Brings at most so many counters in that were charged here while the shared ones could not be reached, without
    /// waiting for their clients. How many are done with: brought in, or over by now. None if there are none, or the
    /// store is still, or again, out of reach.
    ///
    /// To be called again and again, with pauses: whoever brings all at once keeps requests waiting.
    pub async fn reconcile(&self, counters_max: usize, now: Timestamp) -> usize {
        if !self.local.is_used() {
            return 0;
        }
        let rules = self.rules.load();
        let listed = self.local.listed(counters_max);
        let (reached, others): (Vec<_>, Vec<_>) =
            listed.into_iter().partition(|(name, owed)| self.reaches(*name, owed));
        for entry in others {
            self.local.list(entry);
        }
        let done = reached.len();
        let numbers: Vec<_> = reached.iter().map(|(_, owed)| Numbers::in_force(&rules, owed)).collect();
        // Whatever is not carried goes back when this is dropped.
        let mut taken = Taken::new(&self.local, now);
        for ((name, owed), numbers) in reached.iter().zip(&numbers) {
            taken.add_listed(&numbers.charge(*name, owed), owed.clone());
        }
        if taken.charges.charges.is_empty() {
            return done;
        }
        match self.send(&mut taken, now).await {
            Ok(()) => done,
            Err(_) => 0,
        }
    }

    /// The verdicts of charges some of whose counters may have been charged here.
    ///
    /// Requests of the same client that are under way at that very moment may be decided before what is held arrives.
    pub(super) async fn ask_after_outage(
        &self,
        charges: &Charges<'_>,
        now: Timestamp,
    ) -> Result<Verdicts, StoreError> {
        if !self.counters.is_reachable(charges) {
            return self.counters.charge_all(charges, now).await;
        }
        let mut taken = self.local.take(charges, now);
        let held = taken.charges.charges.len();
        if held == 0 {
            return self.counters.charge_all(charges, now).await;
        }
        let verdicts = self.counters.reconcile_and_charge(&mut taken.charges, charges, now).await;
        self.local.count_reconciled(held - taken.charges.charges.len());
        verdicts
    }

    async fn send(&self, taken: &mut Taken<'_, '_>, now: Timestamp) -> Result<(), StoreError> {
        let held = taken.charges.charges.len();
        let carried = self.counters.reconcile(&mut taken.charges, now).await;
        self.local.count_reconciled(held - taken.charges.charges.len());
        carried
    }

    fn reaches(&self, name: u128, owed: &PendingCharge) -> bool {
        let charge = Numbers::then(owed).charge(name, owed);
        self.counters
            .is_reachable(&Charges { charges: SmallVec::from_slice(&[charge]), ..Charges::default() })
    }
}

/// By which numbers a counter is brought in.
struct Numbers<'a> {
    limit: &'a Limit,
    rule: &'a str,
}

impl<'a> Numbers<'a> {
    /// Those it was last charged by here.
    fn then(owed: &'a PendingCharge) -> Self {
        Numbers { limit: &owed.numbers.limit, rule: &owed.numbers.rule }
    }

    /// Those of its rule today: what others have counted meanwhile was counted by them, and smaller ones would cut it
    /// short. A limit that is no more, and numbers of a single client, which no rule has, are brought in as they were.
    fn in_force(rules: &'a RuleSet, owed: &'a PendingCharge) -> Self {
        let then = Numbers::then(owed);
        Numbers { limit: rules.limit_of(owed.numbers.counter).unwrap_or(then.limit), ..then }
    }

    fn charge(&self, name: u128, owed: &PendingCharge) -> Charge<'a> {
        let Numbers { limit, rule } = *self;
        let (counter, leases) = (owed.numbers.counter, owed.numbers.leases);
        let subject = owed.numbers.subject(name);
        Charge { subject, counter, rule, limit, cost: 0, effect: Effect::Enforce, leases }
    }
}

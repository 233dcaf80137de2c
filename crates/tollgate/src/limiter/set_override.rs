//! Setting an override for one user and endpoint without granting a second allowance.

use std::sync::Arc;

use super::Limiter;
use crate::counters::{CounterAdmin, CounterStore};
use crate::identity::{Request, Scratch};
use crate::record::RecordSink;
use crate::rules::overrides::Override;
use crate::time::Timestamp;

impl<S: CounterStore + CounterAdmin, R: RecordSink> Limiter<S, R> {
    /// Sets an override for one user on one endpoint once `published` has made it known to the other nodes.
    ///
    /// What the client has consumed under the limit in force until then is charged to the override. If the store
    /// becomes unreachable at that moment, the client starts with the full override.
    ///
    /// # Errors
    /// The error of `published`; nothing is set then.
    pub async fn set_override<E>(
        &self,
        request: &Request<'_>,
        new: Override,
        now: Timestamp,
        published: impl Future<Output = Result<(), E>>,
    ) -> Result<(), E> {
        // Read first: another node may put the override in force here as soon as it is published.
        let consumed = self.consumed_before(request, &new, now).await;
        published.await?;
        self.update_overrides(|overrides| overrides.with(new.clone()));
        self.charge_consumed(request, &new, consumed, now).await;
        Ok(())
    }

    /// Returns what the client has consumed under the limit in force and the override's counter does not hold yet.
    pub async fn consumed_before(&self, request: &Request<'_>, new: &Override, now: Timestamp) -> u32 {
        let request = &Request { cost: 0, ..request.clone() };
        let rules = self.rules.load();
        let mut scratch = Scratch::default();
        let mut plan = rules.plan(request, &mut scratch, now);
        plan.charges.dry_run = true;
        // A cooldown would hide what the limits hold.
        plan.charges.penalty = None;
        let draft = self.charge_plan(&mut plan, &rules, now).await;
        drop(plan);
        let before = draft.complete(rules, now);
        // The same window and algorithm are the same counter, which holds the consumption already.
        let same_counter = |old: &Arc<Override>| old.limit.counter == new.limit.counter;
        let is_known = self.rules.load().overrides().get(new.user(), &new.endpoint).is_some_and(same_counter);
        if is_known { 0 } else { request.client().map_or(0, |client| before.used_by(client)) }
    }

    /// Charges what was [consumed before](Self::consumed_before) to an override that is now in force.
    pub async fn charge_consumed(
        &self,
        request: &Request<'_>,
        new: &Override,
        consumed: u32,
        now: Timestamp,
    ) {
        if consumed == 0 {
            return;
        }
        let rules = self.rules.load();
        let request = Request { cost: consumed.min(new.limit.limit.capacity()), ..request.clone() };
        let mut scratch = Scratch::default();
        let mut plan = rules.plan(&request, &mut scratch, now);
        plan.charges.penalty = None;
        plan.charges.charges.retain(|charge| charge.counter == new.limit.counter);
        let _ = self.counters.charge_all(&plan.charges, now).await;
    }
}

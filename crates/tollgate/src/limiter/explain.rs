//! Explaining a decision.

use super::Limiter;
use crate::counters::CounterStore;
use crate::explain::Explanation;
use crate::identity::{Request, Scratch};
use crate::record::RecordSink;
use crate::rules::Snapshot;
use crate::time::Timestamp;

impl<S: CounterStore, R: RecordSink> Limiter<S, R> {
    /// Returns the decision of [`Limiter::peek`] together with the outcome of every rule.
    pub async fn explain(&self, request: &Request<'_>, now: Timestamp) -> Explanation {
        self.explain_by(self.rules.load(), request, now).await
    }

    pub(super) async fn explain_by(
        &self,
        rules: Snapshot,
        request: &Request<'_>,
        now: Timestamp,
    ) -> Explanation {
        let mut scratch = Scratch::default();
        let (mut plan, outcomes) = rules.plan_explained(request, &mut scratch, rules.seed, now);
        plan.charges.dry_run = true;
        let draft = self.charge_plan(&mut plan, &rules, now).await;
        let mut without_cooldown = None;
        if draft.is_in_cooldown() {
            // A cooldown hides what the limits hold: they are read again without it.
            plan.charges.penalty = None;
            without_cooldown = Some(self.charge_plan(&mut plan, &rules, now).await.into_reports());
        }
        drop(plan);
        Explanation::new(draft.complete(rules, now), outcomes, without_cooldown)
    }
}

//! Explaining a decision.

use super::LimiterSnapshot;
use crate::counters::CounterStore;
use crate::explain::Explanation;
use crate::identity::{Request, Scratch};
use crate::record::RecordSink;
use crate::time::Timestamp;

impl<S: CounterStore, R: RecordSink> LimiterSnapshot<'_, S, R> {
    /// Returns the decision of [`LimiterSnapshot::peek`] together with the outcome of every rule.
    pub async fn explain(&self, request: &Request<'_>, now: Timestamp) -> Explanation {
        let (limiter, rules) = (self.limiter, &self.rules);
        let mut scratch = Scratch::default();
        let (mut plan, outcomes) = rules.plan_explained(request, &mut scratch, now);
        plan.charges.dry_run = true;
        let draft = limiter.charge_plan(&mut plan, rules, now).await;
        let mut without_cooldown = None;
        if draft.is_in_cooldown() {
            // A cooldown hides what the limits hold: they are read again without it.
            plan.charges.penalty = None;
            without_cooldown = Some(limiter.charge_plan(&mut plan, rules, now).await.into_reports());
        }
        Explanation::new(draft.complete(self.shared_rules(), now), outcomes, without_cooldown)
    }
}

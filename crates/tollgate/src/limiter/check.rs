//! One decision, step by step.

use super::Limiter;
use crate::counters::fallback::share;
use crate::counters::memory::MemoryCounters;
use crate::counters::{Charges, CounterStore, Effect, StoreError, Verdicts};
use crate::decision::{Decision, Draft, closed_rule};
use crate::identity::{Request, Scratch};
use crate::receipt::{self, ReceiptMark};
use crate::record::{Record, RecordSink};
use crate::rules::{ChargePlan, OnStoreFailure, RuleSet, Snapshot};
use crate::time::Timestamp;

impl<S: CounterStore, R: RecordSink> Limiter<S, R> {
    /// Decides one request and charges its counters if it is admitted. A request always gets a decision.
    pub async fn check(&self, request: &Request<'_>, now: Timestamp) -> Decision {
        let rules = self.rules.load();
        let draft = self.decide(&rules, request, now, false).await;
        self.record(draft, rules, request, now)
    }

    /// The steps of one decision, against one rule set.
    pub(super) async fn decide(
        &self,
        rules: &RuleSet,
        request: &Request<'_>,
        now: Timestamp,
        dry_run: bool,
    ) -> Draft {
        let mut scratch = Scratch::default();
        // 1. Complete the request from its account, normalize it, and collect the charges of the rules that match.
        let mut plan = rules.plan(request, &mut scratch, now);
        plan.charges.dry_run = dry_run;
        self.charge_plan(&mut plan, rules, now).await
    }

    /// The steps that follow once the charges are known.
    pub(super) async fn charge_plan(
        &self,
        plan: &mut ChargePlan<'_>,
        rules: &RuleSet,
        now: Timestamp,
    ) -> Draft {
        // 2. Blocked, or nothing to charge: the counters are not needed.
        if let Some(draft) = Draft::without_counters(plan) {
            return draft;
        }
        // 3. Charge all limits or none.
        match self.charge(&plan.charges, now).await {
            // 4. Combine the verdicts.
            Ok(verdicts) => Draft::from_verdicts(plan, &verdicts),
            // Or apply each rule's `on_store_failure`.
            Err(error) => self.decide_by_fallback(plan, rules, &error, now),
        }
    }

    /// Charges the counters. Outside an outage the only extra cost is reading one flag, and with shared counters the
    /// lookup of an earlier answer.
    pub(super) async fn charge(&self, charges: &Charges<'_>, now: Timestamp) -> Result<Verdicts, StoreError> {
        let verdicts = if self.fallback.is_used() {
            Box::pin(self.charge_after_outage(charges, now)).await?
        } else {
            self.counters.charge_all(charges, now).await?
        };
        if verdicts.shared && !charges.dry_run {
            self.fallback.remember(charges, &verdicts, self.counters.nodes(), now);
        }
        Ok(verdicts)
    }

    /// Decides while the shared counters are unreachable, as each rule's `on_store_failure` says: `local` charges this
    /// node's share, `open` admits, `closed` refuses.
    fn decide_by_fallback(
        &self,
        plan: &mut ChargePlan<'_>,
        rules: &RuleSet,
        error: &StoreError,
        now: Timestamp,
    ) -> Draft {
        if let Some(rule) = closed_rule(plan, rules, error) {
            return Draft::unavailable(rule, error);
        }
        for (charge, source) in plan.charges.charges.iter_mut().zip(&plan.sources) {
            if rules.on_store_failure(*source as usize) == OnStoreFailure::Open {
                charge.effect = Effect::Shadow;
            }
        }
        let nodes = self.counters.nodes();
        let (verdicts, marks) = self.fallback.charge(&plan.charges, nodes, now);
        let marks = marks.into_iter().flatten().map(|mark| mark.map(ReceiptMark::Fallback));
        let receipt = receipt::collect(plan, marks);
        let shares = plan.charges.charges.iter().map(|charge| share(charge.limit, nodes).capacity());
        Draft::from_verdicts(plan, &verdicts).with_capacities(shares).degraded(receipt)
    }
}

impl<R: RecordSink> Limiter<MemoryCounters, R> {
    /// [`Limiter::check`] without a future: memory counters never wait.
    pub fn check_now(&self, request: &Request<'_>, now: Timestamp) -> Decision {
        let rules = self.rules.load();
        let mut scratch = Scratch::default();
        let plan = rules.plan(request, &mut scratch, now);
        let draft = Draft::without_counters(&plan).unwrap_or_else(|| {
            Draft::from_verdicts(&plan, &self.counters.charge_all_now(&plan.charges, now))
        });
        drop(plan);
        self.record(draft, rules, request, now)
    }
}

impl<S, R: RecordSink> Limiter<S, R> {
    /// Completes the decision and emits its record, with the request as it was counted.
    pub(super) fn record(
        &self,
        draft: Draft,
        rules: Snapshot,
        request: &Request<'_>,
        now: Timestamp,
    ) -> Decision {
        let decision = draft.complete(rules, now);
        if decision.rules().is_exact() {
            self.records.offer(&Record { request, decision: &decision });
        } else {
            let mut scratch = Scratch::default();
            let request = decision.rules().normalize(request, &mut scratch);
            self.records.offer(&Record { request: &request, decision: &decision });
        }
        decision
    }
}

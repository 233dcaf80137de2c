//! Counters of each rule in force, found by the rule's position: recording a decision takes no lock and allocates nothing.

use std::collections::HashMap;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use tollgate::counters::{Effect, RefundOutcome};
use tollgate::decision::LimitReport;
use tollgate::record::RefundRecord;
use tollgate::rules::{Action, OVERRIDE_NAMES, OnStoreFailure};
use tollgate::{Answer, Decision, Refusal, RuleSet};

use super::series::Series;

#[derive(Clone, Debug, Hash, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
pub(super) struct DecisionLabels {
    rule: String,
    decision: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
pub(super) struct VerdictLabels {
    rule: String,
    verdict: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
pub(super) struct DegradedLabels {
    rule: String,
    mode: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
pub(super) struct RefundLabels {
    rule: String,
    outcome: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
pub(super) struct RuleLabel {
    rule: String,
}

/// The values of the label `decision`.
const OUTCOMES: [&str; 6] =
    ["admitted", "over_limit", "cost_exceeds_limit", "cooldown", "blocked", "unavailable"];

/// The position of a decision's outcome in [`OUTCOMES`].
fn outcome_of(decision: &Decision) -> usize {
    match decision.answer {
        Answer::Admit { .. } => 0,
        Answer::Refuse { reason: Refusal::OverLimit, .. } => 1,
        Answer::Refuse { reason: Refusal::CostExceedsLimit, .. } => 2,
        Answer::Refuse { reason: Refusal::Cooldown, .. } => 3,
        Answer::Block => 4,
        Answer::Unavailable => 5,
    }
}

/// The values of the label `verdict`.
const VERDICTS: [&str; 3] = ["within", "near", "exceeded"];
/// A limit is near if less than one part in this many of its capacity is left.
const NEAR_LIMIT: u64 = 10;

/// The position in [`VERDICTS`] of the worst verdict of a rule's limits.
fn verdict_of(reports: &[LimitReport]) -> usize {
    let verdict = |report: &LimitReport| match report.verdict.admits() {
        true if u64::from(report.verdict.remaining) * NEAR_LIMIT < u64::from(report.capacity) => 1,
        true => 0,
        false => 2,
    };
    reports.iter().map(verdict).max().unwrap_or(0)
}

/// The metric families with the label `rule`.
#[derive(Clone, Default)]
pub(super) struct RuleFamilies {
    pub(super) decisions: Series<DecisionLabels, Counter>,
    pub(super) verdicts: Series<VerdictLabels, Counter>,
    pub(super) degraded: Series<DegradedLabels, Counter>,
    /// Refusals that `log_only` rules would have made.
    pub(super) shadow_refusals: Series<RuleLabel, Counter>,
    /// Refunds of rules that have any.
    pub(super) refunds: Series<RefundLabels, Counter>,
}

impl RuleFamilies {
    /// Drops the series of a rule.
    pub(super) fn remove(&self, rule: &str) {
        for decision in OUTCOMES {
            self.decisions.remove(&DecisionLabels { rule: rule.to_owned(), decision });
        }
        for verdict in VERDICTS {
            self.verdicts.remove(&VerdictLabels { rule: rule.to_owned(), verdict });
        }
        for mode in OnStoreFailure::ALL.map(OnStoreFailure::as_str) {
            self.degraded.remove(&DegradedLabels { rule: rule.to_owned(), mode });
        }
        self.shadow_refusals.remove(&RuleLabel { rule: rule.to_owned() });
        for outcome in RefundOutcome::ALL.map(RefundOutcome::as_str) {
            self.refunds.remove(&RefundLabels { rule: rule.to_owned(), outcome });
        }
    }

    /// The counters of decisions that no rule in force made.
    pub(super) fn without_rule(&self) -> RuleCounters {
        RuleCounters::new("", self)
    }
}

/// The counters of one rule.
pub(super) struct RuleCounters {
    rule: Box<str>,
    by_outcome: [Counter; OUTCOMES.len()],
    by_verdict: [Counter; VERDICTS.len()],
    /// Of a rule that only logs.
    shadow_refusals: Option<Counter>,
    /// Of a rule that refunds.
    refunds: Option<[Counter; RefundOutcome::ALL.len()]>,
    /// Of a rule on shared counters, by its `on_store_failure`.
    degraded: Option<Counter>,
}

impl RuleCounters {
    fn new(rule: &str, families: &RuleFamilies) -> Self {
        let name = || rule.to_owned();
        let outcome = |decision| families.decisions.get_or_create(&DecisionLabels { rule: name(), decision });
        let verdict = |verdict| families.verdicts.get_or_create(&VerdictLabels { rule: name(), verdict });
        RuleCounters {
            rule: rule.into(),
            by_outcome: OUTCOMES.map(outcome),
            by_verdict: VERDICTS.map(verdict),
            shadow_refusals: None,
            refunds: None,
            degraded: None,
        }
    }

    fn on_shared_counters(self, mode: OnStoreFailure, families: &RuleFamilies) -> Self {
        let labels = DegradedLabels { rule: String::from(&*self.rule), mode: mode.as_str() };
        RuleCounters { degraded: Some(families.degraded.get_or_create(&labels)), ..self }
    }

    fn log_only(self, families: &RuleFamilies) -> Self {
        let label = RuleLabel { rule: String::from(&*self.rule) };
        RuleCounters { shadow_refusals: Some(families.shadow_refusals.get_or_create(&label)), ..self }
    }

    fn with_refunds(self, families: &RuleFamilies) -> Self {
        let refunds = RefundOutcome::ALL.map(|outcome| {
            let labels = RefundLabels { rule: String::from(&*self.rule), outcome: outcome.as_str() };
            families.refunds.get_or_create(&labels)
        });
        RuleCounters { refunds: Some(refunds), ..self }
    }

    pub(super) fn count_decision(&self, decision: &Decision) {
        self.by_outcome[outcome_of(decision)].inc();
    }

    fn count_verdict(&self, reports: &[LimitReport]) {
        self.by_verdict[verdict_of(reports)].inc();
        let is_refused = |report: &LimitReport| report.effect == Effect::Shadow && !report.verdict.admits();
        if let Some(shadow_refusals) =
            self.shadow_refusals.as_ref().filter(|_| reports.iter().any(is_refused))
        {
            shadow_refusals.inc();
        }
    }
}

/// The counters of the rules in force.
#[derive(Default)]
pub(super) struct RulesInForce {
    /// By the positions of the rules, then those of the overrides.
    counters: Vec<RuleCounters>,
    positions: HashMap<Box<str>, usize>,
}

impl RulesInForce {
    pub(super) fn new(rules: &RuleSet, families: &RuleFamilies, shares_counters: bool) -> Self {
        let of_rule = rules.rules().iter().map(|rule| (&*rule.name, Some(rule)));
        let of_override = OVERRIDE_NAMES.into_iter().map(|name| (name, None));
        let counters: Vec<RuleCounters> = (of_rule.chain(of_override).enumerate())
            .map(|(position, (name, rule))| {
                let mut counters = RuleCounters::new(name, families);
                if shares_counters {
                    counters = counters.on_shared_counters(rules.on_store_failure(position), families);
                }
                if rule.is_some_and(|rule| rule.action == Action::LogOnly) {
                    counters = counters.log_only(families);
                }
                if rule.is_some_and(|rule| rule.refund_policy.refunds_any()) {
                    counters = counters.with_refunds(families);
                }
                counters
            })
            .collect();
        let positions =
            counters.iter().enumerate().map(|(position, counters)| (counters.rule.clone(), position));
        RulesInForce { positions: positions.collect(), counters }
    }

    /// The rules that are not in `next`.
    pub(super) fn removed_in<'a>(&'a self, next: &'a RulesInForce) -> impl Iterator<Item = &'a str> {
        self.positions.keys().map(|name| &**name).filter(|name| !next.positions.contains_key(*name))
    }

    /// The counters of a rule, if it is still in force. The decision may have used the previous rule set: the name is compared, and the
    /// position is a shortcut.
    fn find(&self, position: Option<usize>, name: &str) -> Option<&RuleCounters> {
        let at_position = position.and_then(|position| self.counters.get(position));
        at_position
            .filter(|counters| *counters.rule == *name)
            .or_else(|| self.positions.get(name).map(|position| &self.counters[*position]))
    }

    /// The counters of the rule that decided.
    pub(super) fn deciding(&self, decision: &Decision) -> Option<&RuleCounters> {
        self.find(decision.rule_position(), decision.rule_name()?)
    }

    /// Counts a decision made without the shared counters: by the rule that decided, else by the first that was evaluated.
    pub(super) fn count_degraded(&self, decision: &Decision) {
        let first = || decision.reports.first().and_then(|report| self.of_report(decision, report));
        let counters = self.deciding(decision).or_else(first);
        if let Some(degraded) = counters.and_then(|counters| counters.degraded.as_ref()) {
            degraded.inc();
        }
    }

    /// Counts what each evaluated rule said.
    pub(super) fn count_verdicts(&self, decision: &Decision) {
        for reports in decision.reports_by_rule() {
            if let Some(counters) = self.of_report(decision, &reports[0]) {
                counters.count_verdict(reports);
            }
        }
    }

    /// Counts what became of a refund.
    pub(super) fn count_refund(&self, refund: &RefundRecord<'_>) {
        let counters = self.find(refund.position, refund.rule);
        if let Some(refunds) = counters.and_then(|counters| counters.refunds.as_ref()) {
            refunds[refund.outcome as usize].inc();
        }
    }

    fn of_report(&self, decision: &Decision, report: &LimitReport) -> Option<&RuleCounters> {
        self.find(decision.rule_position_of(report), decision.rule_name_of(report))
    }
}

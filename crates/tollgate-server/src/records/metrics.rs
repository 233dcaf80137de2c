//! Metrics for Prometheus. Labels come from the configuration and from fixed lists, never from a client.

mod collector;
mod config;
mod retired_series;
mod service;
mod store;

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use tollgate::counters::Effect;
use tollgate::decision::LimitReport;
use tollgate::record::{Record, RecordSink};
use tollgate::rules::OnStoreFailure;
use tollgate::{Answer, Decision, Refusal, RuleSet, Timestamp};

use self::collector::Collector;
use self::retired_series::RetiredRules;
use crate::ServiceLimiter;
use crate::auth::api_keys::KeyRefusal;
use crate::auth::throttle::AuthThrottle;
use crate::check::idempotency::IdempotencyStore;
use crate::config::reload::ReloadHandle;
use crate::config::sync::ConfigSync;
use crate::listener::ConnectionStats;
use crate::runtime::clock::Clock;

/// The prefix of all names.
const PREFIX: &str = "tollgate";

/// The parts of the service whose state is exported.
pub(crate) struct MetricSources<'a> {
    pub(crate) limiter: &'a ServiceLimiter,
    pub(crate) clock: Clock,
    pub(crate) config_sync: &'a ConfigSync,
    pub(crate) auth_throttle: &'a AuthThrottle,
    pub(crate) idempotency: &'a IdempotencyStore,
    pub(crate) connections: &'a ConnectionStats,
    /// Absent without a configuration file.
    pub(crate) reload: Option<&'a ReloadHandle>,
    pub(crate) snapshot_failures: u64,
}

/// Counters of this process, and the registry that exports them.
pub(crate) struct Metrics {
    registry: Registry,
    decisions: Family<DecisionLabels, Counter>,
    degraded: Family<DegradedLabels, Counter>,
    degraded_seconds: Counter<f64, AtomicU64>,
    /// Refusals that `log_only` rules would have made.
    shadow_refusals: Family<RuleLabel, Counter>,
    responses: Family<ResponseLabels, Counter>,
    /// Checks with an invalid client API key.
    keys_refused: Family<ReasonLabel, Counter>,
    /// Requests refused by `[callers]`.
    callers_refused: Counter,
    in_force: ArcSwap<InForce>,
    /// Locked when rules are replaced and on a scrape; by a decision only if its rule was just removed.
    retired: Mutex<RetiredRules>,
    without_rule: RuleCounters,
}

/// The rules in force.
#[derive(Default)]
struct InForce {
    /// Counters by rule position, so that a decision looks up no label.
    by_position: Vec<RuleCounters>,
    names: HashSet<Box<str>>,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct DecisionLabels {
    rule: String,
    decision: DecisionOutcome,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct DegradedLabels {
    rule: String,
    mode: &'static str,
}

impl DegradedLabels {
    /// By the rule that decided, else by the first that was evaluated.
    fn new(decision: &Decision) -> Self {
        let first = || decision.reports.first().map(|report| decision.rule_name_of(report));
        let name = decision.rule_name().or_else(first).unwrap_or_default();
        let rule = decision.rules().rules().iter().find(|rule| *rule.name == *name);
        let mode = match decision.answer {
            Answer::Unavailable => OnStoreFailure::Closed,
            _ => rule.map(|rule| rule.on_store_failure).unwrap_or_default(),
        };
        DegradedLabels { rule: name.to_owned(), mode: mode.as_str() }
    }
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RuleLabel {
    rule: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ResponseLabels {
    route: &'static str,
    status: u16,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

/// The outcome of a decision.
#[derive(Copy, Clone, Debug, Hash, PartialEq, Eq)]
enum DecisionOutcome {
    Admitted,
    OverLimit,
    CostExceedsLimit,
    Cooldown,
    Blocked,
    Unavailable,
}

impl DecisionOutcome {
    const ALL: [DecisionOutcome; 6] = [
        DecisionOutcome::Admitted,
        DecisionOutcome::OverLimit,
        DecisionOutcome::CostExceedsLimit,
        DecisionOutcome::Cooldown,
        DecisionOutcome::Blocked,
        DecisionOutcome::Unavailable,
    ];

    fn of(decision: &Decision) -> Self {
        match decision.answer {
            Answer::Admit { .. } => DecisionOutcome::Admitted,
            Answer::Refuse { reason: Refusal::OverLimit, .. } => DecisionOutcome::OverLimit,
            Answer::Refuse { reason: Refusal::CostExceedsLimit, .. } => DecisionOutcome::CostExceedsLimit,
            Answer::Refuse { reason: Refusal::Cooldown, .. } => DecisionOutcome::Cooldown,
            Answer::Block => DecisionOutcome::Blocked,
            Answer::Unavailable => DecisionOutcome::Unavailable,
        }
    }

    const fn as_str(self) -> &'static str {
        match self {
            DecisionOutcome::Admitted => "admitted",
            DecisionOutcome::OverLimit => "over_limit",
            DecisionOutcome::CostExceedsLimit => "cost_exceeds_limit",
            DecisionOutcome::Cooldown => "cooldown",
            DecisionOutcome::Blocked => "blocked",
            DecisionOutcome::Unavailable => "unavailable",
        }
    }
}

impl EncodeLabelValue for DecisionOutcome {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), fmt::Error> {
        EncodeLabelValue::encode(&self.as_str(), encoder)
    }
}

/// The counters of one rule, one per outcome.
struct RuleCounters {
    rule: Box<str>,
    by_outcome: [Counter; 6],
}

impl RuleCounters {
    fn new(rule: &str, family: &Family<DecisionLabels, Counter>) -> Self {
        let counter =
            |decision| family.get_or_create(&DecisionLabels { rule: rule.to_owned(), decision }).clone();
        RuleCounters { rule: rule.into(), by_outcome: DecisionOutcome::ALL.map(counter) }
    }

    fn count(&self, outcome: DecisionOutcome) {
        self.by_outcome[outcome as usize].inc();
    }
}

impl Metrics {
    pub(crate) fn new(rules: &RuleSet) -> Self {
        let mut registry = Registry::with_prefix(PREFIX);
        let decisions = Family::<DecisionLabels, Counter>::default();
        let responses = Family::<ResponseLabels, Counter>::default();
        let shadow_refusals = Family::<RuleLabel, Counter>::default();
        let keys_refused = Family::<ReasonLabel, Counter>::default();
        let degraded = Family::<DegradedLabels, Counter>::default();
        let degraded_seconds = Counter::<f64, AtomicU64>::default();
        registry.register("decisions", "Decisions by deciding rule and outcome", decisions.clone());
        registry.register(
            "degraded_decisions",
            "Decisions made while Redis was unreachable",
            degraded.clone(),
        );
        let help = "Time during which Redis was unreachable, in whole or in part";
        registry.register("degraded_seconds", help, degraded_seconds.clone());
        let help = "Refusals that log_only rules would have made";
        registry.register("shadow_refusals", help, shadow_refusals.clone());
        registry.register("http_responses", "HTTP responses by route and status", responses.clone());
        let help = "Checks refused because of an invalid client API key";
        registry.register("keys_refused", help, keys_refused.clone());
        let callers_refused = Counter::default();
        let help = "Requests refused by the limits of [callers]";
        registry.register("callers_refused", help, callers_refused.clone());
        let without_rule = RuleCounters::new("", &decisions);
        let metrics = Metrics {
            registry,
            decisions,
            degraded,
            degraded_seconds,
            shadow_refusals,
            responses,
            keys_refused,
            callers_refused,
            in_force: ArcSwap::default(),
            retired: Mutex::default(),
            without_rule,
        };
        metrics.apply_rules(rules, Timestamp::default());
        metrics
    }

    /// Creates counters for the rules of a new set. Those of removed rules stay for a while.
    pub(crate) fn apply_rules(&self, rules: &RuleSet, now: Timestamp) {
        let mut retired = self.retired.lock();
        let counters = rules.rules().iter().map(|rule| RuleCounters::new(&rule.name, &self.decisions));
        let names: HashSet<Box<str>> = rules.rules().iter().map(|rule| Box::from(&*rule.name)).collect();
        let next = Arc::new(InForce { by_position: counters.collect(), names });
        let before = self.in_force.swap(Arc::clone(&next));
        before.names.difference(&next.names).for_each(|rule| retired.add(rule, now));
        retired.retain(|rule| !next.names.contains(rule));
        self.drop_series(&mut retired, now);
    }

    fn drop_series(&self, retired: &mut RetiredRules, now: Timestamp) {
        while let Some(rule) = retired.pop_due(now) {
            let rule = String::from(rule);
            for decision in DecisionOutcome::ALL {
                self.decisions.remove(&DecisionLabels { rule: rule.clone(), decision });
            }
            for mode in OnStoreFailure::ALL.map(OnStoreFailure::as_str) {
                self.degraded.remove(&DegradedLabels { rule: rule.clone(), mode });
            }
            self.shadow_refusals.remove(&RuleLabel { rule });
        }
    }

    /// A decision that began before its rule was removed recreates its series: they must be dropped again.
    fn retire_if_removed(&self, decision: &Decision, rule: &str, in_force: &InForce) {
        let is_rule = || decision.rules().rules().iter().any(|known| *known.name == *rule);
        if !in_force.names.contains(rule) && is_rule() {
            self.retired.lock().add(rule, decision.now);
        }
    }

    pub(crate) fn count_response(&self, route: &'static str, status: u16) {
        self.responses.get_or_create(&ResponseLabels { route, status }).inc();
    }

    pub(crate) fn count_degraded(&self, passed: Duration) {
        self.degraded_seconds.inc_by(passed.as_secs_f64());
    }

    pub(crate) fn count_refused_caller(&self) {
        self.callers_refused.inc();
    }

    pub(crate) fn count_refused_key(&self, refusal: KeyRefusal) {
        self.keys_refused.get_or_create(&ReasonLabel { reason: refusal.as_str() }).inc();
    }

    /// All metrics as OpenMetrics text.
    pub(crate) fn text(&self, sources: &MetricSources<'_>) -> String {
        self.drop_series(&mut self.retired.lock(), sources.clock.now());
        let mut collector = Collector::new();
        service::collect(sources, &mut collector);
        config::collect(sources, &mut collector);
        if let Some(redis) = sources.limiter.counters().redis() {
            store::collect(redis, &sources.limiter.reconcile_status(), &mut collector);
        }
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = encode_registry(&mut text, &self.registry);
        let _ = encode_registry(&mut text, collector.registry());
        let _ = encode_eof(&mut text);
        text
    }
}

impl RecordSink for Metrics {
    fn offer(&self, record: &Record<'_>) {
        let decision = record.decision;
        let outcome = DecisionOutcome::of(decision);
        let in_force = self.in_force.load();
        let counters = decision.rule_position().and_then(|position| in_force.by_position.get(position));
        match (counters, decision.rule()) {
            // The decision may have used the previous rule set: the name is compared, the position is a shortcut.
            (Some(counters), Some(rule)) if *counters.rule == *rule.name => counters.count(outcome),
            (_, Some(rule)) => {
                RuleCounters::new(&rule.name, &self.decisions).count(outcome);
                self.retire_if_removed(decision, &rule.name, &in_force);
            }
            (_, None) => self.without_rule.count(outcome),
        }
        if decision.degraded {
            let labels = DegradedLabels::new(decision);
            self.degraded.get_or_create(&labels).inc();
            self.retire_if_removed(decision, &labels.rule, &in_force);
            // Rules that fail open are evaluated like log_only ones here; they must not count as such.
            return;
        }
        if decision.cooldown_until().is_some() {
            // A client in cooldown is refused whatever its limits say.
            return;
        }
        let is_shadow_refusal =
            |report: &&LimitReport| report.effect == Effect::Shadow && !report.verdict.admits();
        for report in decision.reports.iter().filter(is_shadow_refusal) {
            let label = RuleLabel { rule: decision.rule_name_of(report).to_owned() };
            self.shadow_refusals.get_or_create(&label).inc();
            self.retire_if_removed(decision, &label.rule, &in_force);
        }
    }
}

#[cfg(test)]
mod tests;

//! Metrics for Prometheus. Labels come from the configuration and from fixed lists, never from a client.

mod collector;
mod config;
mod service;
mod store;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use arc_swap::ArcSwap;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::{Metric, Registry};
use tollgate::counters::Effect;
use tollgate::decision::LimitReport;
use tollgate::record::{Record, RecordSink};
use tollgate::rules::OnStoreFailure;
use tollgate::{Answer, Decision, Refusal, RuleSet};

use self::collector::Collector;
use crate::ServiceLimiter;
use crate::auth::api_keys::KeyRefusal;
use crate::auth::throttle::AuthThrottle;
use crate::check::idempotency::IdempotencyStore;
use crate::config::reload::ReloadHandle;
use crate::config::sync::ConfigSync;
use crate::listener::ConnectionStats;
use crate::runtime::clock::Clock;
use crate::runtime::data_dir::persistence_status::PersistenceStatus;

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
    pub(crate) persistence: &'a PersistenceStatus,
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
    /// Also counts decisions whose rule was removed meanwhile.
    without_rule: RuleCounters,
}

/// The rules in force.
#[derive(Default)]
struct InForce {
    /// Counters by rule position, so that a decision looks up no label.
    by_position: Vec<RuleCounters>,
    names: HashSet<Box<str>>,
}

impl InForce {
    /// Whether a rule of the decision was removed since. Its series are dropped and must not return.
    fn lacks(&self, rule: &str, decision: &Decision) -> bool {
        !self.names.contains(rule) && decision.rules().rules().iter().any(|known| *known.name == *rule)
    }
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct DecisionLabels {
    rule: String,
    decision: &'static str,
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
        let rules = decision.rules();
        let position = rules.rules().iter().position(|rule| *rule.name == *name).unwrap_or(usize::MAX);
        // A store that rejects our calls refuses whatever the mode is: `decisions` counts that as unavailable.
        DegradedLabels { rule: name.to_owned(), mode: rules.on_store_failure(position).as_str() }
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

/// The counters of one rule, one per outcome.
struct RuleCounters {
    rule: Box<str>,
    by_outcome: [Counter; OUTCOMES.len()],
}

impl RuleCounters {
    fn new(rule: &str, family: &Family<DecisionLabels, Counter>) -> Self {
        let counter =
            |decision| family.get_or_create_owned(&DecisionLabels { rule: rule.to_owned(), decision });
        RuleCounters { rule: rule.into(), by_outcome: OUTCOMES.map(counter) }
    }

    fn count(&self, outcome: usize) {
        self.by_outcome[outcome].inc();
    }
}

fn register<M: Metric + Clone + Default>(registry: &mut Registry, name: &str, help: &str) -> M {
    let metric = M::default();
    registry.register(name, help, metric.clone());
    metric
}

impl Metrics {
    pub(crate) fn new(rules: &RuleSet) -> Self {
        let mut registry = Registry::with_prefix(PREFIX);
        let all = &mut registry;
        let decisions = register(all, "decisions", "Decisions by deciding rule and outcome");
        let help = "Time during which Redis was unreachable, in whole or in part";
        let metrics = Metrics {
            without_rule: RuleCounters::new("", &decisions),
            decisions,
            degraded: register(all, "degraded_decisions", "Decisions made while Redis was unreachable"),
            degraded_seconds: register(all, "degraded_seconds", help),
            shadow_refusals: register(all, "shadow_refusals", "Refusals that log_only rules would have made"),
            responses: register(all, "http_responses", "HTTP responses by route and status"),
            keys_refused: register(
                all,
                "keys_refused",
                "Checks refused because of an invalid client API key",
            ),
            callers_refused: register(all, "callers_refused", "Requests refused by the limits of [callers]"),
            in_force: ArcSwap::default(),
            registry,
        };
        metrics.apply_rules(rules);
        metrics
    }

    /// Creates counters for the rules of a new set, and drops the series of removed rules.
    pub(crate) fn apply_rules(&self, rules: &RuleSet) {
        let counters = rules.rules().iter().map(|rule| RuleCounters::new(&rule.name, &self.decisions));
        let names: HashSet<Box<str>> = rules.rules().iter().map(|rule| Box::from(&*rule.name)).collect();
        let next = Arc::new(InForce { by_position: counters.collect(), names });
        let before = self.in_force.swap(Arc::clone(&next));
        for rule in before.names.difference(&next.names).map(|rule| String::from(&**rule)) {
            for decision in OUTCOMES {
                self.decisions.remove(&DecisionLabels { rule: rule.clone(), decision });
            }
            for mode in OnStoreFailure::ALL.map(OnStoreFailure::as_str) {
                self.degraded.remove(&DegradedLabels { rule: rule.clone(), mode });
            }
            self.shadow_refusals.remove(&RuleLabel { rule });
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
        let outcome = outcome_of(decision);
        let in_force = self.in_force.load();
        let counters = decision.rule_position().and_then(|position| in_force.by_position.get(position));
        match (counters, decision.rule()) {
            // The decision may have used the previous rule set: the name is compared, the position is a shortcut.
            (Some(counters), Some(rule)) if *counters.rule == *rule.name => counters.count(outcome),
            (_, Some(rule)) if in_force.names.contains(&*rule.name) => {
                RuleCounters::new(&rule.name, &self.decisions).count(outcome);
            }
            _ => self.without_rule.count(outcome),
        }
        if decision.degraded {
            let labels = DegradedLabels::new(decision);
            if !in_force.lacks(&labels.rule, decision) {
                self.degraded.get_or_create(&labels).inc();
            }
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
            let rule = decision.rule_name_of(report);
            if !in_force.lacks(rule, decision) {
                self.shadow_refusals.get_or_create(&RuleLabel { rule: rule.to_owned() }).inc();
            }
        }
    }
}

#[cfg(test)]
mod tests;

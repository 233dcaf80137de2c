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

use self::collector::Figures;
use self::retired_series::Former;
use crate::app::App;
use crate::auth::api_keys::KeyRefusal;

/// What every name begins with.
const PREFIX: &str = "tollgate";

/// What is measured.
pub(crate) struct Metrics {
    registry: Registry,
    decisions: Family<DecisionLabels, Counter>,
    degraded: Family<DegradedLabels, Counter>,
    degraded_seconds: Counter<f64, AtomicU64>,
    /// What rules that only log would have refused: how a rule is tried before it is enforced.
    shadow_refusals: Family<RuleLabel, Counter>,
    responses: Family<ResponseLabels, Counter>,
    /// Checks of clients whose key is none.
    keys_refused: Family<ReasonLabel, Counter>,
    /// Requests of callers that ask too much themselves.
    callers_refused: Counter,
    in_force: ArcSwap<InForce>,
    /// Locked when rules are replaced and when somebody asks for metrics; by a decision only if its rule has just gone.
    former: Mutex<Former>,
    unruled: RuleCounters,
}

/// The rules in force.
#[derive(Default)]
struct InForce {
    /// Their counters by position, so that a decision looks up no label.
    by_position: Vec<RuleCounters>,
    names: HashSet<Box<str>>,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct DecisionLabels {
    rule: String,
    decision: Kind,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct DegradedLabels {
    rule: String,
    mode: &'static str,
}

impl DegradedLabels {
    /// By the rule that decided; where none did, by the first that would have.
    fn of(decision: &Decision) -> Self {
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

/// How a decision ended.
#[derive(Copy, Clone, Debug, Hash, PartialEq, Eq)]
enum Kind {
    Admitted,
    OverLimit,
    CostExceedsLimit,
    Cooldown,
    Blocked,
    Unavailable,
}

impl Kind {
    const ALL: [Kind; 6] = [
        Kind::Admitted,
        Kind::OverLimit,
        Kind::CostExceedsLimit,
        Kind::Cooldown,
        Kind::Blocked,
        Kind::Unavailable,
    ];

    fn of(decision: &Decision) -> Self {
        match decision.answer {
            Answer::Admit { .. } => Kind::Admitted,
            Answer::Refuse { reason: Refusal::OverLimit, .. } => Kind::OverLimit,
            Answer::Refuse { reason: Refusal::CostExceedsLimit, .. } => Kind::CostExceedsLimit,
            Answer::Refuse { reason: Refusal::Cooldown, .. } => Kind::Cooldown,
            Answer::Block => Kind::Blocked,
            Answer::Unavailable => Kind::Unavailable,
        }
    }

    const fn as_str(self) -> &'static str {
        match self {
            Kind::Admitted => "admitted",
            Kind::OverLimit => "over_limit",
            Kind::CostExceedsLimit => "cost_exceeds_limit",
            Kind::Cooldown => "cooldown",
            Kind::Blocked => "blocked",
            Kind::Unavailable => "unavailable",
        }
    }
}

impl EncodeLabelValue for Kind {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), fmt::Error> {
        EncodeLabelValue::encode(&self.as_str(), encoder)
    }
}

/// The counters of one rule, one for each way a decision can end.
struct RuleCounters {
    rule: Box<str>,
    by_kind: [Counter; 6],
}

impl RuleCounters {
    fn new(rule: &str, family: &Family<DecisionLabels, Counter>) -> Self {
        let counter =
            |decision| family.get_or_create(&DecisionLabels { rule: rule.to_owned(), decision }).clone();
        RuleCounters { rule: rule.into(), by_kind: Kind::ALL.map(counter) }
    }

    fn count(&self, kind: Kind) {
        self.by_kind[kind as usize].inc();
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
        registry.register("decisions", "Decisions by the rule that decided", decisions.clone());
        registry.register(
            "degraded_decisions",
            "Decisions made without the shared counters",
            degraded.clone(),
        );
        let help = "Time in which some shared counters could not be reached";
        registry.register("degraded_seconds", help, degraded_seconds.clone());
        let help = "What rules that only log would have refused";
        registry.register("shadow_refusals", help, shadow_refusals.clone());
        registry.register("http_responses", "Answers by route and status", responses.clone());
        let help = "Checks of clients whose key is none";
        registry.register("keys_refused", help, keys_refused.clone());
        let callers_refused = Counter::default();
        let help = "Requests of callers that asked more than callers may";
        registry.register("callers_refused", help, callers_refused.clone());
        let unruled = RuleCounters::new("", &decisions);
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
            former: Mutex::default(),
            unruled,
        };
        metrics.follow(rules, Timestamp::default());
        metrics
    }

    /// Makes counters for the rules of a new set. Those of rules that are gone stay for a while.
    pub(crate) fn follow(&self, rules: &RuleSet, now: Timestamp) {
        let mut former = self.former.lock();
        let counters = rules.rules().iter().map(|rule| RuleCounters::new(&rule.name, &self.decisions));
        let names: HashSet<Box<str>> = rules.rules().iter().map(|rule| Box::from(&*rule.name)).collect();
        let next = Arc::new(InForce { by_position: counters.collect(), names });
        let before = self.in_force.swap(Arc::clone(&next));
        before.names.difference(&next.names).for_each(|rule| former.note(rule, now));
        former.retain(|rule| !next.names.contains(rule));
        self.drop_series(&mut former, now);
    }

    fn drop_series(&self, former: &mut Former, now: Timestamp) {
        while let Some(rule) = former.take_due(now) {
            let rule = String::from(rule);
            for decision in Kind::ALL {
                self.decisions.remove(&DecisionLabels { rule: rule.clone(), decision });
            }
            for mode in OnStoreFailure::ALL.map(OnStoreFailure::as_str) {
                self.degraded.remove(&DegradedLabels { rule: rule.clone(), mode });
            }
            self.shadow_refusals.remove(&RuleLabel { rule });
        }
    }

    /// A decision that began before its rule went may bring a series back: that is to go again.
    fn heed_former(&self, decision: &Decision, rule: &str, in_force: &InForce) {
        let is_rule = || decision.rules().rules().iter().any(|known| *known.name == *rule);
        if !in_force.names.contains(rule) && is_rule() {
            self.former.lock().note(rule, decision.now);
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

    /// Everything, as OpenMetrics text: what is counted here, and the figures that the service keeps elsewhere.
    pub(crate) fn text(&self, app: &App) -> String {
        self.drop_series(&mut self.former.lock(), app.now());
        let mut figures = Figures::new();
        service::read(app, &mut figures);
        config::read(app, &mut figures);
        if let Some(redis) = app.counters().redis() {
            store::read(redis, &app.limiter().reconcile_status(), &mut figures);
        }
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = encode_registry(&mut text, &self.registry);
        let _ = encode_registry(&mut text, figures.registry());
        let _ = encode_eof(&mut text);
        text
    }
}

impl RecordSink for Metrics {
    fn offer(&self, record: &Record<'_>) {
        let decision = record.decision;
        let kind = Kind::of(decision);
        let in_force = self.in_force.load();
        let counters = decision.rule_position().and_then(|position| in_force.by_position.get(position));
        match (counters, decision.rule()) {
            // A decision may have seen the rules of a moment ago: the name decides, the position only helps.
            (Some(counters), Some(rule)) if *counters.rule == *rule.name => counters.count(kind),
            (_, Some(rule)) => {
                RuleCounters::new(&rule.name, &self.decisions).count(kind);
                self.heed_former(decision, &rule.name, &in_force);
            }
            (_, None) => self.unruled.count(kind),
        }
        if decision.degraded {
            let labels = DegradedLabels::of(decision);
            self.degraded.get_or_create(&labels).inc();
            self.heed_former(decision, &labels.rule, &in_force);
            // Here limits of rules that fail open are judged like those that only log, and are none.
            return;
        }
        if decision.cooldown_until().is_some() {
            // Whoever is kept out is refused whatever its limits say: they were looked at, or not even that.
            return;
        }
        let shadowed = |report: &&LimitReport| report.effect == Effect::Shadow && !report.verdict.admits();
        for report in decision.reports.iter().filter(shadowed) {
            let label = RuleLabel { rule: decision.rule_name_of(report).to_owned() };
            self.shadow_refusals.get_or_create(&label).inc();
            self.heed_former(decision, &label.rule, &in_force);
        }
    }
}

#[cfg(test)]
mod tests;

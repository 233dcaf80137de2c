//! Metrics for Prometheus. Labels come from the configuration and from fixed lists, never from a client.

mod collector;
mod config;
pub(crate) mod latency;
mod process;
mod proxy;
mod records;
mod rules;
mod series;
mod service;
mod store;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use arc_swap::ArcSwap;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::prometheus_protobuf::encode_to_vec;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::{Metric, Registry};
use tollgate::RuleSet;
use tollgate::record::{Record, RecordSink, RefundRecord};

use self::collector::Collector;
use self::latency::DurationHistogram;
use self::rules::{RuleCounters, RuleFamilies, RulesInForce};
use self::series::Series;
use crate::ServiceLimiter;
use crate::auth::api_keys::KeyRefusal;
use crate::auth::jwt::{JwtStats, JwtVerifier};
use crate::auth::throttle::AuthThrottle;
use crate::check::idempotency::IdempotencyStore;
use crate::config::reload::ReloadHandle;
use crate::config::settings::ServerCertificate;
use crate::config::sync::ConfigSync;
use crate::gateways::proxy::Proxy;
use crate::listener::ConnectionStats;
use crate::records::recorder::NodeNames;
use crate::runtime::clock::Clock;
use crate::runtime::data_dir::persistence_status::PersistenceStatus;

/// The prefix of all names but those of the process.
const PREFIX: &str = "tollgate";

/// The parts of the service whose state is exported.
pub(crate) struct MetricSources<'a> {
    pub(crate) limiter: &'a ServiceLimiter,
    pub(crate) clock: Clock,
    pub(crate) config_sync: &'a ConfigSync,
    pub(crate) auth_throttle: &'a AuthThrottle,
    pub(crate) token_throttle: &'a AuthThrottle,
    pub(crate) idempotency: &'a IdempotencyStore,
    pub(crate) connections: &'a ConnectionStats,
    /// The certificates of all listeners; empty without TLS.
    pub(crate) certificates: &'a [ServerCertificate],
    /// Absent without a configuration file.
    pub(crate) reload: Option<&'a ReloadHandle>,
    pub(crate) persistence: &'a PersistenceStatus,
    /// The engine of the configuration database.
    pub(crate) database: &'static str,
    pub(crate) node: &'a NodeNames,
    /// Absent without a reverse proxy.
    pub(crate) proxy: Option<&'a Proxy>,
    pub(crate) jwt_stats: &'a JwtStats,
    /// Absent without `[[identity.jwt]]`.
    pub(crate) jwt: Option<&'a JwtVerifier>,
}

/// How metrics are written.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum MetricFormat {
    /// OpenMetrics text, with classic histogram buckets.
    Text,
    /// Prometheus protobuf, with classic and native histogram buckets.
    Protobuf,
}

/// Counters of this process, and the registry that exports them.
pub(crate) struct Metrics {
    registry: Registry,
    by_rule: RuleFamilies,
    decision_duration: DurationHistogram,
    degraded_seconds: Counter<f64, AtomicU64>,
    responses: Series<ResponseLabels, Counter>,
    /// Checks with an invalid client API key.
    keys_refused: Series<ReasonLabel, Counter>,
    /// Requests refused by `[callers]`.
    callers_refused: Counter,
    /// Whether nodes share the counters, so that there are decisions without them.
    shares_counters: bool,
    in_force: ArcSwap<RulesInForce>,
    /// Also counts decisions whose rule was removed meanwhile.
    without_rule: RuleCounters,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
struct ResponseLabels {
    route: &'static str,
    status: u16,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

fn register<M: Metric + Clone + Default>(registry: &mut Registry, name: &str, help: &str) -> M {
    let metric = M::default();
    registry.register(name, help, metric.clone());
    metric
}

impl Metrics {
    pub(crate) fn new(rules: &RuleSet, shares_counters: bool) -> Self {
        let mut registry = Registry::with_prefix(PREFIX);
        let all = &mut registry;
        let help = "Verdicts of each evaluated rule: within its limits, near them (less than 10 % left), or exceeded";
        let by_rule = RuleFamilies {
            decisions: register(all, "decisions", "Decisions by deciding rule and outcome"),
            verdicts: register(all, "rule_verdicts", help),
            degraded: register(all, "degraded_decisions", "Decisions made while Redis was unreachable"),
            shadow_refusals: register(all, "shadow_refusals", "Refusals that log_only rules would have made"),
            refunds: register(
                all,
                "refunds",
                "Refunds of each rule: refunded, dropped (no longer counted) or lost",
            ),
        };
        let keys_refused: Series<ReasonLabel, Counter> =
            register(all, "keys_refused", "Checks refused because of an invalid client API key");
        for refusal in KeyRefusal::ALL {
            keys_refused.get_or_create(&ReasonLabel { reason: refusal.as_str() });
        }
        let help = "Time from a parsed check to its decision";
        let metrics = Metrics {
            without_rule: by_rule.without_rule(),
            by_rule,
            decision_duration: register(all, "decision_duration_seconds", help),
            degraded_seconds: register(
                all,
                "degraded_seconds",
                "Time during which Redis was unreachable, in whole or in part",
            ),
            responses: register(all, "http_responses", "HTTP responses by route and status"),
            keys_refused,
            callers_refused: register(all, "callers_refused", "Requests refused by the limits of [callers]"),
            shares_counters,
            in_force: ArcSwap::default(),
            registry,
        };
        metrics.apply_rules(rules);
        metrics
    }

    /// Creates counters for the rules of a new set, and drops the series of removed rules.
    pub(crate) fn apply_rules(&self, rules: &RuleSet) {
        let next = Arc::new(RulesInForce::new(rules, &self.by_rule, self.shares_counters));
        let before = self.in_force.swap(Arc::clone(&next));
        before.removed_in(&next).for_each(|rule| self.by_rule.remove(rule));
    }

    pub(crate) fn observe_decision(&self, took: Duration) {
        self.decision_duration.observe(took);
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

    /// All metrics.
    pub(crate) fn encode(&self, sources: &MetricSources<'_>, format: MetricFormat) -> Vec<u8> {
        let mut collector = Collector::with_prefix(PREFIX);
        service::collect(sources, &mut collector);
        config::collect(sources, &mut collector);
        if let Some(proxy) = sources.proxy {
            proxy::collect(proxy, &mut collector);
        }
        if let Some(recorder) = &sources.limiter.records().recorder {
            records::collect(sources, recorder, &mut collector);
        }
        if let Some(redis) = sources.limiter.counters().redis() {
            store::collect(redis, &sources.limiter.reconcile_status(), &mut collector);
        }
        let mut process = Collector::without_prefix();
        process::collect(&mut process);
        let registries = [&self.registry, collector.registry(), process.registry()];
        match format {
            MetricFormat::Text => {
                let mut text = String::new();
                // Writing to memory does not fail.
                let _ = registries.into_iter().try_for_each(|registry| encode_registry(&mut text, registry));
                let _ = encode_eof(&mut text);
                text.into_bytes()
            }
            MetricFormat::Protobuf => registries
                .into_iter()
                .flat_map(|registry| encode_to_vec(registry).unwrap_or_default())
                .collect(),
        }
    }
}

impl RecordSink for Metrics {
    fn offer(&self, record: &Record<'_>) {
        let (decision, in_force) = (record.decision, self.in_force.load());
        in_force.deciding(decision).unwrap_or(&self.without_rule).count_decision(decision);
        if decision.degraded {
            // The verdicts are of this node's share, and rules that fail open are evaluated like log_only ones.
            in_force.count_degraded(decision);
        } else if decision.cooldown_until().is_none() {
            // A client in cooldown is refused whatever its limits say.
            in_force.count_verdicts(decision);
        }
    }

    fn refunded(&self, refund: &RefundRecord<'_>) {
        self.in_force.load().count_refund(refund);
    }
}

#[cfg(test)]
mod tests;

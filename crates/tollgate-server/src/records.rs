//! What is kept of decisions: metrics, usage totals, a sample of recent traffic for dry runs, and log lines of refusals.

pub(crate) mod metrics;
pub(crate) mod refusal_log;
#[allow(dead_code, unused_imports, reason = "the recorder is not wired yet")]
pub(crate) mod spool;
pub(crate) mod traffic_sample;
pub(crate) mod usage;

use tollgate::RuleSet;
use tollgate::record::{Record, RecordSink};

use self::metrics::Metrics;
use self::refusal_log::RefusalLog;
use self::traffic_sample::TrafficSample;
use self::usage::Usage;

/// Everything that records decisions.
pub(crate) struct Records {
    pub(crate) metrics: Metrics,
    pub(crate) usage: Usage,
    pub(crate) traffic_sample: TrafficSample,
    refusal_log: RefusalLog,
}

impl Records {
    /// `shares_counters` is whether nodes share the counters.
    pub(crate) fn new(rules: &RuleSet, shares_counters: bool, logs_refusals: bool) -> Self {
        Records {
            metrics: Metrics::new(rules, shares_counters),
            usage: Usage::default(),
            traffic_sample: TrafficSample::default(),
            refusal_log: RefusalLog::new(logs_refusals),
        }
    }
}

impl RecordSink for Records {
    fn offer(&self, record: &Record<'_>) {
        self.metrics.offer(record);
        self.usage.offer(record);
        self.traffic_sample.offer(record);
        self.refusal_log.offer(record);
    }
}

//! What is kept of decisions: metrics, usage totals, a sample of recent traffic for dry runs, the busiest clients, log lines of refusals,
//! and the records of the decision log, of windows and of rollups.

pub(crate) mod codec;
mod delta_table;
pub(crate) mod drain;
mod flusher;
pub(crate) mod identifier;
pub(crate) mod metrics;
mod parquet;
pub(crate) mod pipeline;
pub(crate) mod queries;
pub(crate) mod recorder;
pub(crate) mod refusal_log;
mod routes;
mod row_buffer;
mod sampling;
pub(crate) mod spool;
pub(crate) mod top;
pub(crate) mod traffic_sample;
pub(crate) mod usage;

use std::sync::Arc;

use tollgate::RuleSet;
use tollgate::record::{Record, RecordSink, RefundRecord};

use self::metrics::Metrics;
use self::pipeline::RecordStats;
use self::recorder::{NodeNames, Recorder};
use self::refusal_log::RefusalLog;
use self::traffic_sample::TrafficSample;
use self::usage::Usage;
use crate::config::settings::Settings;

/// Everything that records decisions.
pub(crate) struct Records {
    pub(crate) metrics: Metrics,
    pub(crate) usage: Usage,
    pub(crate) traffic_sample: TrafficSample,
    /// Absent with `records.enabled = false`. Called by the check itself, which knows the latency and the request id.
    pub(crate) recorder: Option<Arc<Recorder>>,
    /// Figures of what moves records to the database and to Parquet files.
    pub(crate) record_stats: Arc<RecordStats>,
    refusal_log: RefusalLog,
}

impl Records {
    /// `shares_counters` is whether nodes share the counters.
    pub(crate) fn new(rules: &RuleSet, settings: &Settings, shares_counters: bool) -> Self {
        let records = &settings.records;
        let recorder = || {
            let node = NodeNames::new(&settings.server);
            Arc::new(Recorder::new(rules, node, records.sample_allowed, shares_counters))
        };
        Records {
            recorder: records.enabled.then(recorder),
            record_stats: Arc::default(),
            metrics: Metrics::new(rules, shares_counters),
            usage: Usage::default(),
            traffic_sample: TrafficSample::default(),
            refusal_log: RefusalLog::new(settings.log.refusals),
        }
    }

    /// Follows a change of the rules.
    pub(crate) fn apply_rules(&self, rules: &RuleSet) {
        self.metrics.apply_rules(rules);
        if let Some(recorder) = &self.recorder {
            recorder.apply_rules(rules);
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

    fn refunded(&self, refund: &RefundRecord<'_>) {
        self.metrics.refunded(refund);
    }
}

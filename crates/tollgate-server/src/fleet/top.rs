//! The busiest clients of the fleet: every node publishes its summary, and any node merges them.

use std::sync::Arc;
use std::time::Duration;

use tollgate::Timestamp;

use crate::ServiceLimiter;
use crate::records::queries::{NoRecords, RecordsUnavailable};
use crate::records::recorder::Recorder;
use crate::records::top::TopSummary;
use crate::runtime::clock::Clock;

const PUBLISH_EVERY: Duration = Duration::from_secs(2);
/// A summary outlives a few failed attempts to replace it.
const EXPIRES_AFTER: Duration = Duration::from_secs(10);
/// Entries of each published list.
const PUBLISHED_ENTRIES_MAX: usize = 128;
const PUBLISHED_REFUSALS_MAX: usize = 128;

/// What the nodes counted.
pub(crate) struct FleetTop {
    pub(crate) summary: TopSummary,
    /// Nodes whose counts are included.
    pub(crate) nodes: usize,
    /// Other nodes, whose counts are not.
    pub(crate) nodes_missing: usize,
    /// Whether the other nodes are unknown, because Redis is unreachable.
    pub(crate) degraded: bool,
}

/// Publishes what this node counts, for as long as the service runs.
pub(crate) async fn publish(limiter: Arc<ServiceLimiter>, clock: Clock) {
    let Some(redis) = limiter.counters().redis().cloned() else { return };
    let Some(recorder) = limiter.records().recorder.clone() else { return };
    loop {
        tokio::time::sleep(PUBLISH_EVERY).await;
        let summary = own_summary(&recorder, clock.now()).await;
        let summary = summary.shortened(PUBLISHED_ENTRIES_MAX, PUBLISHED_REFUSALS_MAX);
        let report = serde_json::to_vec(&summary).unwrap_or_default();
        // The store reports an outage; the next summary contains what this one would have.
        let _ = redis.fleet().publish_report(&report, EXPIRES_AFTER).await;
    }
}

/// What this node counted until now, and the others until they last published it.
///
/// # Errors
/// When this node does not record decisions.
pub(crate) async fn collect(
    limiter: &ServiceLimiter,
    now: Timestamp,
) -> Result<FleetTop, RecordsUnavailable> {
    let recorder = limiter.records().recorder.as_ref().ok_or(NoRecords::Disabled)?;
    let own = own_summary(recorder, now).await;
    let Some(redis) = limiter.counters().redis() else {
        return Ok(FleetTop { summary: own, nodes: 1, nodes_missing: 0, degraded: false });
    };
    let Ok(others) = redis.fleet().other_reports().await else {
        return Ok(FleetTop { summary: own, nodes: 1, nodes_missing: 0, degraded: true });
    };
    let published = others.reports.len();
    // A report that cannot be read is of another version.
    let parsed = others.reports.iter().filter_map(|report| serde_json::from_slice(report).ok());
    let summaries: Vec<TopSummary> = std::iter::once(own).chain(parsed).collect();
    let nodes = summaries.len();
    let nodes_missing = others.missing + 1 + published - nodes;
    Ok(FleetTop { summary: TopSummary::merge(&summaries), nodes, nodes_missing, degraded: false })
}

/// Off the threads that serve requests.
async fn own_summary(recorder: &Arc<Recorder>, now: Timestamp) -> TopSummary {
    let recorder = Arc::clone(recorder);
    let summary = tokio::task::spawn_blocking(move || recorder.top.summary(now)).await;
    summary.unwrap_or_default()
}

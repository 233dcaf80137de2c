//! What is kept of decisions: metrics, usage totals, and a sample of recent traffic for dry runs.

pub(crate) mod metrics;
pub(crate) mod traffic_sample;
pub(crate) mod usage;

//! Collects values that other parts keep, at scrape time.
//!
//! Each scrape has a registry of its own, so concurrent scrapes do not mix their values.

use std::fmt::Debug;
use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::{EncodeCounterValue, EncodeGaugeValue};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::Registry;

use super::latency::DurationHistogram;
use super::series::Series;

/// The values of one scrape.
pub(super) struct Collector(Registry);

/// Names and values of labels.
pub(super) type Labels = Vec<(&'static str, String)>;

impl Collector {
    pub(super) fn with_prefix(prefix: &str) -> Self {
        Collector(Registry::with_prefix(prefix))
    }

    pub(super) fn without_prefix() -> Self {
        Collector(Registry::default())
    }

    /// Adds a counter; the encoder appends `_total`.
    pub(super) fn counter<N>(&mut self, name: &str, help: &str, value: N)
    where
        N: EncodeCounterValue + Debug + Send + Sync + 'static,
    {
        self.0.register(name, help, ConstCounter::new(value));
    }

    /// Adds a gauge.
    pub(super) fn gauge<N>(&mut self, name: &str, help: &str, value: N)
    where
        N: EncodeGaugeValue + Debug + Send + Sync + 'static,
    {
        self.0.register(name, help, ConstGauge::new(value));
    }

    /// Adds a gauge that is 1 or 0.
    pub(super) fn flag(&mut self, name: &str, help: &str, is_set: bool) {
        self.gauge(name, help, u32::from(is_set));
    }

    /// Adds a counter per label set.
    pub(super) fn counters(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (Labels, u64)>,
    ) {
        let family = Series::<Labels, Counter>::default();
        for (labels, value) in values {
            family.get_or_create(&labels).inc_by(value);
        }
        self.0.register(name, help, family);
    }

    /// Adds a gauge per label set.
    pub(super) fn gauges(&mut self, name: &str, help: &str, values: impl IntoIterator<Item = (Labels, u64)>) {
        let family = Series::<Labels, Gauge<u64, AtomicU64>>::default();
        for (labels, value) in values {
            family.get_or_create(&labels).set(value);
        }
        self.0.register(name, help, family);
    }

    /// Adds a histogram per label set.
    pub(super) fn histograms(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (Labels, DurationHistogram)>,
    ) {
        let family = Series::<Labels, DurationHistogram>::default();
        for (labels, histogram) in values {
            family.insert(labels, histogram);
        }
        self.0.register(name, help, family);
    }

    pub(super) fn registry(&self) -> &Registry {
        &self.0
    }
}

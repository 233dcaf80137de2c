//! Series of one metric family, exported in the order of their labels.
//!
//! `prometheus_client::metrics::family::Family` exports them in a random order, which makes two scrapes hard to compare.

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;

use parking_lot::RwLock;
use prometheus_client::encoding::{EncodeLabelSet, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::{MetricType, TypedMetric};

/// Metrics by label set. Clones share them.
#[derive(Debug)]
pub(super) struct Series<L, M>(Arc<RwLock<HashMap<L, M>>>);

impl<L, M> Clone for Series<L, M> {
    fn clone(&self) -> Self {
        Series(Arc::clone(&self.0))
    }
}

impl<L, M> Default for Series<L, M> {
    fn default() -> Self {
        Series(Arc::default())
    }
}

impl<L: Clone + Eq + Hash, M: Clone + Default> Series<L, M> {
    /// A handle to the metric with these labels. Callers on the path of a request keep it.
    pub(super) fn get_or_create(&self, labels: &L) -> M {
        if let Some(metric) = self.0.read().get(labels) {
            return metric.clone();
        }
        self.0.write().entry(labels.clone()).or_default().clone()
    }

    pub(super) fn insert(&self, labels: L, metric: M) {
        self.0.write().insert(labels, metric);
    }

    pub(super) fn remove(&self, labels: &L) {
        self.0.write().remove(labels);
    }
}

impl<L, M> EncodeMetric for Series<L, M>
where
    L: EncodeLabelSet + Ord,
    M: EncodeMetric + TypedMetric,
{
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), fmt::Error> {
        let series = self.0.read();
        let mut sorted: Vec<_> = series.iter().collect();
        sorted.sort_unstable_by_key(|(labels, _)| *labels);
        sorted.into_iter().try_for_each(|(labels, metric)| metric.encode(encoder.encode_family(labels)?))
    }

    fn metric_type(&self) -> MetricType {
        M::TYPE
    }

    fn is_empty(&self) -> bool {
        self.0.read().is_empty()
    }
}

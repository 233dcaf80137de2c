//! Figures that are kept elsewhere: read when somebody asks, and told as they are.
//!
//! Each answer has a registry of its own. Figures that were copied into metrics which live on would have to be added to
//! what was read before, or set back; and of two who ask at once, one would be told what the other had half read.

use std::fmt::Debug;
use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::{EncodeGaugeValue, EncodeLabelSet};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::Registry;

use super::PREFIX;

/// What was read for one answer.
pub(super) struct Figures(Registry);

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ServerLabel {
    server: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct FaultLabel {
    server: String,
    fault: &'static str,
}

impl Figures {
    pub(super) fn new() -> Self {
        Figures(Registry::with_prefix(PREFIX))
    }

    /// What only grows while the process runs. It is told with `_total` behind its name.
    pub(super) fn counter(&mut self, name: &str, help: &str, figure: u64) {
        self.0.register(name, help, ConstCounter::new(figure));
    }

    /// What goes up and down.
    pub(super) fn gauge<N>(&mut self, name: &str, help: &str, figure: N)
    where
        N: EncodeGaugeValue + Debug + Send + Sync + 'static,
    {
        self.0.register(name, help, ConstGauge::new(figure));
    }

    /// What holds or does not: 1 or 0.
    pub(super) fn flag(&mut self, name: &str, help: &str, holds: bool) {
        self.gauge(name, help, u32::from(holds));
    }

    /// [`Figures::counter`], of several servers.
    pub(super) fn counters_by_server<'a>(
        &mut self,
        name: &str,
        help: &str,
        figures: impl IntoIterator<Item = (&'a str, u64)>,
    ) {
        let family = Family::<ServerLabel, Counter>::default();
        for (server, figure) in figures {
            family.get_or_create(&ServerLabel { server: server.to_owned() }).inc_by(figure);
        }
        self.0.register(name, help, family);
    }

    /// [`Figures::counter`], of several servers and what they failed by.
    pub(super) fn counters_by_fault<'a>(
        &mut self,
        name: &str,
        help: &str,
        figures: impl IntoIterator<Item = (&'a str, &'static str, u64)>,
    ) {
        let family = Family::<FaultLabel, Counter>::default();
        for (server, fault, figure) in figures {
            family.get_or_create(&FaultLabel { server: server.to_owned(), fault }).inc_by(figure);
        }
        self.0.register(name, help, family);
    }

    /// [`Figures::gauge`], of several servers.
    pub(super) fn gauges_by_server<'a>(
        &mut self,
        name: &str,
        help: &str,
        figures: impl IntoIterator<Item = (&'a str, u64)>,
    ) {
        let family = Family::<ServerLabel, Gauge<u64, AtomicU64>>::default();
        for (server, figure) in figures {
            family.get_or_create(&ServerLabel { server: server.to_owned() }).set(figure);
        }
        self.0.register(name, help, family);
    }

    pub(super) fn registry(&self) -> &Registry {
        &self.0
    }
}

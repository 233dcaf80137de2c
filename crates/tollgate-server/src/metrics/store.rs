//! Figures of shared counters, read when somebody asks. Servers are named as settings or the cluster name them.

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tollgate::counters::CounterStore;
use tollgate_stores::redis::RedisCounters;

/// What is known of the servers and of what is asked of them.
#[derive(Default)]
pub(crate) struct StoreGauges {
    connected: Family<ServerLabel, Gauge>,
    breaker_open: Family<ServerLabel, Gauge>,
    breaker_openings: Family<ServerLabel, Gauge>,
    calls: Family<ServerLabel, Gauge>,
    dials: Family<ServerLabel, Gauge>,
    clock_offset_seconds: Gauge<f64, AtomicU64>,
    refusals_from_memory: Gauge,
    refunds: Gauge,
    nodes: Gauge,
    leases: Gauge,
    leased_units: Gauge,
    leased_charges: Gauge,
    charges: Gauge,
    evicted_keys: Family<ServerLabel, Gauge>,
    memory_bytes: Family<ServerLabel, Gauge>,
    memory_bytes_max: Family<ServerLabel, Gauge>,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ServerLabel {
    server: String,
}

impl StoreGauges {
    pub(super) fn register(&self, registry: &mut Registry) {
        let families = [
            ("store_connected", "Whether there is a connection to a server", &self.connected),
            (
                "store_breaker_open",
                "Whether a server is left alone because it did not answer",
                &self.breaker_open,
            ),
            ("store_breaker_openings", "How often a server had to be left alone", &self.breaker_openings),
            ("store_calls", "Calls sent to a server", &self.calls),
            ("store_dials", "Connections to a server that were tried", &self.dials),
            ("store_evicted_keys", "Keys a server threw away: counters lost", &self.evicted_keys),
            ("store_memory_bytes", "Memory a server uses", &self.memory_bytes),
            ("store_memory_bytes_max", "Memory a server may use, 0 for any", &self.memory_bytes_max),
        ];
        for (name, help, family) in families {
            registry.register(name, help, family.clone());
        }
        let gauges = [
            (
                "store_refusals_from_memory",
                "Refusals answered without asking a server",
                &self.refusals_from_memory,
            ),
            ("store_refunds", "Charges taken back because another server refused", &self.refunds),
            ("store_nodes", "Nodes that share the counters", &self.nodes),
            ("store_leases", "Busy counters of which this node holds a part", &self.leases),
            (
                "store_over_admission_bound",
                "Units leased to this node: what may be admitted beyond limits if a server is lost with its memory",
                &self.leased_units,
            ),
            ("store_charges", "Charges by this node, however served", &self.charges),
            ("store_leased_charges", "Charges served from leases", &self.leased_charges),
        ];
        for (name, help, gauge) in gauges {
            registry.register(name, help, gauge.clone());
        }
        let help = "The servers' clock less ours, as of the last answer";
        registry.register("store_clock_offset_seconds", help, self.clock_offset_seconds.clone());
    }

    /// Reads all of them. A server that has left the cluster leaves the figures too.
    pub(crate) fn read(&self, redis: &RedisCounters) {
        let count = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let families =
            [&self.connected, &self.breaker_open, &self.breaker_openings, &self.calls, &self.dials];
        families.into_iter().for_each(Family::clear);
        for link in redis.links() {
            let figures = [
                i64::from(link.connected),
                i64::from(link.breaker_open),
                count(link.breaker_openings),
                count(link.calls),
                count(link.dials),
            ];
            let label = ServerLabel { server: link.server };
            for (family, figure) in families.into_iter().zip(figures) {
                family.get_or_create(&label).set(figure);
            }
        }
        self.clock_offset_seconds.set(redis.clock_offset_seconds());
        self.refusals_from_memory.set(count(redis.refusals_from_memory()));
        self.refunds.set(count(redis.refunds()));
        self.nodes.set(i64::from(redis.nodes().get()));
        let leases = redis.leases();
        self.leases.set(count(leases.held as u64));
        self.leased_units.set(count(leases.units));
        self.leased_charges.set(count(leases.served));
        self.charges.set(count(leases.charges));
        let families = [&self.evicted_keys, &self.memory_bytes, &self.memory_bytes_max];
        families.into_iter().for_each(Family::clear);
        for facts in redis.server_facts() {
            let figures = [facts.evicted_keys, facts.used_memory, facts.maxmemory];
            let label = ServerLabel { server: facts.server };
            for (family, figure) in families.into_iter().zip(figures) {
                family.get_or_create(&label).set(count(figure));
            }
        }
    }
}

//! Metrics of the Redis counter store. Servers are named as in the settings or by the cluster.

use tollgate::counters::{CounterStore, ReconcileStatus};
use tollgate_stores::redis::{RedisCounters, ServerInfo, ServerStats};

use super::collector::{Collector, Labels};

/// A server that has left the cluster is no longer exported.
pub(super) fn collect(redis: &RedisCounters, status: &ReconcileStatus, collector: &mut Collector) {
    collect_reconcile(status, collector);
    collect_servers(&redis.servers(), redis.unassigned_slot_calls(), collector);
    collect_server_info(&redis.server_info(), collector);
    let help = "Refusals answered from the local refusal cache";
    collector.counter("store_cached_refusals", help, redis.cached_refusals());
    let help = "Charges refunded because another server refused the request";
    collector.counter("store_refunds", help, redis.refunds());
    collector.gauge("store_nodes", "Nodes that share the counters", redis.nodes().get());
    let leases = redis.leases();
    collector.gauge("store_leases", "Leases held by this node", leases.held);
    let help = "Units leased to this node: the most it can admit beyond limits if Redis loses its data";
    collector.gauge("store_over_admission_bound", help, leases.units);
    collector.counter(
        "store_charges",
        "Charges made by this node, from Redis or from leases",
        leases.charges,
    );
    collector.counter("store_leased_charges", "Charges served from leases", leases.served);
    let help = "Leased units that could not be returned; 0 unless a server or a node failed";
    collector.counter("store_lease_units_lost", help, leases.lost);
    let help = "Redis clock minus local clock, as of the last reply";
    collector.gauge("store_clock_offset_seconds", help, redis.clock_offset_seconds());
}

/// Charges that the fallback counted during outages.
fn collect_reconcile(status: &ReconcileStatus, collector: &mut Collector) {
    let help = "Counters charged during an outage that are not yet reconciled";
    collector.gauge("store_reconcile_pending", help, status.pending);
    let help = "Counters charged during an outage that were reconciled";
    collector.counter("store_reconciled_counters", help, status.reconciled);
    let help = "Charges during an outage that are reconciled only when their client returns, because the list is full";
    collector.counter("store_reconcile_untracked", help, status.untracked);
}

fn label(server: &str) -> Labels {
    vec![("server", server.to_owned())]
}

/// What this node observes of each server.
fn collect_servers(servers: &[ServerStats], unassigned_slot_calls: u64, collector: &mut Collector) {
    let each = |value: fn(&ServerStats) -> u64| {
        servers.iter().map(move |server| (label(&server.server), value(server)))
    };
    let help = "Whether this node is connected to the server";
    collector.gauges("store_connected", help, each(|server| server.connected.into()));
    let help = "Whether the circuit breaker of the server is open";
    collector.gauges("store_breaker_open", help, each(|server| server.breaker_open.into()));
    let help = "Times the circuit breaker of the server opened";
    collector.counters("store_breaker_openings", help, each(|server| server.breaker_openings));
    collector.counters("store_calls", "Calls sent to the server", each(|server| server.calls));
    collector.counters("store_dials", "Connection attempts to the server", each(|server| server.dials));
    let help = "Failed calls by error code or kind of failure";
    let fault = |server: &str, fault: &str, count: u64| {
        (vec![("server", server.to_owned()), ("fault", fault.to_owned())], count)
    };
    let faults = (servers.iter())
        .flat_map(|server| server.faults.iter().map(|(name, count)| fault(&server.server, name, *count)));
    let unassigned =
        (unassigned_slot_calls > 0).then(|| fault("none", "slot_unassigned", unassigned_slot_calls));
    collector.counters("store_faults", help, faults.chain(unassigned));
}

/// What each server reports by INFO.
fn collect_server_info(info: &[ServerInfo], collector: &mut Collector) {
    let each =
        |value: fn(&ServerInfo) -> u64| info.iter().map(move |info| (label(&info.server), value(info)));
    // Counted by the server: starts from zero when it restarts, as Prometheus expects.
    let help = "Keys evicted by the server: lost counters";
    collector.counters("store_evicted_keys", help, each(|info| info.evicted_keys));
    collector.gauges("store_memory_bytes", "Memory used by the server", each(|info| info.used_memory));
    let help = "maxmemory of the server, 0 for no limit";
    collector.gauges("store_memory_max_bytes", help, each(|info| info.maxmemory));
}

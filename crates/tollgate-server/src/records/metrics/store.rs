//! Figures of shared counters. Servers are named as settings or the cluster name them.

use tollgate::counters::{CounterStore, ReconcileStatus};
use tollgate_stores::redis::{RedisCounters, ServerInfo, ServerStats};

use super::collector::Figures;

/// Reads all of them. A server that has left the cluster leaves the figures too.
pub(super) fn read(redis: &RedisCounters, recovery: &ReconcileStatus, figures: &mut Figures) {
    read_recovery(recovery, figures);
    read_links(&redis.servers(), redis.unassigned_slot_calls(), figures);
    read_facts(&redis.server_info(), figures);
    let help = "Refusals answered without asking a server";
    figures.counter("store_refusals_from_memory", help, redis.cached_refusals());
    let help = "Charges taken back because another server refused";
    figures.counter("store_refunds", help, redis.refunds());
    figures.gauge("store_nodes", "Nodes that share the counters", redis.nodes().get());
    let leases = redis.leases();
    figures.gauge("store_leases", "Busy counters of which this node holds a part", leases.held);
    let help =
        "Units leased to this node: what may be admitted beyond limits if a server is lost with its memory";
    figures.gauge("store_over_admission_bound", help, leases.units);
    figures.counter("store_charges", "Charges by this node, however served", leases.charges);
    figures.counter("store_leased_charges", "Charges served from leases", leases.served);
    let help = "The servers' clock less ours, as of the last answer";
    figures.gauge("store_clock_offset_seconds", help, redis.clock_offset_seconds());
}

/// What this node counted itself in outages.
fn read_recovery(recovery: &ReconcileStatus, figures: &mut Figures) {
    let help = "Counters charged here in an outage that are still to be brought to the store";
    figures.gauge("store_recovery_waiting", help, recovery.pending);
    let help = "Counters charged here in an outage that were brought to the store";
    figures.counter("store_recovery_counters", help, recovery.reconciled);
    let help = "Charges in an outage whose counters are brought to the store only when their clients come";
    figures.counter("store_recovery_unlisted", help, recovery.untracked);
}

/// What this node knows of the servers.
fn read_links(links: &[ServerStats], unserved_calls: u64, figures: &mut Figures) {
    let each = |figure: fn(&ServerStats) -> u64| links.iter().map(move |link| (&*link.server, figure(link)));
    let help = "Whether there is a connection to a server";
    figures.gauges_by_server("store_connected", help, each(|link| link.connected.into()));
    let help = "Whether a server is left alone because it did not answer";
    figures.gauges_by_server("store_breaker_open", help, each(|link| link.breaker_open.into()));
    let help = "How often a server had to be left alone";
    figures.counters_by_server("store_breaker_openings", help, each(|link| link.breaker_openings));
    figures.counters_by_server("store_calls", "Calls sent to a server", each(|link| link.calls));
    let help = "Connections to a server that were tried";
    figures.counters_by_server("store_dials", help, each(|link| link.dials));
    let help = "Calls that failed, by the code of the server's answer or how there was none";
    let faults = links
        .iter()
        .flat_map(|link| link.faults.iter().map(|(fault, count)| (&*link.server, *fault, *count)));
    let unserved = (unserved_calls > 0).then_some(("none", "slot_unassigned", unserved_calls));
    let faults = faults.chain(unserved);
    figures.counters_by_fault("store_faults", help, faults);
}

/// What the servers say about themselves.
fn read_facts(facts: &[ServerInfo], figures: &mut Figures) {
    let each =
        |figure: fn(&ServerInfo) -> u64| facts.iter().map(move |facts| (&*facts.server, figure(facts)));
    // Counted by the server: it starts again when that does, as Prometheus expects of a counter.
    let help = "Keys a server threw away: counters lost";
    figures.counters_by_server("store_evicted_keys", help, each(|facts| facts.evicted_keys));
    figures.gauges_by_server("store_memory_bytes", "Memory a server uses", each(|facts| facts.used_memory));
    let help = "Memory a server may use, 0 for any";
    figures.gauges_by_server("store_memory_bytes_max", help, each(|facts| facts.maxmemory));
}

//! Metrics of this process: counters, connections, settings.

use std::sync::atomic::{AtomicU64, Ordering};

use super::MetricSources;
use super::collector::Collector;
use crate::config::reload::ReloadHandle;
use crate::listener::ConnectionStats;

pub(super) fn collect(sources: &MetricSources<'_>, collector: &mut Collector) {
    let limiter = sources.limiter;
    let counters = limiter.counters().memory().unwrap_or_else(|| limiter.fallback_counters());
    collector.gauge("counters", "Counters held in memory", counters.len());
    collector.gauge("counter_bytes", "Bytes of the counters held in memory", counters.bytes());
    let help = "Decisions that used a shared overflow counter because memory was full";
    collector.counter("counter_overflows", help, counters.overflow_charges());
    let help = "Batch responses evicted before their idempotency key expired";
    collector.counter("idempotency_evictions", help, sources.idempotency.evicted());
    let help = "Counter snapshots that could not be written";
    collector.counter("snapshot_failures", help, sources.persistence.counters.failures());
    let help = "Wall clock minus the clock used for decisions";
    collector.gauge("clock_offset_seconds", help, sources.clock.wall_offset());
    collect_connections(sources, collector);
    collect_settings(sources, collector);
    collect_build_info(sources, collector);
}

/// A gauge that is always 1; its labels are what matters.
fn collect_build_info(sources: &MetricSources<'_>, collector: &mut Collector) {
    let store = if sources.limiter.counters().redis().is_some() { "redis" } else { "memory" };
    let labels = [
        ("version", env!("CARGO_PKG_VERSION")),
        ("revision", env!("TOLLGATE_REVISION")),
        ("rust_version", env!("TOLLGATE_RUST_VERSION")),
        ("store", store),
        ("database", sources.database),
        ("server_id", &sources.node.id),
        ("region", &sources.node.region),
    ];
    let labels = labels.map(|(name, value)| (name, value.to_owned())).to_vec();
    collector.gauges("build_info", "Version and kind of this node; always 1", [(labels, 1)]);
}

fn collect_connections(sources: &MetricSources<'_>, collector: &mut Collector) {
    let stats = sources.connections;
    let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
    collector.gauge("connections", "Open connections", load(&stats.open));
    collector.counter(
        "connections_refused",
        "Connections refused because of a connection limit",
        load(&stats.refused),
    );
    let help = "Connections closed by a timeout";
    collector.counter("connections_timed_out", help, load(&stats.timed_out));
    collector.counter("accept_errors", "Failed accepts", load(&stats.accept_errors));
    let help = "Connections of trusted proxies closed because of a missing or invalid PROXY header";
    collector.counter("proxy_headers_invalid", help, load(&stats.proxy_headers_invalid));
    if !sources.certificates.is_empty() {
        collect_tls(sources, collector);
    }
}

fn collect_tls(sources: &MetricSources<'_>, collector: &mut Collector) {
    let proxy = sources.proxy.map(|proxy| &*proxy.stats.connections);
    let of_all_listeners = |count: fn(&ConnectionStats) -> &AtomicU64| {
        let listeners = [Some(sources.connections), proxy].into_iter().flatten();
        listeners.map(|stats| count(stats).load(Ordering::Relaxed)).sum::<u64>()
    };
    let ok = of_all_listeners(|stats| &stats.handshakes);
    let failed = of_all_listeners(|stats| &stats.handshakes_failed);
    let handshakes = [("ok", ok), ("failed", failed)]
        .map(|(outcome, count)| (vec![("outcome", outcome.to_owned())], count));
    collector.counters("tls_handshakes", "TLS handshakes", handshakes);
    let expiries = sources.certificates.iter().map(|certificate| {
        let file = certificate.certificate_file.display().to_string();
        (vec![("certificate", file)], u64::try_from(certificate.not_after).unwrap_or(0))
    });
    let help = "When a certificate of a listener expires, in seconds since 1970";
    collector.gauges("tls_certificate_expiry_timestamp_seconds", help, expiries);
}

fn collect_settings(sources: &MetricSources<'_>, collector: &mut Collector) {
    // Without a file, the settings of the start stay in force.
    let status = sources.reload.map(ReloadHandle::status);
    let generation = status.as_ref().map_or(1, |status| status.generation);
    collector.counter("config_generations", "Configurations applied since the start", generation);
    let help = "Whether the last configuration read is in force";
    collector.flag(
        "config_last_reload_success",
        help,
        status.is_none_or(|status| status.last_error.is_none()),
    );
}

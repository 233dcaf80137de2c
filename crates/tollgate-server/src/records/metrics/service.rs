//! Figures of this process: its counters, its connections and its settings.

use std::sync::atomic::{AtomicU64, Ordering};

use super::collector::Figures;
use crate::app::App;
use crate::config::reload::ReloadHandle;

/// Reads all of them.
pub(super) fn read(app: &App, figures: &mut Figures) {
    let counters = app.fallback_counters();
    figures.gauge("counters", "Counters held in memory", counters.len());
    figures.gauge("counter_bytes", "Bytes of the counters held in memory", counters.bytes());
    let help = "Decisions that shared a counter because memory was full";
    figures.counter("counter_overflows", help, counters.overflow_charges());
    let help = "Batch answers dropped before their time";
    figures.counter("idempotency_evictions", help, app.idempotency().evicted());
    let help = "Counter snapshots that could not be written";
    figures.counter("snapshot_failures", help, app.snapshot_failures());
    let help = "The wall clock's lead over the clock of decisions";
    figures.gauge("clock_offset_seconds", help, app.wall_offset());
    read_connections(app, figures);
    read_settings(app, figures);
}

fn read_connections(app: &App, figures: &mut Figures) {
    let stats = app.connections();
    let read = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
    figures.gauge("connections", "Open connections", stats.open());
    figures.counter("connections_refused", "Connections closed because of a cap", stats.refused());
    let help = "Connections closed because of a time-out";
    figures.counter("connections_timed_out", help, read(&stats.timed_out));
    figures.counter("accept_errors", "Connections that could not be accepted", read(&stats.accept_errors));
}

fn read_settings(app: &App, figures: &mut Figures) {
    // Without a file there is nothing to reload: the settings of the start are the only ones.
    let status = app.reload().map(ReloadHandle::status);
    let generation = status.as_ref().map_or(1, |status| status.generation);
    figures.counter("config_generations", "Configurations that have been in force", generation);
    let help = "Whether the last configuration that was read is in force";
    figures.flag("config_last_reload_success", help, status.is_none_or(|status| status.last_error.is_none()));
}

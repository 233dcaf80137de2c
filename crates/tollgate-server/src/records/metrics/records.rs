//! Metrics of the records of decisions.

use std::sync::atomic::Ordering;

use super::MetricSources;
use super::collector::{Collector, Labels};
use crate::records::drain::DrainStats;
use crate::records::pipeline::SPOOLS;
use crate::records::recorder::Recorder;
use crate::records::spool::SpoolStats;

pub(super) fn collect(sources: &MetricSources<'_>, recorder: &Recorder, collector: &mut Collector) {
    let stats = &sources.limiter.records().record_stats;
    let help = "Requests in window records";
    collector.counter("record_window_requests", help, stats.flushed.window_requests.load(Ordering::Relaxed));
    let dropped = recorder.dropped();
    let dropped = dropped.map(|(what, count)| (vec![("what", what.to_owned())], count));
    collector.counters(
        "records_dropped_in_memory",
        "Records dropped because memory for them was full",
        dropped,
    );
    let help =
        "Decisions that the last process may have lost in a crash, at most; 0 after an orderly shutdown";
    collector.gauge("records_lost_in_crash", help, stats.lost_in_crash());
    if let Some(spools) = stats.spools() {
        collect_spools(spools.each_ref().map(|spool| &**spool), collector);
    }
    if let Some(drains) = stats.drains() {
        collect_drains(drains.each_ref().map(|drain| &**drain), collector);
    }
    let totals = stats.maintenance();
    let help = "Failed runs of the maintenance of the records database";
    collector.counter("record_maintenance_failures", help, totals.failures);
    let help = "Rows removed early because the SQLite database of records was full";
    collector.counter("records_removed_for_size", help, totals.rows_removed_for_size);
    let help =
        "Rows in the default partition of the records database; they belong into a partition of their own";
    collector.gauge("record_default_partition_rows", help, totals.rows_in_default_partition);
    let archive = stats.archive();
    collector.counter("record_archive_files", "Files that this node archived and verified", archive.files);
    collector.counter("record_archive_rows", "Rows in the files that this node archived", archive.rows);
    let help = "Failed runs of the archive; records stay in the database";
    collector.counter("record_archive_failures", help, archive.failures);
}

fn collect_spools(spools: [&SpoolStats; 2], collector: &mut Collector) {
    let of_each = |figure: fn(&SpoolStats) -> u64| by_spool(spools.map(figure));
    collector.counters(
        "record_rows",
        "Rows written to the spool",
        of_each(|spool| spool.rows_appended.get()),
    );
    let dropped = [
        ("spool_full", of_each(|spool| spool.rows_dropped_full.get())),
        ("disk", of_each(|spool| spool.rows_dropped_disk.get())),
        ("damaged", of_each(|spool| spool.rows_damaged.get())),
    ];
    let dropped = dropped.into_iter().flat_map(|(reason, counts)| {
        counts.into_iter().map(move |(mut labels, count)| {
            labels.push(("reason", reason.to_owned()));
            (labels, count)
        })
    });
    collector.counters("record_rows_dropped", "Rows that were lost on the way to the database", dropped);
    collector.gauges("record_backlog_rows", "Rows in the spool", of_each(|spool| spool.backlog_rows.get()));
    collector.gauges("record_spool_bytes", "Size of the spool", of_each(|spool| spool.bytes.get()));
}

fn collect_drains(drains: [&DrainStats; 2], collector: &mut Collector) {
    let of_each = |figure: fn(&DrainStats) -> u64| by_spool(drains.map(figure));
    collector.counters(
        "record_rows_stored",
        "Rows stored in the database",
        of_each(|drain| drain.rows_stored.get()),
    );
    let help = "Rows that the database rejected; they are in records/quarantine.ndjson";
    collector.counters("record_rows_quarantined", help, of_each(|drain| drain.rows_quarantined.get()));
    let is_up = drains.iter().all(|drain| drain.is_up());
    collector.flag("record_database_up", "Whether the database of records took the last rows", is_up);
}

fn by_spool(counts: [u64; 2]) -> Vec<(Labels, u64)> {
    let labels = SPOOLS.map(|spool| vec![("spool", spool.to_owned())]);
    labels.into_iter().zip(counts).collect()
}

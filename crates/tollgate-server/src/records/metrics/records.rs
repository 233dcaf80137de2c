//! Metrics of the records of decisions.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::MetricSources;
use super::collector::{Collector, Labels};
use crate::records::drain::DrainStats;
use crate::records::parquet::ParquetStats;
use crate::records::pipeline::SpoolName;
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
    if !stats.spools().is_empty() {
        collect_spools(stats.spools(), collector);
    }
    if !stats.drains().is_empty() {
        collect_drains(stats.drains(), collector);
    }
    if !stats.parquet().is_empty() {
        collect_parquet(stats.parquet(), collector);
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

fn collect_spools(spools: &[(SpoolName, Arc<SpoolStats>)], collector: &mut Collector) {
    let of_each = |figure: fn(&SpoolStats) -> u64| by_spool(spools, figure);
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
    collector.counters(
        "record_rows_dropped",
        "Rows that were lost on the way to the database or to Parquet files",
        dropped,
    );
    collector.gauges("record_backlog_rows", "Rows in the spool", of_each(|spool| spool.backlog_rows.get()));
    collector.gauges("record_spool_bytes", "Size of the spool", of_each(|spool| spool.bytes.get()));
}

fn collect_drains(drains: &[(SpoolName, Arc<DrainStats>)], collector: &mut Collector) {
    let of_each = |figure: fn(&DrainStats) -> u64| by_spool(drains, figure);
    collector.counters(
        "record_rows_stored",
        "Rows stored in the database",
        of_each(|drain| drain.rows_stored.get()),
    );
    let help = "Rows that the database rejected; they are in records/quarantine.ndjson";
    collector.counters("record_rows_quarantined", help, of_each(|drain| drain.rows_quarantined.get()));
    let is_up = drains.iter().all(|(_, drain)| drain.is_up());
    collector.flag("record_database_up", "Whether the database of records took the last rows", is_up);
}

fn collect_parquet(parquet: &[(SpoolName, Arc<ParquetStats>)], collector: &mut Collector) {
    let of_each = |figure: fn(&ParquetStats) -> u64| by_spool(parquet, figure);
    collector.counters("record_parquet_files", "Parquet files written", of_each(|spool| spool.files.get()));
    let help = "Rows in Parquet files; the counts of one client and minute in a write are one row";
    collector.counters("record_parquet_rows", help, of_each(|spool| spool.file_rows.get()));
    collector.counters(
        "record_parquet_bytes",
        "Size of the Parquet files written",
        of_each(|spool| spool.file_bytes.get()),
    );
    let help = "Failed writes and compactions of Parquet files; records wait in the spool";
    collector.counters("record_parquet_failures", help, of_each(|spool| spool.failures.get()));
    let help = "Small Parquet files that were replaced by a larger one";
    collector.counters("record_parquet_files_compacted", help, of_each(|spool| spool.compacted.get()));
    let help = "Rows that could not be encoded; they are in records/quarantine.ndjson";
    let quarantined = of_each(|spool| spool.drain.rows_quarantined.get());
    collector.counters("record_parquet_rows_quarantined", help, quarantined);
    let is_up = parquet.iter().all(|(_, spool)| spool.drain.is_up());
    collector.flag("record_parquet_up", "Whether the last Parquet file was written", is_up);
}

fn by_spool<S>(spools: &[(SpoolName, Arc<S>)], figure: fn(&S) -> u64) -> Vec<(Labels, u64)> {
    let of_one = |(name, spool): &(SpoolName, Arc<S>)| (vec![("spool", (*name).to_owned())], figure(spool));
    spools.iter().map(of_one).collect()
}

//! Figures of the pipeline, for metrics.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use tollgate_stores::archive::ArchiveError;
use tollgate_stores::sql::DatabaseError;
use tollgate_stores::sql::records::{ArchiveRun, Maintenance};
use tracing::warn;

use crate::records::drain::DrainStats;
use crate::records::flusher::FlushStats;
use crate::records::parquet::ParquetStats;
use crate::records::spool::SpoolStats;

/// The name of a spool, in metrics.
pub(crate) type SpoolName = &'static str;

/// Figures of the pipeline. Those of spools and drains are absent until they run.
#[derive(Debug, Default)]
pub(crate) struct RecordStats {
    pub(crate) flushed: Arc<FlushStats>,
    spools: OnceLock<Vec<(SpoolName, Arc<SpoolStats>)>>,
    drains: OnceLock<Vec<(SpoolName, Arc<DrainStats>)>>,
    parquet: OnceLock<Vec<(SpoolName, Arc<ParquetStats>)>>,
    lost_in_crash: AtomicU64,
    maintenance: Mutex<MaintenanceTotals>,
    archive: Mutex<ArchiveTotals>,
}

/// What the maintenance of this node did since the start.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MaintenanceTotals {
    pub(crate) failures: u64,
    pub(crate) rows_removed_for_size: u64,
    pub(crate) rows_in_default_partition: u64,
    /// Whether the last run failed. A change is logged.
    is_failing: bool,
}

/// What this node archived since the start.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ArchiveTotals {
    pub(crate) files: u64,
    pub(crate) rows: u64,
    pub(crate) failures: u64,
    is_failing: bool,
}

impl RecordStats {
    pub(super) fn set_spools(&self, spools: Vec<(SpoolName, Arc<SpoolStats>)>) {
        let _ = self.spools.set(spools);
    }

    pub(super) fn set_drains(&self, drains: Vec<(SpoolName, Arc<DrainStats>)>) {
        let _ = self.drains.set(drains);
    }

    pub(super) fn set_parquet(&self, parquet: Vec<(SpoolName, Arc<ParquetStats>)>) {
        let _ = self.parquet.set(parquet);
    }

    pub(super) fn set_lost_in_crash(&self, rows_max: u64) {
        self.lost_in_crash.store(rows_max, Ordering::Relaxed);
    }

    /// Figures of the spools; none before they are open.
    pub(crate) fn spools(&self) -> &[(SpoolName, Arc<SpoolStats>)] {
        self.spools.get().map(Vec::as_slice).unwrap_or_default()
    }

    /// Figures of what is stored in the database; none without one.
    pub(crate) fn drains(&self) -> &[(SpoolName, Arc<DrainStats>)] {
        self.drains.get().map(Vec::as_slice).unwrap_or_default()
    }

    /// Figures of Parquet files; none if they are not written.
    pub(crate) fn parquet(&self) -> &[(SpoolName, Arc<ParquetStats>)] {
        self.parquet.get().map(Vec::as_slice).unwrap_or_default()
    }

    /// Figures of all targets.
    pub(crate) fn targets(&self) -> impl Iterator<Item = &DrainStats> {
        let database = self.drains().iter().map(|(_, drain)| &**drain);
        database.chain(self.parquet().iter().map(|(_, parquet)| &parquet.drain))
    }

    /// Why rows are not written or stored, if they are not.
    pub(crate) fn problem(&self) -> Option<String> {
        let spool = self.spools().iter().find_map(|(_, spool)| spool.last_error.lock().clone());
        let target = self.targets().find_map(DrainStats::last_error);
        (spool.map(|error| format!("records are dropped: {error}")))
            .or_else(|| target.map(|error| format!("records wait in the spool: {error}")))
    }

    /// Rows that the last process may have lost in a crash, at most.
    pub(crate) fn lost_in_crash(&self) -> u64 {
        self.lost_in_crash.load(Ordering::Relaxed)
    }

    pub(crate) fn maintenance(&self) -> MaintenanceTotals {
        *self.maintenance.lock()
    }

    /// Adds the outcome of a run. Problems are logged when they begin.
    pub(super) fn note_maintenance(&self, done: Result<Maintenance, DatabaseError>) {
        let mut totals = self.maintenance.lock();
        match done {
            Ok(Maintenance { held_by_other: true, .. }) => {}
            Ok(done) => {
                totals.is_failing = false;
                totals.rows_removed_for_size += done.rows_removed_for_size;
                let rows = done.rows_in_default_partition;
                if rows > 0 && totals.rows_in_default_partition == 0 {
                    warn!(
                        rows,
                        "records are in the default partition: a node has a wrong clock, or no partitions could be created"
                    );
                }
                totals.rows_in_default_partition = rows;
            }
            Err(error) => {
                totals.failures += 1;
                if !std::mem::replace(&mut totals.is_failing, true) {
                    warn!(%error, "maintenance of the records database failed; old records stay until it succeeds");
                }
            }
        }
    }

    pub(crate) fn archive(&self) -> ArchiveTotals {
        *self.archive.lock()
    }

    /// Adds the outcome of a run of the archive. Problems are logged when they begin.
    pub(super) fn note_archive(&self, done: Result<ArchiveRun, ArchiveError>) {
        let mut totals = self.archive.lock();
        match done {
            Ok(done) => {
                totals.is_failing = false;
                totals.files += done.files;
                totals.rows += done.rows;
            }
            Err(error) => {
                totals.failures += 1;
                if !std::mem::replace(&mut totals.is_failing, true) {
                    warn!(%error, "records cannot be archived; they stay in the database until it succeeds");
                }
            }
        }
    }
}

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
use crate::records::spool::SpoolStats;

/// The names of the spools, in the order of their figures.
pub(crate) const SPOOLS: [&str; 2] = ["log", "aggregates"];

/// Figures of the pipeline. Those of spools and drains are absent until they run.
#[derive(Debug, Default)]
pub(crate) struct RecordStats {
    pub(crate) flushed: Arc<FlushStats>,
    spools: OnceLock<[Arc<SpoolStats>; 2]>,
    drains: OnceLock<[Arc<DrainStats>; 2]>,
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
    pub(super) fn set_spools(&self, spools: [Arc<SpoolStats>; 2]) {
        let _ = self.spools.set(spools);
    }

    pub(super) fn set_drains(&self, drains: [Arc<DrainStats>; 2]) {
        let _ = self.drains.set(drains);
    }

    pub(super) fn set_lost_in_crash(&self, rows_max: u64) {
        self.lost_in_crash.store(rows_max, Ordering::Relaxed);
    }

    pub(crate) fn spools(&self) -> Option<&[Arc<SpoolStats>; 2]> {
        self.spools.get()
    }

    pub(crate) fn drains(&self) -> Option<&[Arc<DrainStats>; 2]> {
        self.drains.get()
    }

    /// Why rows are not written or stored, if they are not.
    pub(crate) fn problem(&self) -> Option<String> {
        let mut spools = self.spools.get().into_iter().flatten();
        let spool = spools.find_map(|spool| spool.last_error.lock().clone());
        let mut drains = self.drains.get().into_iter().flatten();
        let database = drains.find_map(|drain| drain.last_error());
        (spool.map(|error| format!("records are dropped: {error}")))
            .or_else(|| database.map(|error| format!("records wait in the spool: {error}")))
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

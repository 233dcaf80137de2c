//! Figures of the Parquet files of one spool.

use crate::records::drain::DrainStats;
use crate::records::spool::Counter;

/// Figures since the start, for metrics and health.
#[derive(Debug, Default)]
pub(crate) struct ParquetStats {
    /// Rows taken from the spool, and whether the last write succeeded.
    pub(crate) drain: DrainStats,
    /// Files written.
    pub(crate) files: Counter,
    /// Rows in them. Counts of one client and minute in a write are one row.
    pub(crate) file_rows: Counter,
    /// Their size.
    pub(crate) file_bytes: Counter,
    /// Failed writes and compactions.
    pub(crate) failures: Counter,
    /// Files deleted because a larger one has their rows.
    pub(crate) compacted: Counter,
}

//! Records of decisions in SQL: the decision log, window records and rollups.
//!
//! Nodes send rows in numbered ranges ([`RowRange`]). The transaction that stores a range also moves the position of its source,
//! so a range whose commit has an unknown outcome is sent again and stored once.
//!
//! Two nodes may write the same windows at once. All write them in the order of their keys, which avoids deadlocks.

mod archive;
mod chunks;
mod database;
mod decisions;
mod granularity;
mod key_hash;
mod latency;
mod maintain;
mod queries;
mod rollups;
mod rows;
mod source;
pub(crate) mod text;
mod time;
mod windows;

pub use self::archive::{ArchiveRun, ArchiveStep};
pub use self::database::{RecordsDatabase, Stored};
pub use self::granularity::Granularity;
pub use self::latency::{InvalidHistogram, LatencyHistogram};
pub use self::maintain::{Maintenance, Retention};
pub use self::queries::{
    DecisionCursor, Order, RECORD_COUNT_MAX, RankedBy, RankedClient, RankedName, RecordFilter, RecordReader,
    RequestCounts, RollupCursor, RouteUsage, StoredDecision, StoredRollup, StoredWindow, TenantFilter,
    TrendPoint, Usage, UsagePeriod, Violation, WindowCursor,
};
pub(crate) use self::rollups::{Key as RollupKey, hash as rollup_key_hash, merge_into as merge_rollups};
pub use self::rows::{DecisionKind, DecisionRow, RollupRow, RowRange, SourceId, WindowRow};
pub(crate) use self::windows::key_hash_of as window_key_hash;

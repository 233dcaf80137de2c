//! Records of decisions in SQL: the decision log, window records and rollups.

mod latency;
mod rows;

pub use self::latency::{InvalidHistogram, LatencyHistogram};
pub use self::rows::{DecisionKind, DecisionRow, RollupRow, RowRange, SourceId, WindowRow};

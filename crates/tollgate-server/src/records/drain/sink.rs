//! Where a drain stores rows.

use std::fmt;

use bytes::Bytes;
use tollgate_stores::sql::records::{RowRange, SourceId};

/// Decodes and stores batches of rows.
pub(crate) trait BatchSink: Send + Sync + 'static {
    /// A decoded row.
    type Row: fmt::Debug + Send + Sync + 'static;

    /// A row of the spool, which shares the memory of its batch; `None` if it is not one.
    fn decode(&self, row: &Bytes) -> Option<Self::Row>;

    /// Connects, and brings the schema up to date. Called until it succeeds, before anything else.
    fn prepare(&self) -> impl Future<Output = Result<(), SinkError>> + Send;

    /// The number of the next row of a source; 0 if it is new.
    fn position(&self, source: &SourceId) -> impl Future<Output = Result<u64, SinkError>> + Send;

    /// Stores the rows of a range, all or none, and moves the position of the source. Succeeds without storing anything if the
    /// range was stored before.
    fn store(
        &self,
        range: &RowRange,
        rows: &[Self::Row],
    ) -> impl Future<Output = Result<(), SinkError>> + Send;

    /// Moves the position over rows that are not stored.
    fn skip(&self, range: &RowRange) -> impl Future<Output = Result<(), SinkError>> + Send;
}

/// Why rows were not stored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SinkError {
    /// A row cannot be stored because of its contents: store the others.
    #[error("{0}")]
    Rejected(String),
    /// The range does not begin at the position of its source: read the position again.
    #[error("{0}")]
    Position(String),
    /// The call took too long; the outcome may be unknown. Send the same range again, or a part of it.
    #[error("{0}")]
    TimedOut(String),
    /// The database is unreachable, or the outcome is unknown: send the same range again.
    #[error("{0}")]
    Unavailable(String),
}

//! What happened, for whoever keeps books: metrics, audit, usage.

use crate::decision::Decision;
use crate::identity::Request;

/// One decision, as it leaves the way of the request.
#[derive(Debug)]
pub struct Record<'a> {
    /// What was asked, as it is counted: identifiers are folded where the rules [fold](crate::identity::Normalization) them.
    pub request: &'a Request<'a>,
    /// What was decided.
    pub decision: &'a Decision,
}

/// Where records go. `offer` is on the way of the request: it never waits, and a sink that is full drops and counts.
pub trait RecordSink: Send + Sync {
    /// Takes a record, or counts that it could not.
    fn offer(&self, record: &Record<'_>);
}

/// Keeps no books.
#[derive(Copy, Clone, Debug, Default)]
pub struct NoRecords;

impl RecordSink for NoRecords {
    fn offer(&self, _: &Record<'_>) {}
}

impl<T: RecordSink> RecordSink for std::sync::Arc<T> {
    fn offer(&self, record: &Record<'_>) {
        (**self).offer(record);
    }
}

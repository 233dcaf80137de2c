//! Records of decisions, for metrics, audit and usage.

use crate::counters::RefundOutcome;
use crate::decision::Decision;
use crate::identity::Request;

/// One decision and its request.
#[derive(Debug)]
pub struct Record<'a> {
    /// The request as it is counted: [normalized](crate::identity::Normalization).
    pub request: &'a Request<'a>,
    /// The decision.
    pub decision: &'a Decision,
}

/// What became of the charges of one rule that a response refunds.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct RefundRecord<'a> {
    /// The name of the rule.
    pub rule: &'a str,
    /// The position of the rule in the set that charged it; `None` for an override that replaces no rule.
    pub position: Option<usize>,
    /// The worst outcome of its charges.
    pub outcome: RefundOutcome,
}

/// Receives records. `offer` is called while the request waits: it must not block. A full sink drops and counts.
pub trait RecordSink: Send + Sync {
    /// Accepts a record, or counts it as dropped.
    fn offer(&self, record: &Record<'_>);

    /// Accepts what became of a refund.
    fn refunded(&self, _refund: &RefundRecord<'_>) {}
}

/// Discards all records.
#[derive(Copy, Clone, Debug, Default)]
pub struct NoRecords;

impl RecordSink for NoRecords {
    fn offer(&self, _: &Record<'_>) {}
}

impl<T: RecordSink> RecordSink for std::sync::Arc<T> {
    fn offer(&self, record: &Record<'_>) {
        (**self).offer(record);
    }

    fn refunded(&self, refund: &RefundRecord<'_>) {
        (**self).refunded(refund);
    }
}

//! One log line per refused request, at most [`LINES_PER_SECOND`]; the next line has the number of those left out.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use tollgate::record::{Record, RecordSink};
use tollgate::{Answer, Decision, Id, Request, Span, Timestamp};
use tracing::Level;

use crate::auth::api_keys::contains_key;

/// A flood of refused requests must not become a flood of log lines.
const LINES_PER_SECOND: u32 = 10;

/// Logs refusals.
pub(crate) struct RefusalLog {
    is_on: bool,
    /// The second that `lines` counts.
    second: AtomicU64,
    lines: AtomicU32,
    suppressed: AtomicU64,
}

impl RefusalLog {
    pub(crate) fn new(is_on: bool) -> Self {
        let (second, lines, suppressed) = (AtomicU64::new(0), AtomicU32::new(0), AtomicU64::new(0));
        RefusalLog { is_on, second, lines, suppressed }
    }

    /// Whether another line may be written, and how many were left out before it. Racing threads may write a line more at the turn of
    /// a second.
    fn admit(&self, now: Timestamp) -> Option<u64> {
        let second = now.as_micros() / 1_000_000;
        if self.second.swap(second, Ordering::Relaxed) != second {
            self.lines.store(0, Ordering::Relaxed);
        }
        let is_full = || self.lines.load(Ordering::Relaxed) >= LINES_PER_SECOND;
        if is_full() || self.lines.fetch_add(1, Ordering::Relaxed) >= LINES_PER_SECOND {
            self.suppressed.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Some(self.suppressed.swap(0, Ordering::Relaxed))
    }
}

impl RecordSink for RefusalLog {
    fn offer(&self, record: &Record<'_>) {
        let decision = record.decision;
        let reason = match decision.answer {
            // An outage is logged once elsewhere, not per request.
            Answer::Admit { .. } | Answer::Unavailable => return,
            Answer::Refuse { reason, .. } => reason.as_str(),
            Answer::Block => "blocked",
        };
        if !self.is_on || !tracing::enabled!(Level::INFO) {
            return;
        }
        if let Some(suppressed) = self.admit(decision.now) {
            log(record.request, decision, reason, suppressed);
        }
    }
}

fn log(request: &Request<'_>, decision: &Decision, reason: &str, suppressed: u64) {
    let client = loggable(&request.client().map(|client| client.to_string()).unwrap_or_default());
    let endpoint = loggable(request.endpoint.as_str());
    let tenant = request.tenant.map(Id::as_str).map(loggable);
    let binding = decision.binding();
    tracing::info!(
        client,
        tenant,
        method = request.method.map(tracing::field::display),
        endpoint,
        reason,
        rule = decision.rule_name().map(loggable),
        limit = binding.map(|report| report.requests),
        window = binding.map(|report| report.window.to_string()),
        wait_ms = decision.retry_after().map(Span::as_millis_ceil),
        suppressed,
        "request refused"
    );
}

/// Text of a client without control characters. Text with an API key in it is left out.
pub(crate) fn loggable(text: &str) -> String {
    if contains_key(text) { "***".to_owned() } else { text.escape_debug().to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    #[test]
    fn ten_lines_a_second_then_a_count() {
        let log = RefusalLog::new(true);
        let at = |micros: u64| log.admit(Timestamp::from_micros(7 * SECOND + micros));
        assert!((0..10).all(|number| at(number) == Some(0)));
        assert!((10..1_000).all(|number| at(number).is_none()));
        assert_eq!(at(SECOND), Some(990), "the first line of the next second has the count");
        assert_eq!(at(SECOND + 1), Some(0));
    }

    #[test]
    fn keys_and_control_characters_are_not_logged() {
        assert_eq!(loggable("/a\r\nb\u{1b}[2J\u{9b}\u{202e}"), "/a\\r\\nb\\u{1b}[2J\\u{9b}\\u{202e}");
        let key = "tg_admin_0123456789abcdefghijklmnopqrstuvwxyz";
        assert!(contains_key(key));
        assert_eq!(loggable(&format!("/reset/{key}")), "***");
    }
}

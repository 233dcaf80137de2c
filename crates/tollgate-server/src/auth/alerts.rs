//! Reports brute-force attempts on API keys: one log line and one entry of the audit trail when backoff begins.
//!
//! Attackers decide how often that happens, so at most [`ALERTS_MAX`] are reported in [`ALERT_WINDOW`]; the next entry carries the
//! number of those left out. Requests only queue an alert; a background task writes it and waits for the database if it must.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tollgate::rules::IPV6_PREFIX_DEFAULT;
use tollgate::{Span, Timestamp};
use tollgate_stores::sql::{AuditEvent, DatabaseError};
use tracing::{debug, warn};

use super::throttle::AuthThrottle;
use crate::config::sync::ConfigSync;

const ALERTS_MAX: usize = 16;
const ALERT_WINDOW: Span = Span::from_secs(600);
const DATABASE_RETRY_EVERY: Duration = Duration::from_secs(5);
/// The author of these entries in the audit trail.
const ACTOR: &str = "tollgate";

/// Backoff began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Alert {
    /// The address or its IPv6 network; none if failures come from many addresses.
    pub(crate) address: Option<IpAddr>,
    pub(crate) failures: u32,
    pub(crate) at: Timestamp,
}

/// Alerts waiting for the audit trail.
#[derive(Debug, Default)]
pub(crate) struct AlertQueue {
    state: Mutex<QueueState>,
    added: Notify,
}

#[derive(Debug, Default)]
struct QueueState {
    waiting: VecDeque<Alert>,
    window_began: Timestamp,
    in_window: usize,
    left_out: u64,
}

impl AlertQueue {
    /// Logs an alert and queues it, within the bound.
    pub(super) fn push(&self, alert: Alert) {
        let Alert { address, failures, .. } = alert;
        if !self.state.lock().push(alert) {
            return;
        }
        if let Some(address) = address {
            warn!(%address, failures, "repeated invalid API keys: backing off this address");
        } else {
            warn!(
                failures,
                "repeated invalid API keys from many addresses: lowering the free attempts of each"
            );
        }
        self.added.notify_one();
    }

    /// The oldest alert, and how many were left out since the one before.
    async fn next(&self) -> (Alert, u64) {
        loop {
            let next = self.state.lock().pop();
            match next {
                Some(next) => return next,
                None => self.added.notified().await,
            }
        }
    }
}

impl QueueState {
    fn push(&mut self, alert: Alert) -> bool {
        if alert.at.since(self.window_began) >= ALERT_WINDOW {
            (self.window_began, self.in_window) = (alert.at, 0);
        }
        if self.in_window >= ALERTS_MAX || self.waiting.len() >= ALERTS_MAX {
            self.left_out += 1;
            return false;
        }
        self.in_window += 1;
        self.waiting.push_back(alert);
        true
    }

    fn pop(&mut self) -> Option<(Alert, u64)> {
        let alert = self.waiting.pop_front()?;
        Some((alert, std::mem::take(&mut self.left_out)))
    }
}

/// Writes alerts to the audit trail for as long as the service runs.
pub(crate) async fn run(throttle: &AuthThrottle, config_sync: &ConfigSync) {
    loop {
        let (alert, left_out) = throttle.alerts.next().await;
        while !write_to_audit_trail(config_sync, &alert, left_out).await {
            tokio::time::sleep(DATABASE_RETRY_EVERY).await;
        }
    }
}

/// Whether the alert is written, or must not be tried again.
async fn write_to_audit_trail(config_sync: &ConfigSync, alert: &Alert, left_out: u64) -> bool {
    let Ok(database) = config_sync.database() else { return false };
    let event = alert.audit_event(left_out);
    match database.record_event(ACTOR, alert.at.as_micros(), &event).await {
        Ok(_) => true,
        // It may have been committed. One entry too few is better than two.
        Err(error @ (DatabaseError::OutcomeUnknown { .. } | DatabaseError::Value { .. })) => {
            warn!(subject = %event.subject, %error, "an alert may be missing from the audit trail");
            true
        }
        Err(error) => {
            debug!(%error, "cannot write an alert to the audit trail yet; retrying");
            false
        }
    }
}

impl Alert {
    fn audit_event(&self, left_out: u64) -> AuditEvent {
        let subject = match self.address {
            None => "many addresses".to_owned(),
            Some(IpAddr::V4(address)) => address.to_string(),
            Some(IpAddr::V6(address)) => format!("{address}/{IPV6_PREFIX_DEFAULT}"),
        };
        let after = serde_json::json!({ "invalid_keys": self.failures, "alerts_left_out": left_out });
        AuditEvent {
            action: "alert".into(),
            kind: "key_attempts".into(),
            subject,
            before: None,
            after: Some(after),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Timestamp = Timestamp::from_secs(1_000_000);

    fn alert(last: u8, at: Timestamp) -> Alert {
        Alert { address: Some(IpAddr::from([192, 0, 2, last])), failures: 65, at }
    }

    fn drain(queue: &AlertQueue) -> Vec<(Alert, u64)> {
        let mut state = queue.state.lock();
        std::iter::from_fn(|| state.pop()).collect()
    }

    #[test]
    fn alerts_are_bounded_and_the_rest_is_counted() {
        let queue = AlertQueue::default();
        (0..=255).for_each(|last| queue.push(alert(last, START)));
        let reported = drain(&queue);
        assert_eq!((reported.len(), reported[0].1), (ALERTS_MAX, 240));
        queue.push(alert(200, START));
        assert_eq!(drain(&queue), [], "the window has not passed");
        queue.push(alert(200, START + ALERT_WINDOW));
        assert_eq!(drain(&queue), [(alert(200, START + ALERT_WINDOW), 1)]);
    }

    #[test]
    fn queue_is_bounded_while_the_database_is_down() {
        let queue = AlertQueue::default();
        for (number, last) in (0..=255).enumerate() {
            queue.push(alert(last, START + Span::from_secs(600 * u64::try_from(number).unwrap())));
        }
        assert_eq!(queue.state.lock().waiting.len(), ALERTS_MAX);
    }

    #[test]
    fn audit_entry_names_the_counted_network() {
        let subject = |address| Alert { address, failures: 65, at: START }.audit_event(0).subject;
        assert_eq!(subject(Some("2001:db8::".parse().unwrap())), "2001:db8::/64");
        assert_eq!(subject(Some(IpAddr::from([192, 0, 2, 1]))), "192.0.2.1");
        assert_eq!(subject(None), "many addresses");
    }
}

//! Reports brute-force attempts on API keys and tokens: one log line and one entry of the audit trail when backoff begins.
//!
//! Attackers decide how often that happens, so at most [`ALERTS_MAX`] are reported in [`ALERT_WINDOW`]; the next entry carries the
//! number of those left out. Requests only queue an alert; a background task writes it and waits for the database if it must.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

use tollgate::identity::IpPrefixes;
use tollgate::{Span, Timestamp};
use tollgate_stores::sql::{AuditEvent, DatabaseError};
use tracing::warn;

use super::throttle::{AuthThrottle, GuessedCredential};
use crate::config::sync::ConfigSync;

const ALERTS_MAX: usize = 16;
const ALERT_WINDOW: Span = Span::from_secs(600);
const WRITE_EVERY: Duration = Duration::from_secs(1);
/// The author of these entries in the audit trail.
const ACTOR: &str = "tollgate";

/// Backoff began.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Alert {
    pub(crate) credential: GuessedCredential,
    /// The address or its IPv6 network; none if failures come from many addresses.
    pub(crate) address: Option<IpAddr>,
    pub(crate) failures: u32,
    pub(crate) at: Timestamp,
}

/// Alerts waiting for the audit trail.
#[derive(Debug, Default)]
pub(super) struct AlertQueue {
    waiting: VecDeque<Alert>,
    window_began: Timestamp,
    in_window: usize,
    left_out: u64,
}

impl AlertQueue {
    /// Whether the alert is queued and should be logged: there are not too many.
    pub(super) fn push(&mut self, alert: Alert) -> bool {
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

    pub(super) fn pop(&mut self) -> Option<(Alert, u64)> {
        let alert = self.waiting.pop_front()?;
        Some((alert, std::mem::take(&mut self.left_out)))
    }
}

/// Writes alerts to the audit trail for as long as the service runs.
pub(crate) async fn run(throttle: &AuthThrottle, config_sync: &ConfigSync) {
    loop {
        tokio::time::sleep(WRITE_EVERY).await;
        let Some((alert, left_out)) = throttle.take_alert() else { continue };
        while !write_to_audit_trail(config_sync, &alert, left_out).await {
            tokio::time::sleep(WRITE_EVERY).await;
        }
    }
}

/// Whether the alert is written, or must not be tried again.
async fn write_to_audit_trail(config_sync: &ConfigSync, alert: &Alert, left_out: u64) -> bool {
    let Ok(database) = config_sync.database() else { return false };
    match database.record_event(ACTOR, alert.at.as_micros(), &alert.audit_event(left_out)).await {
        Ok(_) => true,
        // It may have been committed. One entry too few is better than two.
        Err(error @ (DatabaseError::OutcomeUnknown { .. } | DatabaseError::Value { .. })) => {
            warn!(subject = %alert.subject(), %error, "an alert may be missing from the audit trail");
            true
        }
        Err(_) => false,
    }
}

impl Alert {
    pub(super) fn log(&self) {
        let (from, failures) = (self.subject(), self.failures);
        match self.credential {
            GuessedCredential::ApiKey => warn!(%from, failures, "repeated invalid API keys: backing off"),
            GuessedCredential::Token => warn!(%from, failures, "repeated invalid tokens: backing off"),
        }
    }

    fn subject(&self) -> String {
        match self.address {
            None => "many addresses".to_owned(),
            Some(IpAddr::V4(address)) => address.to_string(),
            Some(IpAddr::V6(address)) => format!("{address}/{}", IpPrefixes::DEFAULT.ipv6),
        }
    }

    fn audit_event(&self, left_out: u64) -> AuditEvent {
        let (kind, counted) = match self.credential {
            GuessedCredential::ApiKey => ("key_attempts", "invalid_keys"),
            GuessedCredential::Token => ("token_attempts", "invalid_tokens"),
        };
        let after = serde_json::json!({ counted: self.failures, "alerts_left_out": left_out });
        AuditEvent {
            tenant: None,
            action: "alert".into(),
            kind: kind.into(),
            subject: self.subject(),
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
        let credential = GuessedCredential::ApiKey;
        Alert { credential, address: Some(IpAddr::from([192, 0, 2, last])), failures: 65, at }
    }

    fn drain(queue: &mut AlertQueue) -> Vec<(Alert, u64)> {
        std::iter::from_fn(|| queue.pop()).collect()
    }

    #[test]
    fn alerts_are_bounded_and_the_rest_is_counted() {
        let mut queue = AlertQueue::default();
        for last in 0..=255 {
            queue.push(alert(last, START));
        }
        let reported = drain(&mut queue);
        assert_eq!((reported.len(), reported[0].1), (ALERTS_MAX, 240));
        queue.push(alert(200, START));
        assert_eq!(drain(&mut queue), [], "the window has not passed");
        queue.push(alert(200, START + ALERT_WINDOW));
        assert_eq!(drain(&mut queue), [(alert(200, START + ALERT_WINDOW), 1)]);
    }

    #[test]
    fn queue_is_bounded_while_the_database_is_down() {
        let mut queue = AlertQueue::default();
        for (number, last) in (0..=255).enumerate() {
            queue.push(alert(last, START + Span::from_secs(600 * u64::try_from(number).unwrap())));
        }
        assert_eq!(queue.waiting.len(), ALERTS_MAX);
    }

    #[test]
    fn audit_entry_names_the_counted_network() {
        let credential = GuessedCredential::Token;
        let event = |address| Alert { credential, address, failures: 65, at: START }.audit_event(0);
        let subject = |address| event(address).subject;
        assert_eq!(event(None).kind, "token_attempts");
        assert_eq!(subject(Some("2001:db8::".parse().unwrap())), "2001:db8::/64");
        assert_eq!(subject(Some(IpAddr::from([192, 0, 2, 1]))), "192.0.2.1");
        assert_eq!(subject(None), "many addresses");
    }
}

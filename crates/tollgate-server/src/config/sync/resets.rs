//! Resets of counters, distributed to all nodes through the audit log.
//!
//! Nodes with counters in memory hash subjects differently, so the event names the client and every node finds its own
//! counters. API keys that tollgate did not issue are not logged: a reset by such a key affects this node only.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tollgate::calendar::Calendar;
use tollgate::{Algorithm, ApiKey, Endpoint, Id, Limit, Method, Request, Span, Window};
use tollgate_stores::sql::{AuditEntry, AuditEvent, AuditFilter, Database, DatabaseError};
use tracing::info;

use super::ConfigSync;
use crate::ServiceLimiter;

/// The action of the audit event of a reset.
pub(crate) const ACTION: &str = "reset";
/// The kind of the audit event of a reset.
pub(crate) const KIND: &str = "counters";

/// The client whose counters were reset.
#[derive(Debug, Serialize, Deserialize)]
struct ResetRequest {
    /// The process that made the reset, and ignores the event.
    node: String,
    endpoint: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    user_id: Option<String>,
    /// The id of an issued API key.
    #[serde(skip_serializing_if = "Option::is_none")]
    api_key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ip: Option<std::net::IpAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    login: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    method: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    descriptors: Vec<(String, String)>,
    /// The limit sent with the reset, if any.
    #[serde(default, rename = "own", skip_serializing_if = "Option::is_none")]
    limit_override: Option<CounterWindow>,
}

/// Identifies the counter of a limit that was sent with checks.
#[derive(Debug, Serialize, Deserialize)]
struct CounterWindow {
    window_us: u64,
    /// A calendar window, such as `day@Europe/Berlin`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    calendar: Option<String>,
    strategy: String,
}

impl CounterWindow {
    fn of(limit: &Limit) -> Self {
        let strategy = limit.algorithm().as_str().to_owned();
        let calendar = match limit.window() {
            Window::Calendar(calendar) => Some(calendar.to_string()),
            Window::Length(_) => None,
        };
        CounterWindow { window_us: limit.window_length().as_micros(), calendar, strategy }
    }

    /// A limit with this counter; its size does not matter.
    fn limit(&self) -> Option<Limit> {
        let window = match &self.calendar {
            Some(calendar) => Window::Calendar(Arc::new(Calendar::parse(calendar)?)),
            None => Window::Length(Span::from_micros(self.window_us)),
        };
        Limit::new(Algorithm::parse(&self.strategy)?, 1, window).ok()
    }
}

/// The audit event of a reset.
pub(crate) fn audit_event(sync: &ConfigSync, request: &Request<'_>) -> AuditEvent {
    let text = |id: Option<Id<'_>>| id.map(|id| id.as_str().to_owned());
    let reset = ResetRequest {
        node: sync.node.clone(),
        endpoint: request.endpoint.as_str().to_owned(),
        user_id: text(request.user),
        api_key: text(request.api_key.and_then(ApiKey::known_id)),
        ip: request.ip,
        tenant: text(request.tenant),
        login: text(request.login),
        method: request.method.map(|method| method.as_str().to_owned()),
        descriptors: (request.descriptors.iter())
            .map(|(name, value)| (name.as_str().to_owned(), value.as_str().to_owned()))
            .collect(),
        limit_override: request.limit_override.map(CounterWindow::of),
    };
    let client = request.client().map(|client| client.to_string()).unwrap_or_default();
    let subject = serde_json::to_string(&(client, request.endpoint.as_str())).unwrap_or_default();
    let after = serde_json::to_value(&reset).ok();
    let tenant = reset.tenant.clone();
    AuditEvent { tenant, action: ACTION.to_owned(), kind: KIND.to_owned(), subject, before: None, after }
}

/// Repeats the reset of another node on this one. Shared counters need no replay.
pub(super) async fn replay(sync: &ConfigSync, limiter: &ServiceLimiter, entry: &AuditEntry) {
    if entry.action != ACTION || entry.kind != KIND || limiter.counters().memory().is_none() {
        return;
    }
    let reset = entry.after.as_ref().map(ResetRequest::deserialize);
    let Some(reset) = reset.and_then(Result::ok).filter(|reset| reset.node != sync.node) else {
        return;
    };
    let rules = limiter.rules();
    let key = reset.api_key.as_deref().and_then(|id| rules.accounts().key(id)).map(ApiKey::known);
    let pairs =
        reset.descriptors.iter().map(|(name, value)| Some((Id::parse(name).ok()?, Id::parse(value).ok()?)));
    let descriptors: Vec<(Id<'_>, Id<'_>)> = pairs.flatten().collect();
    let Ok(endpoint) = Endpoint::parse(&reset.endpoint) else { return };
    let limit_override = reset.limit_override.as_ref().and_then(CounterWindow::limit);
    let request = Request {
        user: reset.user_id.as_deref().and_then(|text| Id::parse(text).ok()),
        api_key: key,
        ip: reset.ip,
        tenant: reset.tenant.as_deref().and_then(|text| Id::parse(text).ok()),
        login: reset.login.as_deref().and_then(|text| Id::parse(text).ok()),
        method: reset.method.as_deref().and_then(|text| Method::parse(text).ok()),
        descriptors: &descriptors,
        limit_override: limit_override.as_ref(),
        ..Request::new(endpoint)
    };
    if request.client().is_none() {
        return;
    }
    if let Ok(done) = limiter.snapshot().reset(&request).await {
        info!(by = %entry.by, subject = %entry.subject, counters = done.counters, "replayed a reset of another node");
    }
}

/// The latest resets, newest first.
pub(super) async fn latest(database: &Database, count_max: u32) -> Result<Vec<AuditEntry>, DatabaseError> {
    let filter = AuditFilter { kind: Some(KIND.to_owned()), ..AuditFilter::default() };
    database.audit_newest(&filter, None, count_max).await
}

#[cfg(test)]
mod tests {
    use tollgate::calendar::CalendarUnit;

    use super::*;

    #[test]
    fn counter_window_survives_json() {
        let day = Calendar::new(CalendarUnit::Day, "Europe/Berlin").unwrap();
        for window in [Window::Calendar(Arc::new(day)), Window::Length(Span::from_secs(86_400))] {
            let limit = Limit::new(Algorithm::FixedWindow, 5, window).unwrap();
            let text = serde_json::to_string(&CounterWindow::of(&limit)).unwrap();
            let read: CounterWindow = serde_json::from_str(&text).unwrap();
            assert_eq!(read.limit().unwrap().window(), limit.window());
        }
        let without_calendar = r#"{"window_us":60000000,"strategy":"gcra"}"#;
        let read: CounterWindow = serde_json::from_str(without_calendar).unwrap();
        assert_eq!(read.limit().unwrap().window(), &Window::Length(Span::from_secs(60)));
    }
}

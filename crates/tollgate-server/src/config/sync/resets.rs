//! Resets of counters, as nodes tell each other through the audit trail.
//!
//! Counters in memory are each node's own, by hashes of its own: what is told is who was reset, and every node finds its
//! counters itself. The text of a key that is not one of ours is not told to anybody: such a reset is this node's alone.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tollgate::calendar::Calendar;
use tollgate::{Algorithm, ApiKey, Endpoint, Id, Limit, Method, Request, Span, Window};
use tollgate_stores::sql::{AuditEntry, AuditEvent, AuditFilter, Database, DatabaseError};
use tracing::info;

use crate::app::App;

/// The action of an entry about a reset.
pub(crate) const ACTION: &str = "reset";
/// What was reset.
pub(crate) const KIND: &str = "counters";

/// OverrideKey counters were reset.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ResetFacts {
    /// The process that did so, and need not hear of it.
    node: String,
    endpoint: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    user_id: Option<String>,
    /// The id of a key that is one of ours.
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
    /// Which numbers of checks' own, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    own: Option<LimitOverride>,
}

/// What the counter of a check's own numbers is known by.
#[derive(Debug, Serialize, Deserialize)]
struct LimitOverride {
    window_us: u64,
    /// The window, if it is one of a calendar: `day@Europe/Berlin`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    calendar: Option<String>,
    strategy: String,
}

impl LimitOverride {
    fn of(limit: &Limit) -> Self {
        let strategy = limit.algorithm().as_str().to_owned();
        let calendar = match limit.window() {
            Window::Calendar(calendar) => Some(calendar.to_string()),
            Window::Length(_) => None,
        };
        LimitOverride { window_us: limit.window_length().as_micros(), calendar, strategy }
    }

    /// A limit with that counter; how much it allows does not matter.
    fn limit(&self) -> Option<Limit> {
        let window = match &self.calendar {
            Some(calendar) => Window::Calendar(Arc::new(Calendar::parse(calendar)?)),
            None => Window::Length(Span::from_micros(self.window_us)),
        };
        Limit::new(Algorithm::parse(&self.strategy)?, 1, window).ok()
    }
}

/// The entry about the reset of a request's client.
pub(crate) fn act_of(app: &App, request: &Request<'_>) -> AuditEvent {
    let text = |id: Option<Id<'_>>| id.map(|id| id.as_str().to_owned());
    let facts = ResetFacts {
        node: app.config_sync().node.clone(),
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
        own: request.limit_override.map(LimitOverride::of),
    };
    let client = request.client().map(|client| client.to_string()).unwrap_or_default();
    let subject = serde_json::to_string(&(client, request.endpoint.as_str())).unwrap_or_default();
    let after = serde_json::to_value(&facts).ok();
    AuditEvent { action: ACTION.to_owned(), kind: KIND.to_owned(), subject, before: None, after }
}

/// Resets here what another node has reset. Shared counters are reset already.
pub(super) async fn replay(app: &App, entry: &AuditEntry) {
    if entry.action != ACTION || entry.kind != KIND || app.counters().memory().is_none() {
        return;
    }
    let facts = entry.after.as_ref().map(ResetFacts::deserialize);
    let Some(facts) = facts.and_then(Result::ok).filter(|facts| facts.node != app.config_sync().node) else {
        return;
    };
    let rules = app.limiter().rules();
    let key = facts.api_key.as_deref().and_then(|id| rules.accounts().key(id)).map(ApiKey::known);
    let pairs =
        facts.descriptors.iter().map(|(name, value)| Some((Id::parse(name).ok()?, Id::parse(value).ok()?)));
    let descriptors: Vec<(Id<'_>, Id<'_>)> = pairs.flatten().collect();
    let Ok(endpoint) = Endpoint::parse(&facts.endpoint) else { return };
    let own = facts.own.as_ref().and_then(LimitOverride::limit);
    let request = Request {
        user: facts.user_id.as_deref().and_then(|text| Id::parse(text).ok()),
        api_key: key,
        ip: facts.ip,
        tenant: facts.tenant.as_deref().and_then(|text| Id::parse(text).ok()),
        login: facts.login.as_deref().and_then(|text| Id::parse(text).ok()),
        method: facts.method.as_deref().and_then(|text| Method::parse(text).ok()),
        descriptors: &descriptors,
        limit_override: own.as_ref(),
        ..Request::new(endpoint)
    };
    if request.client().is_none() {
        return;
    }
    if let Ok(reset) = app.limiter().reset(&request).await {
        info!(by = %entry.by, subject = %entry.subject, counters = reset.counters, "counters reset on another node");
    }
}

/// The last resets, the latest first.
pub(super) async fn latest(database: &Database, count_max: u32) -> Result<Vec<AuditEntry>, DatabaseError> {
    let filter = AuditFilter { kind: Some(KIND.to_owned()), ..AuditFilter::default() };
    database.audit_newest(&filter, None, count_max).await
}

#[cfg(test)]
mod tests {
    use tollgate::calendar::CalendarUnit;

    use super::*;

    #[test]
    fn the_counter_of_own_numbers_is_found_again_by_what_is_told_of_it() {
        let day = Calendar::new(CalendarUnit::Day, "Europe/Berlin").unwrap();
        for window in [Window::Calendar(Arc::new(day)), Window::Length(Span::from_secs(86_400))] {
            let limit = Limit::new(Algorithm::FixedWindow, 5, window).unwrap();
            let told = serde_json::to_string(&LimitOverride::of(&limit)).unwrap();
            let read: LimitOverride = serde_json::from_str(&told).unwrap();
            assert_eq!(read.limit().unwrap().window(), limit.window());
        }
        let before = r#"{"window_us":60000000,"strategy":"gcra"}"#;
        let read: LimitOverride = serde_json::from_str(before).unwrap();
        assert_eq!(read.limit().unwrap().window(), &Window::Length(Span::from_secs(60)));
    }
}

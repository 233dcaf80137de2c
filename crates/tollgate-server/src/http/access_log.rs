//! The access log: one line per request at level debug. While it is off, a request costs one look at the level.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use tollgate::Client;
use tracing::Level;

use super::request_id::RequestId;
use super::routes::Route;
use crate::records::refusal_log::loggable;

/// `log.level = "info,tollgate_server::access=debug"` selects it alone.
const TARGET: &str = "tollgate_server::access";

/// The facts of one request that its response does not have.
pub(crate) struct AccessEntry {
    started: Instant,
    caller: OnceLock<Box<str>>,
    client: OnceLock<String>,
    rule: OnceLock<String>,
}

impl AccessEntry {
    /// An entry, if the access log is on.
    pub(super) fn start() -> Option<Arc<Self>> {
        let (caller, client, rule) = (OnceLock::new(), OnceLock::new(), OnceLock::new());
        let entry = || Arc::new(AccessEntry { started: Instant::now(), caller, client, rule });
        tracing::enabled!(target: TARGET, Level::DEBUG).then(entry)
    }

    /// The authenticated caller; empty if it is anonymous.
    pub(super) fn set_caller(&self, name: &str) {
        if !name.is_empty() {
            let _ = self.caller.set(name.into());
        }
    }

    /// The client of a check.
    pub(crate) fn set_client(&self, client: Option<Client<'_>>) {
        if let Some(client) = client {
            let _ = self.client.set(loggable(&client.to_string()));
        }
    }

    /// The rule that decided a check.
    pub(crate) fn set_rule(&self, rule: Option<&str>) {
        if let Some(rule) = rule {
            let _ = self.rule.set(loggable(rule));
        }
    }

    /// Writes the line. It has the route, never the path or the body: both may contain keys.
    pub(super) fn log(&self, request_id: &RequestId, route: Option<&Route>, status: u16, code: Option<&str>) {
        let (method, route) = route.map_or(("", "other"), |route| (route.method.as_str(), route.path));
        tracing::debug!(
            target: TARGET,
            request_id = request_id.as_str(),
            method,
            route,
            status,
            code,
            duration_us = u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX),
            caller = self.caller.get().map(|name| &**name),
            client = self.client.get(),
            rule = self.rule.get(),
            "request served"
        );
    }
}

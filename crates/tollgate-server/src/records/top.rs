//! The busiest clients, rules and endpoints of about the last minute, and the latest refusals.
//!
//! The flusher adds the counts of each second to [sketches](sketch) of a bounded size. A request touches the table of refusals only, and
//! only if it is refused. API keys are kept in the form in which they may be logged.

mod recent;
mod sketch;
mod summary;

use std::hash::{BuildHasher, RandomState};

use parking_lot::Mutex;
use tollgate::headers::retry_after_secs;
use tollgate::{Answer, Decision, Id, Request, Timestamp};

pub(crate) use self::recent::RecentRefusal;
use self::recent::RecentRefusals;
use self::sketch::{KeyRef, Sketch};
pub(crate) use self::summary::{TopEntry, TopList, TopSummary};
use super::codec::WindowKey;
use super::identifier::Identifier;

/// Windows of [`WINDOW_MICROS`]: together they cover the last 45 to 60 seconds.
const WINDOWS: usize = 4;
const WINDOW_MICROS: u64 = 15_000_000;
/// The time that a flush covers.
const FLUSH_MICROS: u64 = 1_000_000;
/// Counters of a sketch and window.
const COUNTERS_MAX: usize = 1_024;
/// Longer endpoints are cut.
const NAME_BYTES_MAX: usize = 256;

/// What this node counted in about the last minute.
#[derive(Default)]
pub(crate) struct Top {
    windows: Mutex<[Window; WINDOWS]>,
    refusals: Mutex<RecentRefusals>,
    hashing: RandomState,
}

/// Requests since the last flush.
#[derive(Copy, Clone, Debug)]
pub(crate) struct RequestCounts {
    pub(crate) requests: u64,
    pub(crate) refused: u64,
}

struct Window {
    /// Windows since 1970.
    epoch: u64,
    /// When the first counted second began.
    first: Timestamp,
    requests: u64,
    refused: u64,
    clients: Sketch,
    refused_clients: Sketch,
    rules: Sketch,
    endpoints: Sketch,
}

impl Top {
    /// Counts requests of a client on a route. Called by the flusher at `now`.
    pub(super) fn add_window(&self, now: Timestamp, key: &WindowKey<'_>, counts: RequestCounts) {
        let mut windows = self.windows.lock();
        let window = window_at(&mut windows, now);
        window.requests += counts.requests;
        window.refused += counts.refused;
        let client = KeyRef { tenant: key.tenant.unwrap_or_default(), name: key.identifier };
        window.clients.add(client, counts);
        if counts.refused > 0 {
            window.refused_clients.add(client, RequestCounts { requests: counts.refused, ..counts });
        }
        add_name(&mut window.endpoints, cut(key.route), key.tenant, counts);
    }

    /// Counts requests that a rule decided. Called by the flusher at `now`.
    pub(super) fn add_rule(&self, now: Timestamp, rule: &str, tenant: Option<&str>, counts: RequestCounts) {
        add_name(&mut window_at(&mut self.windows.lock(), now).rules, rule, tenant, counts);
    }

    /// Keeps a refusal, unless another thread uses the table. Called while the request waits.
    pub(super) fn note_refusal(
        &self,
        identifier: Identifier<'_>,
        request: &Request<'_>,
        decision: &Decision,
    ) {
        let reason = match decision.answer {
            // An outage is no refusal of this client.
            Answer::Admit { .. } | Answer::Unavailable => return,
            Answer::Refuse { reason, .. } => reason.as_str(),
            Answer::Block => "blocked",
        };
        let (tenant, rule) = (request.tenant.map(Id::as_str), decision.rule_name());
        let endpoint = cut(request.endpoint.as_str());
        let hash = self.hashing.hash_one((identifier.client, tenant, rule, reason, endpoint));
        let Some(mut refusals) = self.refusals.try_lock() else { return };
        let kept = refusals.entry(hash, || RecentRefusal {
            at_micros: 0,
            times: 0,
            tenant: tenant.map(str::to_owned),
            identifier: identifier.to_string(),
            endpoint: endpoint.to_owned(),
            rule: rule.map(str::to_owned),
            reason: reason.to_owned(),
            retry_after: None,
        });
        kept.times += 1;
        kept.at_micros = decision.now.as_micros();
        kept.retry_after = decision.retry_after().map(retry_after_secs);
    }

    /// What was counted. Takes milliseconds while all sketches are full.
    pub(crate) fn summary(&self, now: Timestamp) -> TopSummary {
        let is_current = |window: &&Window| window.epoch.abs_diff(epoch_of(now)) < WINDOWS as u64;
        let windows: Vec<TopSummary> =
            self.windows.lock().iter().filter(is_current).map(|window| window.summary(now)).collect();
        let recent = RecentRefusal::merge(self.refusals.lock().list());
        let mut summary = TopSummary { recent, ..TopSummary::merge(&windows) };
        summary.hide_secrets();
        summary
    }
}

impl Default for Window {
    fn default() -> Self {
        Window {
            epoch: 0,
            first: Timestamp::from_secs(0),
            requests: 0,
            refused: 0,
            clients: Sketch::new(COUNTERS_MAX),
            refused_clients: Sketch::new(COUNTERS_MAX),
            rules: Sketch::new(COUNTERS_MAX),
            endpoints: Sketch::new(COUNTERS_MAX),
        }
    }
}

impl Window {
    fn summary(&self, now: Timestamp) -> TopSummary {
        TopSummary {
            window_seconds: now.since(self.first).as_secs_ceil().max(1),
            requests: self.requests,
            refused: self.refused,
            clients: self.clients.list(),
            refused_clients: self.refused_clients.list(),
            rules: self.rules.list(),
            endpoints: self.endpoints.list(),
            recent: Vec::new(),
        }
    }
}

/// The window of a flush; replaces the one of a minute ago.
fn window_at(windows: &mut [Window; WINDOWS], now: Timestamp) -> &mut Window {
    let epoch = epoch_of(now);
    let slot = usize::try_from(epoch % WINDOWS as u64).unwrap_or(0);
    let window = &mut windows[slot];
    if window.epoch != epoch {
        let first = Timestamp::from_micros(now.as_micros().saturating_sub(FLUSH_MICROS));
        *window = Window { epoch, first, ..Window::default() };
    }
    window
}

/// Counts requests of a rule or an endpoint: among all requests, whose entries have no tenant, and again in the tenant.
fn add_name(sketch: &mut Sketch, name: &str, tenant: Option<&str>, counts: RequestCounts) {
    sketch.add(KeyRef { tenant: "", name }, counts);
    if let Some(tenant) = tenant {
        sketch.add(KeyRef { tenant, name }, counts);
    }
}

/// The start of a long endpoint.
fn cut(endpoint: &str) -> &str {
    &endpoint[..endpoint.floor_char_boundary(NAME_BYTES_MAX)]
}

fn epoch_of(now: Timestamp) -> u64 {
    now.as_micros() / WINDOW_MICROS
}

#[cfg(test)]
mod tests;

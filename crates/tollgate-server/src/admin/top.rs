//! `GET /v1/admin/top`: the busiest and most refused clients, rules and endpoints of about the last minute.

mod stores;

use std::collections::HashMap;

use http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use self::stores::StoresView;
use super::list_query::check_text;
use super::records::normalize_identifier;
use crate::fleet::top::{self, FleetTop};
use crate::http::error::{ApiError, ErrorEnvelope};
use crate::http::{Call, Response, response};
use crate::records::top::{RecentRefusal, TopEntry, TopList};

const ENTRIES_DEFAULT: usize = 20;
const ENTRIES_MAX: usize = 100;

/// Selects what is listed.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct TopQuery {
    /// Entries of each list, 1 to 100; default 20.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 100)]
    limit: Option<String>,
    /// Only requests of this tenant.
    tenant: Option<String>,
    /// Only this client, such as `user:alice`, with its latest refusals.
    identifier: Option<String>,
}

/// The busiest clients, rules and endpoints of the last 45 to 60 seconds, on all nodes that share counters. A request is counted up to a
/// second after its decision.
///
/// Counts are upper bounds: a count minus its error is a lower bound. The error is 0 for up to 2,000 clients on one
/// node, and up to 128 on several nodes.
#[derive(Serialize, ToSchema)]
pub(crate) struct TopResponse {
    /// Seconds that the counts cover.
    window_seconds: u64,
    /// Nodes whose counts are included.
    nodes: usize,
    /// Nodes that share the counters but did not publish their counts.
    nodes_missing: usize,
    /// Whether Redis is unreachable. The counts are then those of this node.
    degraded: bool,
    /// All requests; absent if the response is about one tenant or client.
    #[serde(skip_serializing_if = "Option::is_none")]
    requests: Option<u64>,
    /// All refused requests; absent if the response is about one tenant or client.
    #[serde(skip_serializing_if = "Option::is_none")]
    refused: Option<u64>,
    /// Clients with the most requests.
    clients: Vec<BusyClientView>,
    /// Clients with the most refused requests.
    most_refused: Vec<RefusedClientView>,
    /// Rules that decided the most requests; empty if the response is about one client.
    rules: Vec<BusyRuleView>,
    /// Endpoints with the most requests; empty if the response is about one client.
    endpoints: Vec<BusyEndpointView>,
    /// The latest refusals of the client, the latest first; empty without `identifier`.
    refusals: Vec<RecentRefusalView>,
    /// The stores of the node that answers; absent for callers bound to a tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    stores: Option<StoresView>,
}

/// A client with many requests.
#[derive(Serialize, ToSchema)]
pub(crate) struct BusyClientView {
    /// The client: `user:alice`, `api_key:…`, `login:…`, `ip:…` or `tenant:…`.
    identifier: String,
    /// The tenant of the client; absent without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant: Option<String>,
    /// Requests, at most.
    requests: u64,
    /// There were at least `requests` minus this.
    requests_error: u64,
    /// Refused requests, at least; at most `requests_error` more.
    refused: u64,
}

/// A client with many refused requests.
#[derive(Serialize, ToSchema)]
pub(crate) struct RefusedClientView {
    /// The client: `user:alice`, `api_key:…`, `login:…`, `ip:…` or `tenant:…`.
    identifier: String,
    /// The tenant of the client; absent without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant: Option<String>,
    /// Refused requests, at most.
    refused: u64,
    /// There were at least `refused` minus this.
    refused_error: u64,
    /// All requests, at most; null if the client is not among the busiest.
    requests: Option<u64>,
}

/// A rule that decided many requests.
#[derive(Serialize, ToSchema)]
pub(crate) struct BusyRuleView {
    /// Name of the rule.
    rule: String,
    /// Requests that it decided, at most.
    requests: u64,
    /// There were at least `requests` minus this.
    requests_error: u64,
    /// Requests that it refused, at least; at most `requests_error` more.
    refused: u64,
}

/// An endpoint with many requests.
#[derive(Serialize, ToSchema)]
pub(crate) struct BusyEndpointView {
    /// The route: the endpoint pattern of a rule, else the path; the first 256 bytes of a longer one.
    endpoint: String,
    /// Requests, at most.
    requests: u64,
    /// There were at least `requests` minus this.
    requests_error: u64,
    /// Refused requests, at least; at most `requests_error` more.
    refused: u64,
}

/// Refusals of one client by one rule, for one reason, at one endpoint.
#[derive(Serialize, ToSchema)]
pub(crate) struct RecentRefusalView {
    /// The last time, in Unix seconds.
    at: u64,
    /// How often it happened lately; at least.
    times: u64,
    /// The client: `user:alice`.
    identifier: String,
    /// The tenant of the client; absent without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant: Option<String>,
    /// The endpoint, normalized; the first 256 bytes of a longer one.
    endpoint: String,
    /// The rule that refused; null if a block did.
    rule: Option<String>,
    /// `over_limit`, `cost_exceeds_limit`, `cooldown` or `blocked`.
    reason: String,
    /// Seconds after which a request was to be admitted; null if waiting does not help.
    retry_after: Option<u64>,
}

/// Lists the busiest and most refused clients, rules and endpoints of about the last minute.
#[utoipa::path(
    get, path = "/v1/admin/top", params(TopQuery),
    responses(
        (status = 200, description = "The busiest clients, rules and endpoints.", body = TopResponse),
        (status = 409, description = "Records are disabled.", body = ErrorEnvelope<'_>),
    )
)]
pub(crate) async fn top(call: Call) -> Result<Response, ApiError> {
    let query: TopQuery = call.query()?;
    let count_max = parse_limit(query.limit.as_deref())?;
    check_text("identifier", query.identifier.as_deref())?;
    let tenant = call.tenant(query.tenant.as_deref())?;
    let identifier = query.identifier.map(|identifier| normalize_identifier(&call, &identifier));
    let selection = Selection { tenant, identifier, count_max };
    let counted = top::collect(call.app.limiter(), call.app.now()).await?;
    // A backlog would reveal the traffic of other tenants.
    let stores = call.caller.tenant.is_none().then(|| StoresView::of(&call.app));
    Ok(response::json(StatusCode::OK, &TopResponse { stores, ..TopResponse::new(counted, &selection) }))
}

fn parse_limit(limit: Option<&str>) -> Result<usize, ApiError> {
    let Some(text) = limit else { return Ok(ENTRIES_DEFAULT) };
    let number = text.parse().ok().filter(|number| (1..=ENTRIES_MAX).contains(number));
    number.ok_or_else(|| ApiError::invalid("limit", format!("must be a number from 1 to {ENTRIES_MAX}")))
}

/// What a query selects.
struct Selection {
    tenant: Option<String>,
    identifier: Option<String>,
    count_max: usize,
}

impl Selection {
    fn takes_client(&self, tenant: Option<&String>, identifier: &str) -> bool {
        (self.tenant.is_none() || self.tenant.as_ref() == tenant)
            && self.identifier.as_ref().is_none_or(|wanted| wanted == identifier)
    }

    fn clients(&self, list: TopList) -> impl Iterator<Item = TopEntry> {
        let entries = list.entries.into_iter();
        entries.filter(|entry| self.takes_client(entry.tenant.as_ref(), &entry.name)).take(self.count_max)
    }

    /// Rules or endpoints: entries without a tenant count the requests of all.
    fn names(&self, list: TopList) -> impl Iterator<Item = TopEntry> {
        let entries = list.entries.into_iter().filter(|_| self.identifier.is_none());
        entries.filter(|entry| entry.tenant == self.tenant).take(self.count_max)
    }

    fn refusals(&self, refusals: Vec<RecentRefusal>) -> impl Iterator<Item = RecentRefusal> {
        let refusals = refusals.into_iter().filter(|_| self.identifier.is_some());
        refusals.filter(|each| self.takes_client(each.tenant.as_ref(), &each.identifier)).take(self.count_max)
    }
}

impl TopResponse {
    fn new(counted: FleetTop, selection: &Selection) -> Self {
        let FleetTop { summary, nodes, nodes_missing, degraded } = counted;
        // Totals would reveal the traffic of other tenants.
        let of_all =
            |total: u64| Some(total).filter(|_| selection.tenant.is_none() && selection.identifier.is_none());
        let (requests, refused) = (of_all(summary.requests), of_all(summary.refused));
        let refused_clients = selection.clients(summary.refused_clients);
        let busy: HashMap<(Option<&String>, &String), u64> = summary
            .clients
            .entries
            .iter()
            .map(|entry| ((entry.tenant.as_ref(), &entry.name), entry.count))
            .collect();
        let most_refused = refused_clients.map(|entry| {
            let requests = busy.get(&(entry.tenant.as_ref(), &entry.name)).copied();
            RefusedClientView {
                requests,
                identifier: entry.name,
                tenant: entry.tenant,
                refused: entry.count,
                refused_error: entry.error,
            }
        });
        TopResponse {
            window_seconds: summary.window_seconds,
            nodes,
            nodes_missing,
            degraded,
            requests,
            refused,
            most_refused: most_refused.collect(),
            clients: selection.clients(summary.clients).map(BusyClientView::from).collect(),
            rules: selection.names(summary.rules).map(BusyRuleView::from).collect(),
            endpoints: selection.names(summary.endpoints).map(BusyEndpointView::from).collect(),
            refusals: selection.refusals(summary.recent).map(RecentRefusalView::from).collect(),
            stores: None,
        }
    }
}

impl From<TopEntry> for BusyClientView {
    fn from(entry: TopEntry) -> Self {
        let TopEntry { tenant, name, count, error, refused } = entry;
        BusyClientView { identifier: name, tenant, requests: count, requests_error: error, refused }
    }
}

impl From<TopEntry> for BusyRuleView {
    fn from(entry: TopEntry) -> Self {
        let TopEntry { name, count, error, refused, .. } = entry;
        BusyRuleView { rule: name, requests: count, requests_error: error, refused }
    }
}

impl From<TopEntry> for BusyEndpointView {
    fn from(entry: TopEntry) -> Self {
        let TopEntry { name, count, error, refused, .. } = entry;
        BusyEndpointView { endpoint: name, requests: count, requests_error: error, refused }
    }
}

impl From<RecentRefusal> for RecentRefusalView {
    fn from(refusal: RecentRefusal) -> Self {
        let RecentRefusal { at_micros, times, tenant, identifier, endpoint, rule, reason, retry_after } =
            refusal;
        let at = at_micros / 1_000_000;
        RecentRefusalView { at, times, identifier, tenant, endpoint, rule, reason, retry_after }
    }
}

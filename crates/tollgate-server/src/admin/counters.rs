//! `GET /v1/admin/counters`: the counters of one client.

use std::collections::BTreeMap;

use http::StatusCode;
use serde::{Deserialize, Serialize};
use tollgate::accounts::Block;
use tollgate::headers::retry_after_secs;
use tollgate::identity::{Dimension, Scratch};
use tollgate::inspect::{EndpointScope, InspectedCounter, Inspection};
use tollgate::{Request, Timestamp};
use utoipa::{IntoParams, ToSchema};

use crate::check::request::{CheckRequest, SentIp};
use crate::check::warnings::Warnings;
use crate::http::error::ApiError;
use crate::http::response;
use crate::http::{Call, Response};

/// Selects the client by exactly one of `user`, `api_key`, `ip` and `login`, inside `tenant` if it is given, or by `tenant` alone.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct CountersQuery {
    /// A user id.
    user: Option<String>,
    /// An API key or its id.
    api_key: Option<String>,
    /// An IP address.
    ip: Option<String>,
    /// A login name.
    login: Option<String>,
    /// The tenant of the client.
    tenant: Option<String>,
    /// Only rules that match this endpoint; default all endpoints.
    endpoint: Option<String>,
    /// Only rules that match this tier.
    tier: Option<String>,
    /// HTTP method, for rules that count by method.
    method: Option<String>,
}

/// The counters of one client.
#[derive(Serialize, ToSchema)]
pub(crate) struct CountersResponse {
    /// The client: `user:alice`.
    client: Option<String>,
    /// The tenant of the client; absent without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant: Option<String>,
    /// The endpoint of the query, normalized; null for all endpoints.
    endpoint: Option<String>,
    /// `memory` or `redis`.
    store: &'static str,
    /// Whether Redis is unreachable. The counters are then those of this node's fallback.
    degraded: bool,
    /// End of the client's cooldown after repeated violations, in Unix seconds; null if it has none.
    cooldown_until: Option<u64>,
    /// Of an API key: `active`, `expired` or `revoked`; `unknown` if this server did not issue it, and counts it by its text.
    /// Null for other clients.
    #[schema(value_type = Option<String>)]
    key_status: Option<&'static str>,
    /// Whether the client is blocked.
    blocked: bool,
    /// Reason of the block.
    block_reason: Option<String>,
    /// End of the block in Unix seconds; null if permanent or not blocked.
    blocked_until: Option<u64>,
    /// One counter for each limit of the client, in rule order.
    counters: Vec<CounterView>,
    /// Rules that also count by a dimension that the query does not contain.
    skipped: Vec<String>,
    /// The missing dimensions of each skipped rule, such as `endpoint` or `method`.
    skipped_for: BTreeMap<String, Vec<String>>,
    /// What may not be as meant; absent if nothing.
    #[serde(skip_serializing_if = "Warnings::is_empty")]
    #[schema(value_type = Option<Vec<String>>)]
    warnings: Warnings,
}

/// One counter.
#[derive(Serialize, ToSchema)]
pub(crate) struct CounterView {
    /// Name of the rule.
    rule: String,
    /// Requests per window.
    limit: u32,
    /// The window.
    window: String,
    /// The algorithm.
    strategy: &'static str,
    /// Largest burst: the capacity of a bucket, else the limit.
    capacity: u32,
    /// Used part of the capacity.
    used: u32,
    /// Requests that would be admitted now.
    remaining: u32,
    /// Time at which the capacity is fully restored, in Unix seconds; null if nothing is used.
    restored_at: Option<u64>,
    /// Seconds until a request is admitted; null if one would be admitted now, or never.
    retry_after: Option<u64>,
}

/// Returns the counters of one client, without charging them.
#[utoipa::path(
    get, path = "/v1/admin/counters", params(CountersQuery),
    responses(
        (status = 200, description = "The counters.", body = CountersResponse),
    )
)]
pub(crate) async fn counters(call: Call) -> Result<Response, ApiError> {
    let query: CountersQuery = call.query()?;
    query.require_one_client(call.caller.tenant.is_some())?;
    let (checker, target) = (call.checker()?, query.target());
    let resolved = checker.resolve_target(&target);
    let resolved = resolved.map_err(|error| ApiError::from(error).naming("user_id", "user"))?;
    let request = resolved.request();
    let endpoints = if query.endpoint.is_some() { EndpointScope::Requested } else { EndpointScope::All };
    let inspection = checker.inspect(&request, endpoints).await?;
    let store = if call.app.counters().redis().is_some() { "redis" } else { "memory" };
    let mut scratch = Scratch::default();
    let counted = checker.rules().resolve(&request, &mut scratch).request;
    let explained = checker.explain(&request).await;
    let key_status = query.api_key.as_deref().and_then(|key| checker.key_status(key));
    let mut body = CountersResponse::new(&counted, endpoints, store, inspection, explained.decision.block());
    checker.warn_of_tenants(&request, &mut body.warnings);
    Ok(response::json(StatusCode::OK, &CountersResponse { key_status, ..body }))
}

impl CountersQuery {
    fn target(&self) -> CheckRequest<'_> {
        CheckRequest {
            endpoint: self.endpoint.as_deref().unwrap_or("/"),
            method: self.method.as_deref(),
            user_id: self.user.as_deref(),
            api_key: self.api_key.as_deref(),
            ip: self.ip.as_deref().map(SentIp::Text),
            tenant: self.tenant.as_deref(),
            tier: self.tier.as_deref(),
            login: self.login.as_deref(),
            ..CheckRequest::default()
        }
    }

    /// With two clients, each rule would choose between them.
    fn require_one_client(&self, has_tenant: bool) -> Result<(), ApiError> {
        let clients =
            [("user", &self.user), ("api_key", &self.api_key), ("ip", &self.ip), ("login", &self.login)];
        let mut given = clients.iter().filter(|(_, name)| name.is_some()).map(|(kind, _)| *kind);
        match (given.next(), given.next()) {
            (Some(_), None) => Ok(()),
            (None, _) if has_tenant || self.tenant.is_some() => Ok(()),
            (None, _) => {
                Err(ApiError::invalid("user", "one of user, api_key, ip, login, tenant is required"))
            }
            (Some(first), Some(second)) => {
                let reason = format!("cannot be combined with {first}: name one client");
                Err(ApiError::invalid(second, reason))
            }
        }
    }
}

impl CountersResponse {
    fn new(
        request: &Request<'_>,
        endpoints: EndpointScope,
        store: &'static str,
        inspection: Inspection,
        block: Option<Block<'_>>,
    ) -> Self {
        let endpoint = (endpoints == EndpointScope::Requested).then(|| request.endpoint.as_str().to_owned());
        CountersResponse {
            client: request.client().map(|client| client.to_string()),
            tenant: request.tenant.map(|tenant| tenant.as_str().to_owned()),
            warnings: Warnings::default(),
            endpoint,
            store,
            degraded: inspection.degraded,
            cooldown_until: inspection.cooldown.map(|left| (inspection.now + left).as_secs_ceil()),
            key_status: None,
            blocked: block.is_some(),
            block_reason: block.map(|block| block.reason.to_owned()),
            blocked_until: block.and_then(|block| block.until).map(Timestamp::as_secs_ceil),
            counters: inspection.counters.iter().map(|each| CounterView::new(each, inspection.now)).collect(),
            skipped: inspection.skipped.iter().map(|each| each.rule.clone()).collect(),
            skipped_for: inspection
                .skipped
                .into_iter()
                .map(|each| (each.rule, words(&each.missing)))
                .collect(),
        }
    }
}

fn words(dimensions: &[Dimension]) -> Vec<String> {
    dimensions.iter().map(Dimension::to_string).collect()
}

impl CounterView {
    fn new(counter: &InspectedCounter, now: Timestamp) -> Self {
        let (limit, verdict) = (&counter.limit, &counter.verdict);
        CounterView {
            rule: counter.rule.clone(),
            limit: limit.requests(),
            window: limit.window().describe().to_string(),
            strategy: limit.algorithm().as_str(),
            capacity: limit.capacity(),
            used: counter.used(),
            remaining: verdict.remaining,
            restored_at: (counter.used() > 0).then(|| (now + verdict.reset_after).as_secs_ceil()),
            retry_after: counter.retry_after().map(retry_after_secs),
        }
    }
}

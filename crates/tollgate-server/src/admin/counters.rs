//! `GET /v1/admin/counters`: what the counters of one client hold.

use std::collections::BTreeMap;

use http::StatusCode;
use serde::{Deserialize, Serialize};
use tollgate::accounts::Block;
use tollgate::headers::retry_after_secs;
use tollgate::identity::{Dimension, Scratch};
use tollgate::inspect::{EndpointScope, InspectedCounter, Inspection};
use tollgate::{Request, Timestamp};
use utoipa::{IntoParams, ToSchema};

use crate::check::request::CheckRequest;
use crate::http::error::{ApiError, ErrorEnvelope};
use crate::http::response;
use crate::http::{Call, Response};

/// OverrideKey counters: one of `user`, `api_key`, `ip`, `login`, `tenant`.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct CountersQuery {
    /// A user.
    user: Option<String>,
    /// The holder of an API key: the key, or its id.
    api_key: Option<String>,
    /// An address.
    ip: Option<String>,
    /// The name of a login attempt.
    login: Option<String>,
    /// An organisation.
    tenant: Option<String>,
    /// Only rules that apply on this endpoint; without it, rules of every endpoint.
    endpoint: Option<String>,
    /// Only rules for this plan.
    tier: Option<String>,
    /// The HTTP method, for rules that count by it.
    method: Option<String>,
}

/// What the counters of one client hold.
#[derive(Serialize, ToSchema)]
pub(crate) struct CountersBody {
    /// The client, `user:alice`.
    client: Option<String>,
    /// As asked, in its normal form; null for every endpoint.
    endpoint: Option<String>,
    /// Where the counters are: `memory` or `redis`.
    store: &'static str,
    /// Whether the shared counters could not be asked: then these are this node's own.
    degraded: bool,
    /// The client is kept out until then for running into its limits again and again, in Unix seconds.
    kept_out_until: Option<u64>,
    /// Whether the client is blocked: refused outright, whatever its counters hold.
    blocked: bool,
    /// Why it is blocked.
    block_reason: Option<String>,
    /// When that ends by itself, in Unix seconds; null if it does not, or if there is no block.
    blocked_until: Option<u64>,
    /// One for each limit that counts the client, in the order of the rules.
    counters: Vec<CounterBody>,
    /// Rules that count the client by something beside that the query does not say.
    skipped: Vec<String>,
    /// What that is, by rule: `endpoint`, `method`, and what cannot be said here.
    skipped_for: BTreeMap<String, Vec<String>>,
}

/// One counter.
#[derive(Serialize, ToSchema)]
pub(crate) struct CounterBody {
    /// The rule.
    rule: String,
    /// Requests per window.
    limit: u32,
    /// The window, as written.
    window: String,
    /// The algorithm.
    strategy: &'static str,
    /// What can be admitted at once: the burst of a bucket, else the limit.
    capacity: u32,
    /// How much of the capacity is used and not yet given back.
    used: u32,
    /// What would pass now.
    remaining: u32,
    /// When everything is given back, in Unix seconds; null if nothing is used.
    restored_at: Option<u64>,
    /// Seconds until a request passes; null if one would pass now, or none ever will.
    retry_after: Option<u64>,
}

/// What the counters of one client hold. Nothing is charged.
#[utoipa::path(
    get, path = "/v1/admin/counters", params(CountersQuery),
    responses(
        (status = 200, description = "The counters", body = CountersBody),
        (status = 400, description = "A parameter is wrong", body = ErrorEnvelope<'_>),
        (status = 503, description = "The counter store refuses this service", body = ErrorEnvelope<'_>),
    )
)]
pub(crate) async fn counters(call: Call) -> Result<Response, ApiError> {
    let query: CountersQuery = call.query()?;
    query.require_one_client()?;
    let (checker, target) = (call.checker(), query.target());
    let resolved = checker.resolve_target(&target);
    let resolved = resolved.map_err(|error| ApiError::from(error).naming("user_id", "user"))?;
    let request = resolved.request();
    let endpoints = if query.endpoint.is_some() { EndpointScope::Requested } else { EndpointScope::All };
    let looked = checker.inspect(&request, endpoints).await?;
    let store = if call.app.counters().redis().is_some() { "redis" } else { "memory" };
    let mut scratch = Scratch::default();
    let counted = checker.rules().resolve(&request, &mut scratch).request;
    let mut body = CountersBody::new(&counted, endpoints, store, looked);
    body.tell_block(checker.explain(&request).await.decision.block());
    Ok(response::json(StatusCode::OK, &body))
}

impl CountersQuery {
    fn target(&self) -> CheckRequest<'_> {
        CheckRequest {
            endpoint: self.endpoint.as_deref().unwrap_or("/"),
            method: self.method.as_deref(),
            user_id: self.user.as_deref(),
            api_key: self.api_key.as_deref(),
            ip: self.ip.as_deref(),
            tenant: self.tenant.as_deref(),
            tier: self.tier.as_deref(),
            login: self.login.as_deref(),
            ..CheckRequest::default()
        }
    }

    /// Of two clients it would be a rule's matter whose counter is told.
    fn require_one_client(&self) -> Result<(), ApiError> {
        let clients = [
            ("user", &self.user),
            ("api_key", &self.api_key),
            ("ip", &self.ip),
            ("login", &self.login),
            ("tenant", &self.tenant),
        ];
        let mut given = clients.iter().filter(|(_, name)| name.is_some()).map(|(kind, _)| *kind);
        match (given.next(), given.next()) {
            (Some(_), None) => Ok(()),
            (None, _) => Err(ApiError::invalid("user", "one of user, api_key, ip, login, tenant is needed")),
            (Some(first), Some(second)) => {
                let reason =
                    format!("only one of user, api_key, ip, login, tenant is taken, and there is {first}");
                Err(ApiError::invalid(second, reason))
            }
        }
    }
}

impl CountersBody {
    fn new(request: &Request<'_>, endpoints: EndpointScope, store: &'static str, looked: Inspection) -> Self {
        let endpoint = (endpoints == EndpointScope::Requested).then(|| request.endpoint.as_str().to_owned());
        CountersBody {
            client: request.client().map(|client| client.to_string()),
            endpoint,
            store,
            degraded: looked.degraded,
            kept_out_until: looked.cooldown.map(|left| (looked.now + left).as_secs_ceil()),
            blocked: false,
            block_reason: None,
            blocked_until: None,
            counters: looked.counters.iter().map(|each| CounterBody::new(each, looked.now)).collect(),
            skipped: looked.skipped.iter().map(|each| each.rule.clone()).collect(),
            skipped_for: looked.skipped.into_iter().map(|each| (each.rule, words(&each.missing))).collect(),
        }
    }

    fn tell_block(&mut self, block: Option<Block<'_>>) {
        self.blocked = block.is_some();
        self.block_reason = block.map(|block| block.reason.to_owned());
        self.blocked_until = block.and_then(|block| block.until).map(Timestamp::as_secs_ceil);
    }
}

fn words(dimensions: &[Dimension]) -> Vec<String> {
    dimensions.iter().map(Dimension::to_string).collect()
}

impl CounterBody {
    fn new(counter: &InspectedCounter, now: Timestamp) -> Self {
        let (limit, verdict) = (&counter.limit, &counter.verdict);
        CounterBody {
            rule: counter.rule.clone(),
            limit: limit.requests(),
            window: limit.window().to_string(),
            strategy: limit.algorithm().as_str(),
            capacity: limit.capacity(),
            used: counter.used(),
            remaining: verdict.remaining,
            restored_at: (counter.used() > 0).then(|| (now + verdict.reset_after).as_secs_ceil()),
            retry_after: counter.retry_after().map(retry_after_secs),
        }
    }
}

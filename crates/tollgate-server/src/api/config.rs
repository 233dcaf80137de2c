//! `/v1/rate-limit/config`: overrides, limits set for one user on one endpoint.

use std::sync::Arc;

use http::StatusCode;
use hyper::body::Incoming;
use serde::{Deserialize, Serialize};
use tollgate::counters::StoreError;
use tollgate::identity::{InTenant, Scratch};
use tollgate::rules::overrides::{self, Override, Overrides};
use tollgate::{Id, Limit, Request, RuleSet, Span, Timestamp, Window};
use tollgate_stores::sql::{Item, ItemEdit, ItemWrite, Precondition};
use utoipa::{IntoParams, ToSchema};

use crate::admin::dry_run::{self, ChangeQuery, DryRunResponse};
use crate::check::parse::{
    parse_endpoint, parse_id, parse_limit, parse_one_endpoint, parse_strategy, parse_user, too_long,
};
use crate::check::warnings::Warnings;
use crate::fleet::membership;
use crate::http::error::{ApiError, Code, ErrorEnvelope};
use crate::http::json::{self, Text};
use crate::http::response;
use crate::http::{CHECK_BYTES_MAX, Call, Response};

/// Overrides are kept in memory; this bounds them against abuse.
const OVERRIDES_MAX: usize = 100_000;

/// An override to set.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, bound(deserialize = "'de: 'a"))]
pub(crate) struct ConfigBody<'a> {
    /// The tenant of the user. The override applies to requests with this tenant; without one, to requests without a tenant.
    #[schema(value_type = Option<String>, max_length = 256)]
    tenant: Option<Text<'a>>,
    /// The user.
    #[schema(value_type = String, max_length = 256)]
    user_id: Text<'a>,
    /// The endpoint.
    #[schema(value_type = String)]
    endpoint: Text<'a>,
    /// Requests per window.
    limit: u32,
    /// The window, in seconds.
    #[schema(minimum = 1)]
    window_seconds: u32,
    /// The algorithm, `token_bucket`.
    #[schema(value_type = String)]
    strategy: Text<'a>,
    /// The capacity of a bucket. Default: `limit`.
    burst_capacity: Option<u32>,
}

/// The override in force for one user on one endpoint.
#[derive(Serialize, ToSchema)]
pub(crate) struct ConfigAnswer<'a> {
    /// The tenant of the user; absent without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant: Option<&'a str>,
    /// The user.
    user_id: &'a str,
    /// The normalized endpoint.
    endpoint: &'a str,
    /// Requests per window.
    limit: u32,
    /// The window, in seconds.
    window_seconds: u64,
    /// The algorithm.
    strategy: &'static str,
    /// The capacity of a bucket. Default: `limit`.
    burst_capacity: Option<u32>,
    /// When the override was set.
    updated_at: String,
    /// Warnings about the change, if any.
    #[serde(skip_serializing_if = "Warnings::is_empty")]
    #[schema(value_type = Option<Vec<String>>)]
    warnings: Warnings,
}

/// The user and endpoint.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ConfigQuery {
    /// The tenant of the user.
    tenant: Option<String>,
    /// The user.
    user_id: String,
    /// The endpoint.
    endpoint: String,
    /// For deletions.
    #[param(ignore)]
    dry_run: Option<String>,
}

/// Sets the override of one user on one endpoint.
#[utoipa::path(
    put, path = "/v1/rate-limit/config", operation_id = "write_config", request_body = ConfigBody<'_>, params(ChangeQuery),
    responses(
        (status = 200, description = "In force; what the user has consumed is carried over", body = ConfigAnswer<'_>),
        (status = 409, description = "Too many overrides, or a dry run is not supported because overrides are stored on Redis", body = ErrorEnvelope<'_>),
        (status = 503, description = "The override cannot be stored where other nodes find it; nothing was changed", body = ErrorEnvelope<'_>),
    )
)]
pub(crate) async fn write(call: Call, body: Incoming) -> Result<Response, ApiError> {
    let body = call.json_body(body, CHECK_BYTES_MAX).await?;
    let config: ConfigBody<'_> = json::parse(&body)?;
    let user = parse_user(&config.user_id)?;
    let endpoint = parse_one_endpoint(&config.endpoint)?;
    let window = Window::Length(Span::from_secs(u64::from(config.window_seconds)));
    let limit = parse_limit(parse_strategy(&config.strategy)?, config.limit, window, config.burst_capacity)?;
    let now = call.app.now();
    let tenant = call.tenant(config.tenant.as_deref())?;
    let tenant = parse_id("tenant", tenant.as_deref())?;
    let request = Request { user: Some(user), tenant, ..Request::new(endpoint) };
    let rules = call.app.limiter().rules();
    rules.normalization().check_lengths(&request).map_err(|error| too_long(&error))?;
    let new = new_override(&rules, &request, limit, now)
        .ok_or_else(|| ApiError::invalid("user_id", "is missing"))?;
    if rules.overrides().len() >= OVERRIDES_MAX && rules.overrides().get(new.user(), &new.endpoint).is_none()
    {
        let message = format!("there are already {OVERRIDES_MAX} overrides; delete some first");
        return Err(ApiError::new(Code::Conflict, message));
    }
    let before = rules.overrides().get(new.user(), &new.endpoint).map(|old| old.limit.limit.to_string());
    drop(rules);
    if dry_run::parse(&call)? {
        return dry_run::respond_override(&call, ItemWrite::Put(Item::Limit((&new).into()))).await;
    }
    let answer = answer_of(&new);
    change_override(&call, &request, (new.user(), &new.endpoint), Some(&new)).await?;
    tracing::info!(
        by = %call.caller.name, tenant = ?new.tenant, user = ?new.user, endpoint = ?new.endpoint, before, after = %new.limit.limit,
        "override set"
    );
    Ok(response::json(StatusCode::OK, &answer))
}

/// Returns the override of one user on one endpoint.
#[utoipa::path(
    get, path = "/v1/rate-limit/config", operation_id = "read_config", params(ConfigQuery),
    responses(
        (status = 200, description = "The override in force", body = ConfigAnswer<'_>),
        (status = 404, description = "No override for this user and endpoint", body = ErrorEnvelope<'_>),
    )
)]
pub(crate) async fn read(call: Call) -> Result<Response, ApiError> {
    let query: ConfigQuery = call.query()?;
    if query.dry_run.is_some() {
        return Err(json::unknown("dry_run"));
    }
    let rules = call.app.limiter().rules();
    let found = query.find(&call, &rules)?;
    Ok(response::json(StatusCode::OK, &answer_of(found)))
}

/// Deletes the override of one user on one endpoint; the rules apply again. What the user has consumed is carried over.
#[utoipa::path(
    delete, path = "/v1/rate-limit/config", operation_id = "delete_config", params(ConfigQuery, ChangeQuery),
    responses(
        (status = 200, description = "With dry_run: what would change", body = DryRunResponse),
        (status = 204, description = "Deleted"),
        (status = 404, description = "No override for this user and endpoint", body = ErrorEnvelope<'_>),
        (status = 409, description = "A dry run is not supported: overrides are stored on Redis", body = ErrorEnvelope<'_>),
        (status = 503, description = "The override cannot be stored where other nodes find it; nothing was changed", body = ErrorEnvelope<'_>),
    )
)]
pub(crate) async fn delete(call: Call) -> Result<Response, ApiError> {
    let query: ConfigQuery = call.query()?;
    let found = Arc::clone(query.find(&call, &call.app.limiter().rules())?);
    let (user, endpoint) = (found.user(), &*found.endpoint);
    if dry_run::parse_flag("dry_run", query.dry_run.as_deref())? {
        let id = Item::Limit((&*found).into()).id();
        return dry_run::respond_override(&call, ItemWrite::Delete(id)).await;
    }
    let request = overrides::request_of(user, endpoint).ok_or_else(not_found)?;
    change_override(&call, &request, (user, endpoint), None).await?;
    tracing::info!(by = %call.caller.name, ?user, ?endpoint, "override deleted");
    Ok(response::empty(StatusCode::NO_CONTENT))
}

/// The override to set for the user and endpoint of a request. None without a user.
fn new_override(rules: &RuleSet, request: &Request<'_>, limit: Limit, now: Timestamp) -> Option<Override> {
    let mut scratch = Scratch::default();
    let normalized = rules.normalize(request, &mut scratch);
    let user = InTenant::new(normalized.tenant.map(Id::as_str), normalized.user?);
    let new = Override::new(user, &normalized.endpoint, limit, now);
    let Some(known) = rules.overrides().get(new.user(), &new.endpoint) else { return Some(new) };
    // When nodes disagree after an outage, the later override wins: this one must be later, whatever their clocks say.
    let updated_at = new.updated_at.max(known.updated_at + Span::from_micros(1));
    Some(Override { updated_at, ..new })
}

/// Stores an override, or its deletion, where all nodes find it and puts it in force: in the database or, if that is local and
/// the counters are shared, on Redis. What the user has consumed is carried over.
async fn change_override(
    call: &Call,
    request: &Request<'_>,
    (user, endpoint): (InTenant<'_, &str>, &str),
    new: Option<&Override>,
) -> Result<(), ApiError> {
    let (limiter, now) = (call.app.limiter(), call.app.now());
    let removed = if new.is_none() { &[(user, endpoint)][..] } else { &[] };
    let change = |overrides: &Overrides| overrides.changed(new.map_or(&[], std::slice::from_ref), removed);
    if !call.app.config_sync().stores_overrides() {
        let shared = async { membership::share(limiter, user, endpoint, new).await.map_err(not_shared) };
        return limiter.change_override(request, now, shared, change).await;
    }
    let rules = limiter.rules();
    let write = match (new, rules.overrides().get(user, endpoint)) {
        (Some(new), _) => ItemWrite::Put(Item::Limit(new.into())),
        (None, Some(old)) => ItemWrite::Delete(Item::Limit((&**old).into()).id()),
        (None, None) => return Err(not_found()),
    };
    let next = Arc::new(change(rules.overrides()));
    drop(rules);
    // Counters in memory are carried over by config sync, on each node.
    if call.app.counters().redis().is_none() {
        return change_database(call, write).await;
    }
    let carry_over = limiter.prepare_carry_over(request, &next, now).await;
    change_database(call, write).await?;
    limiter.carry_over(&carry_over, now).await;
    Ok(())
}

/// Changes the database, and waits a moment until the change is in force on this node.
async fn change_database(call: &Call, write: ItemWrite) -> Result<(), ApiError> {
    let config_sync = call.app.config_sync();
    let edit = ItemEdit { write, precondition: Precondition::None };
    let changed =
        config_sync.database()?.change(&call.caller.name, call.app.now().as_micros(), &[edit]).await?;
    config_sync.wait_until_applied(call.app.counters(), changed.version).await;
    Ok(())
}

impl ConfigQuery {
    fn find<'r>(&self, call: &Call, rules: &'r RuleSet) -> Result<&'r Arc<Override>, ApiError> {
        let tenant = call.tenant(self.tenant.as_deref())?;
        let normalization = rules.normalization();
        let user = normalization.ids.user.normalize(parse_user(&self.user_id)?.as_str());
        let endpoint = normalization.normalize_endpoint(parse_endpoint(&self.endpoint)?);
        rules
            .overrides()
            .get(InTenant::new(tenant.as_deref(), &*user), endpoint.as_str())
            .ok_or_else(not_found)
    }
}

pub(crate) fn answer_of(found: &Override) -> ConfigAnswer<'_> {
    let limit = &found.limit.limit;
    ConfigAnswer {
        tenant: found.tenant.as_deref(),
        user_id: &found.user,
        endpoint: &found.endpoint,
        limit: limit.requests(),
        window_seconds: limit.window_length().as_secs_ceil(),
        strategy: limit.algorithm().as_str(),
        burst_capacity: limit.burst(),
        updated_at: response::rfc3339(found.updated_at),
        warnings: Warnings::default(),
    }
}

/// An override that other nodes cannot see is not applied here either.
fn not_shared(error: StoreError) -> ApiError {
    let message = match error {
        StoreError::Misconfigured => return error.into(),
        StoreError::Timeout { .. } => "Redis did not confirm the override; send it again",
        _ => "Redis is unreachable, nothing was changed; send it again",
    };
    ApiError::new(Code::ServiceUnavailable, message)
}

fn not_found() -> ApiError {
    ApiError::new(Code::NotFound, "no override for this user and endpoint")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tollgate::{Algorithm, Endpoint};

    use super::*;

    #[test]
    fn new_override_is_later_than_the_one_it_replaces() {
        let limit = Limit::new(Algorithm::FixedWindow, 5, Window::Length(Span::from_secs(60))).unwrap();
        let (user, endpoint) = (Id::parse("bob").unwrap(), Endpoint::parse("/x").unwrap());
        let request = Request { user: Some(user), ..Request::new(endpoint) };
        let rules = RuleSet::new(Vec::new(), None).unwrap();
        let set = |rules: &RuleSet, at| new_override(rules, &request, limit.clone(), at).unwrap();
        let now = Timestamp::from_secs(1_000);
        let first = set(&rules, now);
        assert_eq!(first.updated_at, now);
        let rules = rules.with_overrides(Arc::new(rules.overrides().with(first)));
        assert!(set(&rules, Timestamp::from_secs(900)).updated_at > now);
        assert_eq!(set(&rules, Timestamp::from_secs(1_100)).updated_at, Timestamp::from_secs(1_100));
    }
}

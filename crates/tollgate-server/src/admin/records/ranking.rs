//! `GET /v1/admin/records/top` and `GET /v1/admin/records/violations`.

use http::StatusCode;
use serde::{Deserialize, Serialize};
use tollgate_stores::sql::records::{
    Granularity, RankedBy, RankedClient, RankedName, RequestCounts, Violation,
};
use utoipa::{IntoParams, ToSchema};

use super::filter::Filters;
use super::period::Period;
use super::usage::UsageCounts;
use super::{query_error, reader};
use crate::admin::{page, view};
use crate::http::error::{ApiError, Code, ErrorEnvelope};
use crate::http::{Call, Response, response};

/// Selects a ranking.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct RankingQuery {
    /// What is ranked: `clients` (default), `routes` or `rules`.
    of: Option<String>,
    /// By what: `requests` (default) or `refused`.
    by: Option<String>,
    /// Entries, 1 to 1000; default 100.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000)]
    limit: Option<String>,
    /// Start of the time: RFC 3339, or how long ago (`2h`); default 24 hours ago.
    since: Option<String>,
    /// End of the time: RFC 3339, or how long ago; default now.
    until: Option<String>,
    /// Only requests with this tenant.
    tenant: Option<String>,
    /// Only requests on this route: the endpoint pattern of a rule, or a path.
    route: Option<String>,
}

/// A ranking.
#[derive(Serialize, ToSchema)]
pub(crate) struct RankingResponse {
    /// What is ranked.
    of: &'static str,
    /// By what.
    by: &'static str,
    /// Start of the time, RFC 3339.
    since: String,
    /// End of the time, RFC 3339.
    until: String,
    entries: Vec<RankingEntry>,
}

/// One entry of a ranking.
#[derive(Serialize, ToSchema)]
pub(crate) struct RankingEntry {
    /// The client (`user:alice`), route or rule; null for requests that no rule decided.
    name: Option<String>,
    /// Tenant of a client; null without one.
    tenant: Option<String>,
    #[serde(flatten)]
    counts: UsageCounts,
}

/// Ranks clients, routes or rules by requests or refused requests.
#[utoipa::path(
    get, path = "/v1/admin/records/top", operation_id = "ranking", params(RankingQuery),
    responses(
        (status = 200, description = "The ranking.", body = RankingResponse),
        (status = 409, description = "Records are disabled.", body = ErrorEnvelope<'_>),
    )
)]
pub(crate) async fn top(call: Call) -> Result<Response, ApiError> {
    let query: RankingQuery = call.query()?;
    let limit = page::parse_limit(query.limit.as_deref())?;
    let of = one_of("of", query.of.as_deref(), &["clients", "routes", "rules"])?;
    let by = one_of("by", query.by.as_deref(), &["requests", "refused"])?;
    let route = query.route.as_deref().map(|route| ("route", route));
    let mut filter = Filters { tenant: query.tenant.as_deref(), route, ..Filters::default() }.parse(&call)?;
    let period = Period::parse(&call, query.since.as_deref(), query.until.as_deref(), Granularity::Day)?;
    period.apply(&mut filter);
    let ranked_by = if by == "refused" { RankedBy::Refused } else { RankedBy::Requests };
    let reader = reader(&call).await?;
    let named = |names: Vec<RankedName>| names.into_iter().map(RankingEntry::from).collect();
    let entries: Result<Vec<RankingEntry>, _> = match of {
        "routes" => reader.top_routes(&filter, ranked_by, limit).await.map(named),
        "rules" => reader.top_rules(&filter, ranked_by, limit).await.map(named),
        _ => {
            let clients = reader.top_clients(&filter, ranked_by, limit).await;
            clients.map(|clients| clients.into_iter().map(RankingEntry::from).collect())
        }
    };
    let entries = entries.map_err(|error| query_error(&error))?;
    let body = RankingResponse { of, by, since: period.since(), until: period.until(), entries };
    Ok(response::json(StatusCode::OK, &body))
}

/// The value of a parameter; the first one by default.
fn one_of(field: &'static str, text: Option<&str>, known: &[&'static str]) -> Result<&'static str, ApiError> {
    let found = known.iter().find(|name| text.is_none_or(|text| text == **name));
    let reason = || format!("must be one of {}", known.join(", "));
    found.copied().ok_or_else(|| ApiError::field(Code::InvalidInput, field, reason()))
}

/// Selects refused clients.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ViolationsQuery {
    /// Entries, 1 to 1000; default 100.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000)]
    limit: Option<String>,
    /// Start of the time: RFC 3339, or how long ago (`2h`); default 24 hours ago.
    since: Option<String>,
    /// End of the time: RFC 3339, or how long ago; default now.
    until: Option<String>,
    /// Only this client: `user:alice`.
    identifier: Option<String>,
    /// Only clients of this tenant.
    tenant: Option<String>,
    /// Only this route: the endpoint pattern of a rule, or a path.
    route: Option<String>,
}

/// Clients that were refused.
#[derive(Serialize, ToSchema)]
pub(crate) struct ViolationsResponse {
    /// Start of the time, RFC 3339.
    since: String,
    /// End of the time, RFC 3339.
    until: String,
    violations: Vec<ViolationView>,
}

/// A client that was refused on a route. The counts are those of the minutes with refused requests.
#[derive(Serialize, ToSchema)]
pub(crate) struct ViolationView {
    /// The client: `user:alice`.
    identifier: String,
    /// Its tenant; null without one.
    tenant: Option<String>,
    /// The endpoint pattern of a rule, a path, or `(other)`.
    route: String,
    #[serde(flatten)]
    counts: UsageCounts,
    /// How many minutes had refused requests.
    minutes: u64,
    /// Largest limit in force in these minutes, in requests per window; null if unknown.
    limit: Option<u64>,
    /// The last of these minutes, RFC 3339.
    last_at: String,
}

/// Lists the clients that were refused, by route, most refused first.
#[utoipa::path(
    get, path = "/v1/admin/records/violations", params(ViolationsQuery),
    responses(
        (status = 200, description = "The refused clients.", body = ViolationsResponse),
        (status = 409, description = "Records are disabled.", body = ErrorEnvelope<'_>),
    )
)]
pub(crate) async fn violations(call: Call) -> Result<Response, ApiError> {
    let query: ViolationsQuery = call.query()?;
    let limit = page::parse_limit(query.limit.as_deref())?;
    let filters = Filters {
        tenant: query.tenant.as_deref(),
        identifier: query.identifier.as_deref(),
        route: query.route.as_deref().map(|route| ("route", route)),
        ..Filters::default()
    };
    let mut filter = filters.parse(&call)?;
    let period = Period::parse(&call, query.since.as_deref(), query.until.as_deref(), Granularity::Day)?;
    period.apply(&mut filter);
    let violations = reader(&call).await?.violations(&filter, limit).await;
    let violations = violations.map_err(|error| query_error(&error))?;
    let violations = violations.into_iter().map(ViolationView::from).collect();
    let body = ViolationsResponse { since: period.since(), until: period.until(), violations };
    Ok(response::json(StatusCode::OK, &body))
}

impl From<RankedClient> for RankingEntry {
    fn from(client: RankedClient) -> Self {
        let RankedClient { tenant, identifier, counts } = client;
        RankingEntry { name: Some(identifier), tenant, counts: counts.into() }
    }
}

impl From<RankedName> for RankingEntry {
    fn from(RankedName { name, counts }: RankedName) -> Self {
        RankingEntry { name, tenant: None, counts: counts.into() }
    }
}

impl From<Violation> for ViolationView {
    fn from(violation: Violation) -> Self {
        let counts: RequestCounts = violation.counts;
        ViolationView {
            identifier: violation.identifier,
            tenant: violation.tenant,
            route: violation.route,
            counts: counts.into(),
            minutes: violation.minutes,
            limit: violation.limit_value,
            last_at: view::timestamp(violation.last_micros),
        }
    }
}

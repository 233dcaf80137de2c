//! `GET /v1/admin/records/trend`: requests and latencies over time.

use http::StatusCode;
use serde::{Deserialize, Serialize};
use tollgate_stores::sql::records::{Granularity, TrendPoint};
use utoipa::{IntoParams, ToSchema};

use super::filter::Filters;
use super::period::Period;
use super::rollups::PeriodCounts;
use super::{query_error, reader};
use crate::admin::view;
use crate::http::error::{ApiError, ErrorEnvelope};
use crate::http::{Call, Response, response};

/// Selects the requests, the time and the periods.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct TrendQuery {
    /// Length of the periods: `minute`, `hour` or `day`; by default it depends on the time.
    per: Option<String>,
    /// Start of the time: RFC 3339, or how long ago (`2h`); default 24 hours ago.
    since: Option<String>,
    /// End of the time: RFC 3339, or how long ago; default now.
    until: Option<String>,
    /// Only requests with this tenant.
    tenant: Option<String>,
    /// Only requests on this route: the endpoint pattern of a rule, or a path.
    route: Option<String>,
    /// Only requests that this rule decided.
    rule: Option<String>,
}

/// Requests over time.
#[derive(Serialize, ToSchema)]
pub(crate) struct TrendResponse {
    /// Length of the periods.
    per: &'static str,
    /// Start of the time, RFC 3339.
    since: String,
    /// End of the time, RFC 3339.
    until: String,
    /// Oldest first; periods without requests are missing.
    points: Vec<TrendPointView>,
}

/// One period.
#[derive(Serialize, ToSchema)]
pub(crate) struct TrendPointView {
    /// Start of the period, RFC 3339.
    start: String,
    #[serde(flatten)]
    counts: PeriodCounts,
}

/// Returns requests and latencies by period.
#[utoipa::path(
    get, path = "/v1/admin/records/trend", params(TrendQuery),
    responses(
        (status = 200, description = "The periods.", body = TrendResponse),
        (status = 409, description = "Records are disabled.", body = ErrorEnvelope<'_>),
    )
)]
pub(crate) async fn trend(call: Call) -> Result<Response, ApiError> {
    let query: TrendQuery = call.query()?;
    let filters = Filters {
        tenant: query.tenant.as_deref(),
        route: query.route.as_deref().map(|route| ("route", route)),
        rule: query.rule.as_deref(),
        ..Filters::default()
    };
    let mut filter = filters.parse(&call)?;
    let period = Period::parse(&call, query.since.as_deref(), query.until.as_deref(), Granularity::Day)?;
    let per = period.granularity(query.per.as_deref())?;
    period.apply(&mut filter);
    let points = reader(&call).await?.trend(&filter, per).await.map_err(|error| query_error(&error))?;
    let points = points.iter().map(TrendPointView::of).collect();
    let body = TrendResponse { per: per.as_str(), since: period.since(), until: period.until(), points };
    Ok(response::json(StatusCode::OK, &body))
}

impl TrendPointView {
    fn of(point: &TrendPoint) -> Self {
        let requests = [point.allowed, point.throttled, point.blocked];
        let cache = [point.cache_hits, point.cache_misses];
        TrendPointView {
            start: view::timestamp(point.start_micros),
            counts: PeriodCounts::new(requests, cache, &point.latency),
        }
    }
}

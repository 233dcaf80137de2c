//! `GET /v1/admin/usage/{identifier}`: the requests of one client.

use http::StatusCode;
use serde::{Deserialize, Serialize};
use tollgate::Timestamp;
use tollgate_stores::sql::records::{Granularity, RecordFilter, RequestCounts, TenantFilter};
use utoipa::{IntoParams, ToSchema};

use super::filter::{Filters, normalize_identifier};
use super::period::Period;
use super::{query_error, reader};
use crate::admin::list_query::check_text;
use crate::admin::view;
use crate::http::error::{ApiError, ErrorEnvelope};
use crate::http::{Call, Response, response};

/// Days that are covered by default.
const DAYS: u64 = 30;

/// Selects the time and the periods.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct UsageQuery {
    /// Tenant of the client; without one, the client without a tenant.
    tenant: Option<String>,
    /// Start of the time: RFC 3339, or how long ago (`24h`); default 30 days ago.
    since: Option<String>,
    /// End of the time: RFC 3339, or how long ago; default now.
    until: Option<String>,
    /// Length of the periods: `minute`, `hour` or `day`; by default it depends on the time.
    per: Option<String>,
    /// Only requests on this route: the endpoint pattern of a rule, or a path.
    route: Option<String>,
}

/// The requests of one client, from its window records.
#[derive(Serialize, ToSchema)]
pub(crate) struct UsageResponse {
    /// The client, normalized.
    identifier: String,
    /// Its tenant; null without one.
    tenant: Option<String>,
    /// Start of the time, RFC 3339.
    since: String,
    /// End of the time, RFC 3339.
    until: String,
    /// Requests on the current UTC day.
    today: UsageCounts,
    /// Requests in the current UTC month, as far back as windows are kept (`records.window_retention`).
    month: UsageCounts,
    /// Requests from `since` until `until`.
    total: UsageCounts,
    /// Start of the last minute with a request, RFC 3339; null without requests.
    last_request_at: Option<String>,
    /// Length of the periods.
    per: &'static str,
    /// Requests by period, oldest first; periods without requests are missing.
    periods: Vec<UsagePeriodView>,
    /// Requests on the busiest routes, at most 100.
    routes: Vec<RouteUsageView>,
}

/// Requests.
#[derive(Serialize, ToSchema)]
pub(crate) struct UsageCounts {
    /// All requests.
    requests: u64,
    /// Requests admitted.
    allowed: u64,
    /// Requests refused or blocked.
    refused: u64,
}

/// Requests in one period.
#[derive(Serialize, ToSchema)]
pub(crate) struct UsagePeriodView {
    /// Start of the period, RFC 3339.
    start: String,
    #[serde(flatten)]
    counts: UsageCounts,
}

/// Requests on one route.
#[derive(Serialize, ToSchema)]
pub(crate) struct RouteUsageView {
    /// The endpoint pattern of a rule, a path, or `(other)`.
    route: String,
    #[serde(flatten)]
    counts: UsageCounts,
}

/// Returns the requests of one client. A client without requests has counts of 0.
#[utoipa::path(
    get, path = "/v1/admin/usage/{identifier}",
    params(
        ("identifier" = String, Path, description = "The client: `user:alice`, `login:alice`, `api_key:ID`, `ip:192.0.2.1`."),
        UsageQuery,
    ),
    responses(
        (status = 200, description = "The requests.", body = UsageResponse),
        (status = 409, description = "Records are disabled.", body = ErrorEnvelope<'_>),
    )
)]
pub(crate) async fn usage(call: Call) -> Result<Response, ApiError> {
    let query: UsageQuery = call.query()?;
    let identifier = call.path_param("identifier")?;
    check_text("identifier", Some(&identifier))?;
    let identifier = normalize_identifier(&call, &identifier);
    let route = query.route.as_deref().map(|route| ("route", route));
    let filters = Filters { tenant: query.tenant.as_deref(), route, ..Filters::default() };
    let mut filter = RecordFilter { identifier: Some(identifier.clone()), ..filters.parse(&call)? };
    if filter.tenant == TenantFilter::Any {
        filter.tenant = TenantFilter::Without;
    }
    let days = format!("{DAYS}d");
    let since = query.since.as_deref().or(query.until.is_none().then_some(&*days));
    let period = Period::parse(&call, since, query.until.as_deref(), Granularity::Day)?;
    let per = period.granularity(query.per.as_deref())?;
    let reader = reader(&call).await?;
    let since_micros = |from| RecordFilter { from_micros: Some(from), ..filter.clone() };
    let now = call.app.now();
    let today = reader.request_counts(&since_micros(day_start(now))).await;
    let month = reader.request_counts(&since_micros(month_start(now))).await;
    let (today, month) =
        (today.map_err(|error| query_error(&error))?, month.map_err(|error| query_error(&error))?);
    period.apply(&mut filter);
    let usage = reader.usage(&filter, per).await.map_err(|error| query_error(&error))?;
    let periods = usage.periods.iter().map(|each| UsagePeriodView {
        start: view::timestamp(each.start_micros),
        counts: each.counts.into(),
    });
    let routes = usage.routes.into_iter();
    let body = UsageResponse {
        identifier,
        tenant: call.tenant(query.tenant.as_deref())?,
        since: period.since(),
        until: period.until(),
        today: today.into(),
        month: month.into(),
        total: usage.total.into(),
        last_request_at: usage.last_micros.map(view::timestamp),
        per: per.as_str(),
        periods: periods.collect(),
        routes: routes.map(|each| RouteUsageView { route: each.route, counts: each.counts.into() }).collect(),
    };
    Ok(response::json(StatusCode::OK, &body))
}

/// The start of the current day, UTC.
fn day_start(now: Timestamp) -> u64 {
    now.as_micros() - now.as_micros() % Granularity::Day.micros()
}

/// The start of the current month, UTC.
fn month_start(now: Timestamp) -> u64 {
    let day = day_start(now);
    let time = i64::try_from(day).ok().and_then(|day| jiff::Timestamp::from_microsecond(day).ok());
    let of_month = time.map_or(1, |time| time.to_zoned(jiff::tz::TimeZone::UTC).day());
    day.saturating_sub(u64::try_from(of_month - 1).unwrap_or(0) * Granularity::Day.micros())
}

impl From<RequestCounts> for UsageCounts {
    fn from(counts: RequestCounts) -> Self {
        UsageCounts { requests: counts.requests(), allowed: counts.allowed, refused: counts.refused }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn month_starts_on_its_first_day() {
        let at = |text: &str| text.parse::<jiff::Timestamp>().unwrap().as_microsecond().cast_unsigned();
        for (now, month) in [
            ("2026-11-17T12:34:56Z", "2026-11-01T00:00:00Z"),
            ("2028-02-29T23:59:59.999999Z", "2028-02-01T00:00:00Z"),
            ("2027-01-01T00:00:00Z", "2027-01-01T00:00:00Z"),
        ] {
            assert_eq!(month_start(Timestamp::from_micros(at(now))), at(month), "{now}");
        }
    }
}

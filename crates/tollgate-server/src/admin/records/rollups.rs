//! `GET /v1/admin/rollups`: requests and latencies per route, rule and period.

use serde::{Deserialize, Serialize};
use tollgate_stores::sql::DatabaseError;
use tollgate_stores::sql::records::{
    Granularity, LatencyHistogram, Order, RecordFilter, RecordReader, RollupCursor, StoredRollup,
};
use utoipa::{IntoParams, ToSchema};

use super::filter::Filters;
use super::list::{RecordList, Rows, list_parameters};
use crate::admin::view;
use crate::http::error::{ApiError, Code, ErrorEnvelope};
use crate::http::{Call, Response};

/// Selects rollups.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct RollupsQuery {
    /// Length of the periods: `minute` (default), `hour` or `day`. Hours and days are computed after they end.
    per: Option<String>,
    /// Rollups per page, 1 to 1000; default 100. In CSV and NDJSON: the most rollups; default all.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000)]
    limit: Option<String>,
    /// Continues after this rollup: `next` of an earlier response.
    after: Option<String>,
    /// Only periods that start at this time or later: RFC 3339, or how long ago (`2h`).
    since: Option<String>,
    /// Only periods that start before this time: RFC 3339, or how long ago (`2h`).
    until: Option<String>,
    /// Only requests with this tenant.
    tenant: Option<String>,
    /// Only requests of this user, in periods in which it was one of the busiest.
    user_id: Option<String>,
    /// Only this route: the endpoint pattern of a rule, or a path.
    route: Option<String>,
    /// Only requests that this rule decided.
    rule: Option<String>,
    /// `true` lists the newest periods first.
    #[param(value_type = Option<bool>)]
    newest: Option<String>,
    /// `json` (default), `csv` or `ndjson`; `Accept` selects it as well.
    format: Option<String>,
}

/// A page of rollups.
#[derive(ToSchema)]
#[expect(dead_code, reason = "describes a response that is built of JSON values")]
pub(crate) struct RollupsPage {
    rollups: Vec<Rollup>,
    /// Cursor of the next page; null if there are no more rollups.
    next: Option<String>,
}

/// Requests on one route that one rule decided in one period, on all nodes of a region.
#[derive(Serialize, ToSchema)]
pub(crate) struct Rollup {
    /// Start of the period, RFC 3339.
    start: String,
    /// The tenant; null without one.
    tenant: Option<String>,
    /// The user, if it was one of the busiest; null for all others together.
    user_id: Option<String>,
    /// The endpoint pattern of a rule, a path, or `(other)`.
    route: String,
    /// Name of the deciding rule, if any.
    rule: Option<String>,
    /// Region of the nodes.
    region: String,
    #[serde(flatten)]
    counts: PeriodCounts,
}

/// Requests and latencies in one period.
#[derive(Serialize, ToSchema)]
pub(crate) struct PeriodCounts {
    /// All requests.
    requests: u64,
    /// Requests admitted.
    allowed: u64,
    /// Requests refused by a limit, in cooldown, or while the counters were unreachable.
    throttled: u64,
    /// Requests refused by a block.
    blocked: u64,
    /// Decisions without a call to the shared counters.
    cache_hits: u64,
    /// Decisions that called the shared counters.
    cache_misses: u64,
    /// Latency that half of the decisions did not exceed, in microseconds, at most 25 % too high; null without requests.
    latency_p50_us: Option<u64>,
    /// Latency that 95 % of the decisions did not exceed.
    latency_p95_us: Option<u64>,
    /// Latency that 99 % of the decisions did not exceed.
    latency_p99_us: Option<u64>,
}

/// Lists rollups: requests and latencies per route, rule and period.
#[utoipa::path(
    get, path = "/v1/admin/rollups", params(RollupsQuery),
    responses(
        (status = 200, description = "A page of rollups; in CSV and NDJSON all of them.",
         content((RollupsPage = "application/json"), (String = "text/csv"), (String = "application/x-ndjson"))),
        (status = 409, description = "Records are disabled.", body = ErrorEnvelope<'_>),
    )
)]
pub(crate) async fn rollups(call: Call) -> Result<Response, ApiError> {
    let query: RollupsQuery = call.query()?;
    let invalid = || ApiError::field(Code::InvalidInput, "per", "must be minute, hour or day");
    let per = query.per.as_deref().map(|per| Granularity::parse(per).ok_or_else(invalid)).transpose()?;
    let filters = Filters {
        tenant: query.tenant.as_deref(),
        user_id: query.user_id.as_deref(),
        route: query.route.as_deref().map(|route| ("route", route)),
        rule: query.rule.as_deref(),
        ..Filters::default()
    };
    let per = per.unwrap_or(Granularity::Minute);
    let list = |filter, order| RollupList { per, filter, order };
    list_parameters!(query).respond(&call, filters, list).await
}

struct RollupList {
    per: Granularity,
    filter: RecordFilter,
    order: Order,
}

impl RecordList for RollupList {
    const NAME: &'static str = "rollups";
    const COLUMNS: &'static [&'static str] = &[
        "start",
        "tenant",
        "user_id",
        "route",
        "rule",
        "region",
        "requests",
        "allowed",
        "throttled",
        "blocked",
        "cache_hits",
        "cache_misses",
        "latency_p50_us",
        "latency_p95_us",
        "latency_p99_us",
    ];
    type Row = Rollup;
    type Position = RollupPosition;

    async fn read(
        &self,
        reader: &RecordReader,
        after: Option<&Self::Position>,
        count_max: u32,
    ) -> Result<Rows<Self>, DatabaseError> {
        let after = after.map(RollupPosition::cursor);
        let read = reader.rollups(self.per, &self.filter, self.order, after.as_ref(), count_max).await?;
        let rows = read.into_iter().map(|rollup| (RollupPosition::of(rollup.cursor()), Rollup::of(rollup)));
        Ok(rows.collect())
    }
}

/// Start, route, rule, tenant, user and region.
#[derive(Serialize, Deserialize)]
pub(super) struct RollupPosition(u64, String, Option<String>, Option<String>, Option<String>, String);

impl RollupPosition {
    fn of(cursor: RollupCursor) -> Self {
        let RollupCursor { start_micros, endpoint, rule, tenant, user_id, region } = cursor;
        RollupPosition(start_micros, endpoint, rule, tenant, user_id, region)
    }

    fn cursor(&self) -> RollupCursor {
        let RollupPosition(start_micros, endpoint, rule, tenant, user_id, region) = self;
        RollupCursor {
            start_micros: *start_micros,
            endpoint: endpoint.clone(),
            rule: rule.clone(),
            tenant: tenant.clone(),
            user_id: user_id.clone(),
            region: region.clone(),
        }
    }
}

impl Rollup {
    fn of(rollup: StoredRollup) -> Self {
        Rollup {
            start: view::timestamp(rollup.start_micros),
            counts: PeriodCounts::new(
                [rollup.allowed, rollup.throttled, rollup.blocked],
                [rollup.cache_hits, rollup.cache_misses],
                &rollup.latency,
            ),
            tenant: rollup.tenant,
            user_id: rollup.user_id,
            route: rollup.endpoint,
            rule: rollup.rule,
            region: rollup.region,
        }
    }
}

impl PeriodCounts {
    pub(super) fn new(
        [allowed, throttled, blocked]: [u64; 3],
        [cache_hits, cache_misses]: [u64; 2],
        latency: &LatencyHistogram,
    ) -> Self {
        PeriodCounts {
            requests: allowed.saturating_add(throttled).saturating_add(blocked),
            allowed,
            throttled,
            blocked,
            cache_hits,
            cache_misses,
            latency_p50_us: latency.quantile(0.5),
            latency_p95_us: latency.quantile(0.95),
            latency_p99_us: latency.quantile(0.99),
        }
    }
}

//! `GET /v1/admin/decisions`: the decision log.

use serde::{Deserialize, Serialize};
use tollgate_stores::sql::DatabaseError;
use tollgate_stores::sql::records::{DecisionCursor, Order, RecordFilter, RecordReader, StoredDecision};
use utoipa::{IntoParams, ToSchema};

use super::filter::Filters;
use super::list::{RecordList, Rows, list_parameters};
use crate::admin::view;
use crate::http::error::{ApiError, ErrorEnvelope};
use crate::http::{Call, Response};

/// Selects decisions.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct DecisionsQuery {
    /// Decisions per page, 1 to 1000; default 100. In CSV and NDJSON: the most decisions; default all.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000)]
    limit: Option<String>,
    /// Continues after this decision: `next` of an earlier response.
    after: Option<String>,
    /// Only decisions since this time: RFC 3339, or how long ago (`2h`).
    since: Option<String>,
    /// Only decisions before this time: RFC 3339, or how long ago (`2h`).
    until: Option<String>,
    /// Only decisions about this client: `user:alice`, `login:alice`, `api_key:ID`, `ip:192.0.2.1` or `tenant:acme`.
    identifier: Option<String>,
    /// Only decisions about requests with this tenant.
    tenant: Option<String>,
    /// Only decisions about this path, normalized.
    endpoint: Option<String>,
    /// Only decisions by this rule.
    rule: Option<String>,
    /// `allowed`, `throttled`, `blocked` or `unavailable`.
    decision: Option<String>,
    /// `true` lists the newest decisions first.
    #[param(value_type = Option<bool>)]
    newest: Option<String>,
    /// `json` (default), `csv` or `ndjson`; `Accept` selects it as well.
    format: Option<String>,
}

/// A page of the decision log.
#[derive(ToSchema)]
#[expect(dead_code, reason = "describes a response that is built of JSON values")]
pub(crate) struct DecisionsPage {
    decisions: Vec<DecisionLogEntry>,
    /// Cursor of the next page; null if there are no more decisions.
    next: Option<String>,
}

/// One decision.
#[derive(Serialize, ToSchema)]
pub(crate) struct DecisionLogEntry {
    /// Unique number.
    id: u64,
    /// Time of the decision, RFC 3339.
    at: String,
    /// `allowed`, `throttled`, `blocked`, or `unavailable` if it was refused because the counters were unreachable.
    decision: &'static str,
    /// The client: `user:alice`, `login:alice`, `api_key:ID`, `ip:192.0.2.1` or `tenant:acme`.
    identifier: String,
    /// The tenant; null without one.
    tenant: Option<String>,
    /// The user, if known.
    user_id: Option<String>,
    /// Id of the API key, if any.
    api_key_id: Option<String>,
    /// Address of the client, if known.
    ip: Option<String>,
    /// The path, normalized.
    endpoint: String,
    /// HTTP method, if known.
    method: Option<String>,
    /// Name of the deciding rule, if any.
    rule: Option<String>,
    /// Requests per window of the deciding limit.
    limit: Option<u64>,
    /// What the deciding limit had counted after the request.
    current_count: Option<u64>,
    /// What the deciding limit had left.
    remaining: Option<u64>,
    /// Cost of the request.
    cost: u32,
    /// HTTP status for the client.
    status: u16,
    /// Whole seconds until a retry can succeed; null if it was admitted, or never can.
    retry_after: Option<u64>,
    /// How long the decision took, in microseconds.
    latency_us: u64,
    /// Region of the node.
    region: String,
    /// Id of the node.
    server_id: String,
    /// Id of the API request.
    request_id: Option<String>,
    /// Whether shared counters were unreachable.
    degraded: bool,
    /// Whether a text was cut to the length of its column.
    truncated: bool,
}

/// Lists the decision log: all refused requests, and a sample of the admitted ones.
#[utoipa::path(
    get, path = "/v1/admin/decisions", params(DecisionsQuery),
    responses(
        (status = 200, description = "A page of decisions; in CSV and NDJSON all of them.",
         content((DecisionsPage = "application/json"), (String = "text/csv"), (String = "application/x-ndjson"))),
        (status = 409, description = "Records are disabled.", body = ErrorEnvelope<'_>),
    )
)]
pub(crate) async fn decisions(call: Call) -> Result<Response, ApiError> {
    let query: DecisionsQuery = call.query()?;
    let filters = Filters {
        tenant: query.tenant.as_deref(),
        identifier: query.identifier.as_deref(),
        route: query.endpoint.as_deref().map(|endpoint| ("endpoint", endpoint)),
        rule: query.rule.as_deref(),
        decision: query.decision.as_deref(),
        ..Filters::default()
    };
    let list = |filter, order| DecisionList { filter, order };
    list_parameters!(query).respond(&call, filters, list).await
}

struct DecisionList {
    filter: RecordFilter,
    order: Order,
}

impl RecordList for DecisionList {
    const NAME: &'static str = "decisions";
    const COLUMNS: &'static [&'static str] = &[
        "id",
        "at",
        "decision",
        "identifier",
        "tenant",
        "user_id",
        "api_key_id",
        "ip",
        "endpoint",
        "method",
        "rule",
        "limit",
        "current_count",
        "remaining",
        "cost",
        "status",
        "retry_after",
        "latency_us",
        "region",
        "server_id",
        "request_id",
        "degraded",
        "truncated",
    ];
    type Row = DecisionLogEntry;
    /// Time and id.
    type Position = (u64, u64);

    async fn read(
        &self,
        reader: &RecordReader,
        after: Option<&Self::Position>,
        count_max: u32,
    ) -> Result<Rows<Self>, DatabaseError> {
        let after = after.map(|&(at_micros, id)| DecisionCursor { at_micros, id });
        let read = reader.decisions(&self.filter, self.order, after.as_ref(), count_max).await?;
        let position = |decision: &StoredDecision| (decision.row.at_micros, decision.id);
        Ok(read.into_iter().map(|each| (position(&each), DecisionLogEntry::of(each))).collect())
    }
}

impl DecisionLogEntry {
    fn of(stored: StoredDecision) -> Self {
        let StoredDecision { id, truncated, row } = stored;
        DecisionLogEntry {
            id,
            at: view::timestamp(row.at_micros),
            decision: row.decision.as_str(),
            identifier: row.identifier,
            tenant: row.tenant,
            user_id: row.user_id,
            api_key_id: row.api_key_id,
            ip: row.ip_address,
            endpoint: row.endpoint,
            method: row.http_method,
            rule: row.rule,
            limit: row.limit_value,
            current_count: row.current_count,
            remaining: row.remaining,
            cost: row.cost,
            status: row.response_status,
            retry_after: row.retry_after_seconds,
            latency_us: row.latency_micros,
            region: row.region,
            server_id: row.server_id,
            request_id: row.request_id,
            degraded: row.degraded,
            truncated,
        }
    }
}

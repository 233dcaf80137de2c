//! `GET /v1/admin/windows`: requests per client, route and minute.

use serde::{Deserialize, Serialize};
use tollgate_stores::sql::DatabaseError;
use tollgate_stores::sql::records::{
    Granularity, Order, RecordFilter, RecordReader, StoredWindow, WindowCursor,
};
use utoipa::{IntoParams, ToSchema};

use super::filter::Filters;
use super::list::{RecordList, Rows, list_parameters};
use crate::admin::view;
use crate::http::error::{ApiError, ErrorEnvelope};
use crate::http::{Call, Response};

/// Selects window records.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct WindowsQuery {
    /// Windows per page, 1 to 1000; default 100. In CSV and NDJSON: the most windows; default all.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000)]
    limit: Option<String>,
    /// Continues after this window: `next` of an earlier response.
    after: Option<String>,
    /// Only windows that start at this time or later: RFC 3339, or how long ago (`2h`).
    since: Option<String>,
    /// Only windows that start before this time: RFC 3339, or how long ago (`2h`).
    until: Option<String>,
    /// Only windows of this client: `user:alice`.
    identifier: Option<String>,
    /// Only windows of clients of this tenant.
    tenant: Option<String>,
    /// Only windows of this route: the endpoint pattern of a rule, or a path.
    route: Option<String>,
    /// `true` lists the newest windows first.
    #[param(value_type = Option<bool>)]
    newest: Option<String>,
    /// `json` (default), `csv` or `ndjson`; `Accept` selects it as well.
    format: Option<String>,
}

/// A page of window records.
#[derive(ToSchema)]
#[expect(dead_code, reason = "describes a response that is built of JSON values")]
pub(crate) struct WindowsPage {
    windows: Vec<WindowRecord>,
    /// Cursor of the next page; null if there are no more windows.
    next: Option<String>,
}

/// Requests of one client on one route in one minute, on all nodes.
#[derive(Serialize, ToSchema)]
pub(crate) struct WindowRecord {
    /// Start of the minute, RFC 3339.
    start: String,
    /// End of the minute, RFC 3339.
    end: String,
    /// The client: `user:alice`.
    identifier: String,
    /// The tenant; null without one.
    tenant: Option<String>,
    /// The endpoint pattern of a rule, a path, or `(other)`.
    route: String,
    /// All requests.
    requests: u64,
    /// Requests admitted.
    allowed: u64,
    /// Requests refused or blocked.
    refused: u64,
    /// Requests per window of the limit that decided last, if any.
    limit: Option<u64>,
}

/// Lists window records: requests per client, route and minute.
#[utoipa::path(
    get, path = "/v1/admin/windows", params(WindowsQuery),
    responses(
        (status = 200, description = "A page of windows; in CSV and NDJSON all of them.",
         content((WindowsPage = "application/json"), (String = "text/csv"), (String = "application/x-ndjson"))),
        (status = 409, description = "Records are disabled.", body = ErrorEnvelope<'_>),
    )
)]
pub(crate) async fn windows(call: Call) -> Result<Response, ApiError> {
    let query: WindowsQuery = call.query()?;
    let filters = Filters {
        tenant: query.tenant.as_deref(),
        identifier: query.identifier.as_deref(),
        route: query.route.as_deref().map(|route| ("route", route)),
        ..Filters::default()
    };
    let list = |filter, order| WindowList { filter, order };
    list_parameters!(query).respond(&call, filters, list).await
}

struct WindowList {
    filter: RecordFilter,
    order: Order,
}

impl RecordList for WindowList {
    const NAME: &'static str = "windows";
    const COLUMNS: &'static [&'static str] =
        &["start", "end", "identifier", "tenant", "route", "requests", "allowed", "refused", "limit"];
    type Row = WindowRecord;
    /// Start and key, in two halves.
    type Position = (u64, u64, u64);

    async fn read(
        &self,
        reader: &RecordReader,
        after: Option<&Self::Position>,
        count_max: u32,
    ) -> Result<Rows<Self>, DatabaseError> {
        let after = after.map(|&(start_micros, high, low)| {
            let hash = u128::from(high) << 64 | u128::from(low);
            WindowCursor { start_micros, key_hash: hash.to_be_bytes() }
        });
        let read = reader.windows(&self.filter, self.order, after.as_ref(), count_max).await?;
        Ok(read.into_iter().map(|each| (position(&each), WindowRecord::of(each))).collect())
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the hash in two halves")]
fn position(window: &StoredWindow) -> (u64, u64, u64) {
    let hash = u128::from_be_bytes(window.key_hash);
    (window.row.start_micros, (hash >> 64) as u64, hash as u64)
}

impl WindowRecord {
    fn of(window: StoredWindow) -> Self {
        let row = window.row;
        WindowRecord {
            start: view::timestamp(row.start_micros),
            end: view::timestamp(row.start_micros + Granularity::Minute.micros()),
            identifier: row.identifier,
            tenant: row.tenant,
            route: row.route,
            requests: row.allowed.saturating_add(row.refused),
            allowed: row.allowed,
            refused: row.refused,
            limit: row.limit_value,
        }
    }
}

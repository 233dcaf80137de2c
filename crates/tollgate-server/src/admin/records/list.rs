//! Lists of records: a page as JSON, or all of them as CSV or NDJSON.

use std::future::Future;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{HeaderValue, StatusCode, header};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value as Json};
use tollgate_stores::sql::DatabaseError;
use tollgate_stores::sql::records::{Order, RecordFilter, RecordReader};

use super::filter::Filters;
use super::{query_error, reader, stream};
use crate::admin::audit::parse_time;
use crate::admin::dry_run::parse_flag;
use crate::admin::page;
use crate::http::error::{ApiError, Code};
use crate::http::{Call, Response, response};

/// A list of one kind of records.
pub(super) trait RecordList: Sized + Send + Sync + 'static {
    /// The name of the list in a response.
    const NAME: &'static str;
    /// The fields of a row, in the order of a CSV file.
    const COLUMNS: &'static [&'static str];
    type Row: Serialize + Send;
    /// What identifies the last row of a page.
    type Position: Serialize + DeserializeOwned + Send + Sync;

    /// The rows after a position, each with its own position.
    fn read(
        &self,
        reader: &RecordReader,
        after: Option<&Self::Position>,
        count_max: u32,
    ) -> impl Future<Output = Result<Rows<Self>, DatabaseError>> + Send;
}

/// Rows with their positions.
pub(super) type Rows<L> = Vec<(<L as RecordList>::Position, <L as RecordList>::Row)>;

/// The parameters that all lists share, as sent.
#[derive(Copy, Clone)]
pub(super) struct ListParameters<'a> {
    pub(super) limit: Option<&'a str>,
    pub(super) after: Option<&'a str>,
    pub(super) since: Option<&'a str>,
    pub(super) until: Option<&'a str>,
    pub(super) newest: Option<&'a str>,
    pub(super) format: Option<&'a str>,
}

/// The shared parameters of a query.
macro_rules! list_parameters {
    ($query:expr) => {
        $crate::admin::records::list::ListParameters {
            limit: $query.limit.as_deref(),
            after: $query.after.as_deref(),
            since: $query.since.as_deref(),
            until: $query.until.as_deref(),
            newest: $query.newest.as_deref(),
            format: $query.format.as_deref(),
        }
    };
}
pub(super) use list_parameters;

/// How a list is sent.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Json,
    Csv,
    Ndjson,
}

impl ListParameters<'_> {
    /// Adds the times to a filter, and returns the order.
    fn select(&self, call: &Call, filter: &mut RecordFilter) -> Result<Order, ApiError> {
        let now = call.app.now();
        let time = |field, text: Option<&str>| text.map(|text| parse_time(field, text, now)).transpose();
        filter.from_micros = time("since", self.since)?;
        filter.to_micros = time("until", self.until)?;
        let newest = parse_flag("newest", self.newest)?;
        Ok(if newest { Order::NewestFirst } else { Order::OldestFirst })
    }

    /// Responds with the list of what the filters select.
    pub(super) async fn respond<L: RecordList>(
        &self,
        call: &Call,
        filters: Filters<'_>,
        list: impl FnOnce(RecordFilter, Order) -> L,
    ) -> Result<Response, ApiError> {
        let mut filter = filters.parse(call)?;
        let order = self.select(call, &mut filter)?;
        let list = list(filter, order);
        let format = self.format(call)?;
        let limit = self.limit.map(|limit| page::parse_limit(Some(limit))).transpose()?;
        let after = self.after.map(parse_cursor::<L::Position>).transpose()?;
        let reader = reader(call).await?;
        if format != Format::Json {
            return stream::respond(reader, list, format, after, limit).await;
        }
        let limit = limit.map_or_else(|| page::parse_limit(None), Ok)?;
        let mut rows =
            list.read(&reader, after.as_ref(), limit + 1).await.map_err(|error| query_error(&error))?;
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let has_more = rows.len() > limit;
        rows.truncate(limit);
        let next = rows.last().filter(|_| has_more).map(|(position, _)| cursor(position));
        let rows = rows.into_iter().map(|(_, row)| serde_json::to_value(row).unwrap_or_default()).collect();
        let mut body = Map::new();
        body.insert(L::NAME.to_owned(), Json::Array(rows));
        body.insert("next".to_owned(), next.map_or(Json::Null, Json::String));
        Ok(response::json(StatusCode::OK, &body))
    }

    /// From `format`, or else from `Accept`.
    fn format(&self, call: &Call) -> Result<Format, ApiError> {
        match self.format {
            Some("json") => Ok(Format::Json),
            Some("csv") => Ok(Format::Csv),
            Some("ndjson") => Ok(Format::Ndjson),
            Some(_) => Err(ApiError::field(Code::InvalidInput, "format", "must be json, csv or ndjson")),
            None => Ok(accepted(call.parts.headers.get(header::ACCEPT))),
        }
    }
}

/// The first known format of an `Accept` header.
fn accepted(accept: Option<&HeaderValue>) -> Format {
    let accept = accept.and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    let types = accept.split(',').map(|part| part.split(';').next().unwrap_or_default().trim());
    let formats = types.filter_map(|name| match name.to_ascii_lowercase().as_str() {
        "text/csv" => Some(Format::Csv),
        "application/x-ndjson" | "application/ndjson" => Some(Format::Ndjson),
        "application/json" | "*/*" => Some(Format::Json),
        _ => None,
    });
    formats.into_iter().next().unwrap_or(Format::Json)
}

/// The cursor that continues after a position.
fn cursor(position: &impl Serialize) -> String {
    URL_SAFE_NO_PAD.encode(serde_json::to_string(position).unwrap_or_default())
}

fn parse_cursor<P: DeserializeOwned>(text: &str) -> Result<P, ApiError> {
    let bytes = URL_SAFE_NO_PAD.decode(text).ok();
    let position = bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok());
    position.ok_or_else(|| {
        ApiError::field(Code::InvalidInput, "after", "must be `next` of an earlier response of this list")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn format_is_negotiated() {
        for (accept, format) in [
            ("text/csv", Format::Csv),
            ("Text/CSV; header=present", Format::Csv),
            ("application/x-ndjson, */*", Format::Ndjson),
            ("application/json, text/csv", Format::Json),
            ("text/html, */*;q=0.8", Format::Json),
            ("", Format::Json),
        ] {
            assert_eq!(accepted(Some(&HeaderValue::from_static(accept))), format, "{accept}");
        }
        assert_eq!(accepted(None), Format::Json);
    }
}

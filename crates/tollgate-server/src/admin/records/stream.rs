//! Sends a whole list, page by page, as fast as the client reads.

use bytes::Bytes;
use http::{HeaderValue, header};
use tokio::sync::{Semaphore, mpsc};
use tollgate_stores::sql::records::RecordReader;

use super::csv;
use super::list::{Format, RecordList, Rows};
use super::query_error;
use crate::http::Response;
use crate::http::error::{ApiError, Code};
use crate::listener::{Payload, StreamAborted};

/// Rows that are read at a time.
const PAGE_ROWS: u32 = 1_000;

/// Bounds the queries of concurrent exports.
static EXPORTS: Semaphore = Semaphore::const_new(2);

/// Responds with all rows after a position, or with the first `limit`.
pub(super) async fn respond<L: RecordList>(
    reader: RecordReader,
    list: L,
    format: Format,
    after: Option<L::Position>,
    limit: Option<u32>,
) -> Result<Response, ApiError> {
    let busy = |_| ApiError::new(Code::ServiceUnavailable, "two exports of records are running; retry");
    let permit = EXPORTS.try_acquire().map_err(busy)?;
    let mut pages = Pages { reader, list, format, after, left: limit };
    // The first page before the response: a query that fails is an error, not an empty file.
    let mut first = String::new();
    if format == Format::Csv {
        csv::push_header(&mut first, L::COLUMNS);
    }
    let mut is_last = pages.read(&mut first).await?;
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        let _permit = permit;
        let mut text = first;
        loop {
            // Fails if the client is gone.
            if sender.send(Ok(Bytes::from(std::mem::take(&mut text)))).await.is_err() || is_last {
                return;
            }
            match pages.read(&mut text).await {
                Ok(ended) => is_last = ended,
                Err(error) => {
                    tracing::warn!(error = error.message(), "an export of records was aborted");
                    let _ = sender.send(Err(StreamAborted)).await;
                    return;
                }
            }
        }
    });
    Ok(stream_response::<L>(format, receiver))
}

fn stream_response<L: RecordList>(
    format: Format,
    receiver: mpsc::Receiver<Result<Bytes, StreamAborted>>,
) -> Response {
    let (media_type, end) = match format {
        Format::Csv => ("text/csv", "csv"),
        Format::Json | Format::Ndjson => ("application/x-ndjson", "ndjson"),
    };
    let mut response = Response::new(Payload::Stream(receiver));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
    if let Ok(name) = HeaderValue::try_from(format!("attachment; filename=\"{}.{end}\"", L::NAME)) {
        headers.insert(header::CONTENT_DISPOSITION, name);
    }
    response
}

/// The pages of a list.
struct Pages<L: RecordList> {
    reader: RecordReader,
    list: L,
    format: Format,
    after: Option<L::Position>,
    /// Rows that are still to be sent; `None` for all.
    left: Option<u32>,
}

impl<L: RecordList> Pages<L> {
    /// Appends the next page. Returns whether it is the last one.
    async fn read(&mut self, out: &mut String) -> Result<bool, ApiError> {
        let wanted = self.left.unwrap_or(PAGE_ROWS).min(PAGE_ROWS);
        let read = self.list.read(&self.reader, self.after.as_ref(), wanted).await;
        let rows: Rows<L> = read.map_err(|error| query_error(&error))?;
        let count = u32::try_from(rows.len()).unwrap_or(u32::MAX);
        for (position, row) in rows {
            let row = serde_json::to_value(row).unwrap_or_default();
            match self.format {
                Format::Csv => csv::push_row(out, L::COLUMNS, &row),
                Format::Json | Format::Ndjson => {
                    out.push_str(&row.to_string());
                    out.push('\n');
                }
            }
            self.after = Some(position);
        }
        self.left = self.left.map(|left| left.saturating_sub(count));
        Ok(count < wanted || self.left == Some(0))
    }
}

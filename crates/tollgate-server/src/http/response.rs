//! JSON responses.

use http::{HeaderMap, HeaderValue, StatusCode, header};
use serde::Serialize;
use tollgate::Timestamp;

use crate::http::Response;

/// Headers of a response to a check, including those that hyper adds.
const HEADERS_USUAL: usize = 12;

/// A JSON response.
pub(crate) fn json(status: StatusCode, body: &impl Serialize) -> Response {
    let mut bytes = Vec::with_capacity(256);
    if serde_json::to_writer(&mut bytes, body).is_err() {
        bytes.clear();
    }
    let mut response = Response::new(bytes.into());
    *response.status_mut() = status;
    // Sized for all headers, so that the map is allocated once.
    *response.headers_mut() = HeaderMap::with_capacity(HEADERS_USUAL);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// A response without a body.
pub(crate) fn empty(status: StatusCode) -> Response {
    let mut response = Response::default();
    *response.status_mut() = status;
    response
}

/// Formats an instant as RFC 3339 with whole seconds, `2026-11-15T12:00:00Z`.
pub(crate) fn rfc3339(at: Timestamp) -> String {
    let secs = i64::try_from(at.as_micros() / 1_000_000).unwrap_or(0);
    jiff::Timestamp::from_second(secs).map_or_else(|_| String::new(), |instant| instant.to_string())
}

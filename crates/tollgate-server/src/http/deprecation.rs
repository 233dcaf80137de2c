//! Routes that are going to be removed: `Deprecation` (RFC 9745), `Sunset` (RFC 8594) and a link to the replacement.

use http::{HeaderMap, HeaderName, HeaderValue, header};

/// When a route was deprecated, when it will be removed, and where its replacement is described.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Deprecated {
    /// In Unix seconds.
    pub(crate) since: i64,
    /// In Unix seconds. At least six months after `since`.
    pub(crate) sunset: i64,
    /// What to use instead: a path of `/docs` or a URL.
    pub(crate) see: &'static str,
}

/// The route that is deprecated in unit tests.
#[cfg(test)]
pub(crate) const FOR_TESTS: Deprecated =
    Deprecated { since: 1_795_000_000, sunset: 1_826_536_000, see: "/docs#healthz" };

impl Deprecated {
    /// Adds the headers to a response, whatever its status.
    pub(super) fn put_headers(&self, headers: &mut HeaderMap) {
        let sunset = jiff::Timestamp::from_second(self.sunset).ok();
        let sunset = sunset
            .and_then(|at| jiff::fmt::rfc2822::DateTimePrinter::new().timestamp_to_rfc9110_string(&at).ok());
        for (name, value) in [
            (HeaderName::from_static("deprecation"), Some(format!("@{}", self.since))),
            (HeaderName::from_static("sunset"), sunset),
            (header::LINK, Some(format!("<{}>; rel=\"deprecation\"", self.see))),
        ] {
            headers.extend(value.and_then(|value| Some((name, HeaderValue::try_from(value).ok()?))));
        }
    }
}

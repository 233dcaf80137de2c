//! One authenticated request, and how handlers read its body, query and path.

use std::borrow::Cow;
use std::future::{Future, poll_fn};
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, header};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use tollgate::Id;

use super::access_log::AccessEntry;
use super::error::{ApiError, Code};
use super::request_id::RequestId;
use super::{json, routes};
use crate::app::{App, Reloadable};
use crate::auth::Caller;
use crate::auth::api_keys::{KEY_INSTEAD_OF_ID, contains_key};
use crate::check::Checker;
use crate::check::error::CheckError;
use crate::check::parse::{bind_tenant, parse_id};
use crate::listener::ConnectionInfo;

/// A request whose caller is authenticated.
pub(crate) struct Call {
    pub(crate) app: Arc<App>,
    /// The reloadable settings in force when the request arrived.
    pub(crate) settings: arc_swap::Guard<Arc<Reloadable>>,
    pub(crate) parts: Parts,
    /// The path pattern of the route.
    pub(crate) path: &'static str,
    pub(crate) caller: Caller,
    #[allow(dead_code, reason = "for surfaces that must know the peer")]
    pub(crate) connection: Arc<ConnectionInfo>,
    /// The address that the request came from, by `identity.client_address`.
    pub(crate) address: IpAddr,
    pub(crate) request_id: RequestId,
    /// Present while the access log is on.
    pub(crate) access: Option<Arc<AccessEntry>>,
}

impl Call {
    /// A call by an anonymous caller.
    #[cfg(test)]
    pub(crate) fn for_tests(app: &Arc<App>, path: &'static str) -> Self {
        use std::net::SocketAddr;

        let (parts, ()) = http::Request::new(()).into_parts();
        let request_id = app.request_ids().of(&parts.headers);
        let peer = SocketAddr::from(([192, 0, 2, 1], 1));
        Call {
            app: Arc::clone(app),
            settings: app.live(),
            parts,
            path,
            caller: Caller::anonymous(),
            connection: Arc::new(ConnectionInfo::direct(peer)),
            address: peer.ip(),
            request_id,
            access: None,
        }
    }

    /// The tenant of what a request names, normalized: that of a caller that is bound to one, or else the named one.
    ///
    /// # Errors
    /// When the tenant is invalid, or the caller is bound to another one.
    pub(crate) fn tenant(&self, named: Option<&str>) -> Result<Option<String>, CheckError> {
        let rules = self.app.limiter().rules();
        let form = rules.normalization().ids.tenant;
        let named = parse_id("tenant", named)?;
        let tenant = match &self.caller.tenant {
            Some(bound_to) => Some(bind_tenant(bound_to, named.map(Id::as_str), form)?),
            None => named,
        };
        Ok(tenant.map(|tenant| form.normalize(tenant.as_str()).into_owned()))
    }

    /// The parameter `tenant` of the query.
    pub(crate) fn tenant_in_query(&self) -> Result<Option<String>, ApiError> {
        let query: Vec<(String, String)> = self.query()?;
        Ok(query.into_iter().find(|(name, _)| name == "tenant").map(|(_, tenant)| tenant))
    }

    /// Decides checks of this caller with the rules in force now.
    ///
    /// # Errors
    /// While the configured database was never read.
    pub(crate) fn checker(&self) -> Result<Checker<'_>, CheckError> {
        self.app.checker(&self.caller, &self.settings, Some(self.request_id.as_str()))
    }

    /// Reads a JSON body of at most `bytes_max` bytes within `server.body_timeout`.
    pub(crate) async fn json_body(&self, body: Incoming, bytes_max: usize) -> Result<Bytes, ApiError> {
        self.require_json()?;
        self.body(body, bytes_max).await
    }

    /// Like [`Call::json_body`], but an empty body needs no content type.
    pub(crate) async fn json_body_or_nothing(
        &self,
        body: Incoming,
        bytes_max: usize,
    ) -> Result<Bytes, ApiError> {
        let body = self.body(body, bytes_max).await?;
        if !body.is_empty() {
            self.require_json()?;
        }
        Ok(body)
    }

    /// Reads a body of any type.
    pub(crate) async fn body(&self, body: Incoming, bytes_max: usize) -> Result<Bytes, ApiError> {
        read_body(&self.parts.headers, body, bytes_max, self.app.body_timeout()).await
    }

    pub(crate) fn require_json(&self) -> Result<(), ApiError> {
        if self.has_content_type("application/json") {
            return Ok(());
        }
        Err(ApiError::new(
            Code::UnsupportedMediaType,
            "the body must be JSON: send Content-Type: application/json",
        ))
    }

    /// Whether the content type is `media_type`, whatever its parameters.
    pub(crate) fn has_content_type(&self, media_type: &str) -> bool {
        let kind =
            self.parts.headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
        let kind = kind.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
        kind.eq_ignore_ascii_case(media_type.as_bytes())
    }

    /// Parses the query strictly.
    pub(crate) fn query<T: serde::de::DeserializeOwned>(&self) -> Result<T, ApiError> {
        let query = self.parts.uri.query().unwrap_or_default();
        // The parser below replaces invalid UTF-8, which could turn one user's id into another's.
        if percent_encoding::percent_decode_str(query).decode_utf8().is_err() {
            return Err(ApiError::new(Code::InvalidInput, "the query must be UTF-8"));
        }
        let pairs: Result<Vec<(Cow<'_, str>, Cow<'_, str>)>, _> = serde_urlencoded::from_str(query);
        let is_misplaced =
            |name: &str, value: &str| !matches!(name, "api_key" | "endpoint") && contains_key(value);
        let misplaced = pairs.iter().flatten().find(|(name, value)| is_misplaced(name, value));
        if let Some((name, _)) = misplaced {
            return Err(ApiError::field(Code::InvalidInput, name.clone().into_owned(), KEY_INSTEAD_OF_ID));
        }
        serde_urlencoded::from_str(query).map_err(|error| json::located(".", &error.to_string()))
    }

    /// The decoded value of a path variable.
    pub(crate) fn path_param(&self, name: &'static str) -> Result<String, ApiError> {
        let sent = routes::path_variable(self.path, self.parts.uri.path(), name);
        let decoded = percent_encoding::percent_decode_str(sent).decode_utf8();
        let decoded = decoded.map_err(|_| ApiError::field(Code::InvalidInput, name, "must be UTF-8"))?;
        if name != "endpoint" && contains_key(&decoded) {
            return Err(ApiError::field(Code::InvalidInput, name, KEY_INSTEAD_OF_ID));
        }
        Ok(decoded.into_owned())
    }
}

/// Reads a body of at most `bytes_max` bytes that is not compressed, within a timeout.
pub(crate) async fn read_body(
    headers: &HeaderMap,
    body: Incoming,
    bytes_max: usize,
    timeout: Duration,
) -> Result<Bytes, ApiError> {
    require_identity_encoding(headers)?;
    let mut reading = pin!(read_whole(body, bytes_max));
    // Most bodies arrive with their headers and need no timer.
    let read = match poll_fn(|context| Poll::Ready(reading.as_mut().poll(context))).await {
        Poll::Ready(read) => Ok(read),
        Poll::Pending => tokio::time::timeout(timeout, reading).await,
    };
    read.map_err(|_| ApiError::new(Code::RequestTimeout, "the request body did not arrive in time"))?
}

/// Rejects compressed bodies.
fn require_identity_encoding(headers: &HeaderMap) -> Result<(), ApiError> {
    let mut codings = headers.get_all(header::CONTENT_ENCODING).iter();
    if codings.all(|coding| coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"identity")) {
        return Ok(());
    }
    Err(ApiError::new(
        Code::UnsupportedMediaType,
        "compressed bodies are not supported: send the body without Content-Encoding",
    ))
}

/// Collects a body. One that arrives in a single frame, as almost all do, is not copied.
async fn read_whole(mut body: Incoming, bytes_max: usize) -> Result<Bytes, ApiError> {
    let too_large = || {
        let message = format!("the request body must be at most {bytes_max} bytes");
        Err(ApiError::new(Code::PayloadTooLarge, message))
    };
    // Before the first poll, which would answer `Expect: 100-continue`: an announced excess is refused unsent.
    let announced = body.size_hint().lower();
    if announced > bytes_max as u64 {
        return too_large();
    }
    let (mut first, mut all) = (Bytes::new(), BytesMut::new());
    while let Some(frame) = body.frame().await {
        let frame =
            frame.map_err(|_| ApiError::new(Code::InvalidInput, "the request body could not be read"))?;
        let Ok(data) = frame.into_data() else { continue };
        if first.len().max(all.len()) + data.len() > bytes_max {
            return too_large();
        }
        if first.is_empty() {
            first = data;
            continue;
        }
        if all.is_empty() {
            // The announced size at once: a buffer that doubles could take twice as much.
            all.reserve(usize::try_from(announced).unwrap_or(0));
            all.extend_from_slice(&first);
        }
        all.extend_from_slice(&data);
    }
    Ok(if all.is_empty() { first } else { all.freeze() })
}

//! The REST surface: one table of routes, one way in and out for all of them.
//!
//! A route names its method, its path and what it asks of the caller; [`answer`] does for each what each needs:
//! request id, key, panic barrier, error envelope, metrics. A handler is parse, ask, render.

pub(crate) mod error;
mod health;
pub(crate) mod json;
mod openapi;
pub(crate) mod response;
pub(crate) mod routes;

use std::borrow::Cow;
use std::future::{Future, poll_fn};
use std::net::{IpAddr, SocketAddr};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Incoming};

use self::routes::{HandlerFuture, Route, routes_of};
use crate::app::App;
use crate::auth::{Access, Caller};
use crate::http::error::{ApiError, Code};

/// An answer, whole.
pub(crate) type Response = http::Response<Full<Bytes>>;

/// A check with everything in it stays far below this.
pub(crate) const CHECK_BYTES_MAX: usize = 64 << 10;
/// A batch of a thousand checks.
pub(crate) const BATCH_BYTES_MAX: usize = 1 << 20;
/// An identifier from the caller that is longer is replaced.
const REQUEST_ID_BYTES_MAX: usize = 128;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// A request that was let in.
pub(crate) struct Call {
    pub(crate) app: Arc<App>,
    pub(crate) parts: Parts,
    /// The form of its path.
    pub(crate) path: &'static str,
    pub(crate) caller: Caller,
    pub(crate) peer: IpAddr,
    pub(crate) request_id: RequestId,
}

/// Answers one request: the way of every call.
pub(crate) fn answer(app: &Arc<App>, request: http::Request<Incoming>, peer: SocketAddr) -> ResponseFuture {
    let request_id = RequestId::of(app, request.headers());
    let routes = routes_of(request.uri().path());
    let route = routes.iter().copied().find(|route| route.method.is(request.method()));
    let mut changed_by = None;
    let unrouted =
        |error: ApiError| Stage::Refused(charge_unrouted(app, routes, peer.ip()).err().unwrap_or(error));
    let stage = match route {
        _ if !names_its_host(&request) => unrouted(ApiError::field(
            Code::InvalidInput,
            "host",
            "there must be one Host header: proxies go by it, and may go by another than we",
        )),
        Some(route) => match admit(app, route, request.headers(), peer.ip()) {
            Ok(caller) => {
                let (parts, body) = request.into_parts();
                if route.changes_something() && !is_dry_run(&parts) {
                    changed_by = Some(caller.name.clone());
                }
                let (path, request_id) = (route.path, request_id.clone());
                let call = Call { app: Arc::clone(app), parts, path, caller, peer: peer.ip(), request_id };
                Stage::HandlerFuture((route.handler)(call, body))
            }
            Err(error) => Stage::Refused(error),
        },
        None if routes.is_empty() => {
            unrouted(ApiError::new(Code::NotFound, "there is nothing here; see /docs"))
        }
        None => {
            let allow: Vec<&str> = routes.iter().map(|route| route.method.allow()).collect();
            unrouted(ApiError::method_not_allowed(allow.join(", ")))
        }
    };
    ResponseFuture { app: Arc::clone(app), route, request_id, changed_by, stage: Some(stage) }
}

/// HTTP/1.1 asks for one Host header, HTTP/1.0 does not ask for one; HTTP/2 has a field for it that the transport looks at.
fn names_its_host<B>(request: &http::Request<B>) -> bool {
    let mut hosts = request.headers().get_all(header::HOST).iter();
    match (hosts.next(), hosts.next()) {
        (Some(_), None) => true,
        (None, _) => request.version() != http::Version::HTTP_11,
        (Some(_), Some(_)) => false,
    }
}

/// Whether the caller wants to know what a change would do: the log must not say that it was made.
///
/// Read as the handlers read it; what they refuse is no change either.
fn is_dry_run(parts: &Parts) -> bool {
    let query: Result<Vec<(Cow<'_, str>, Cow<'_, str>)>, _> =
        serde_urlencoded::from_str(parts.uri.query().unwrap_or_default());
    query.is_ok_and(|query| query.iter().any(|(name, value)| name == "dry_run" && value == "true"))
}

/// The caller, if the route is for it and it has not asked too much already.
fn admit(app: &App, route: &Route, headers: &HeaderMap, peer: IpAddr) -> Result<Caller, ApiError> {
    let live = app.live();
    let caller = live.authenticator.authorize(headers, route.access, peer, app.auth_parts())?;
    if route.path.starts_with("/v1/admin/") {
        caller.require_unbound()?;
    }
    // Before a byte of the body is read. Probes and metrics must not fail because somebody asks too much.
    if let Some(callers) = &live.callers
        && route.access != Access::Anyone
    {
        callers.charge(&caller, peer, u32::from(!route.by_check), app.now())?;
    }
    Ok(caller)
}

/// What leads nowhere counts, too, but for the service's own routes. It counts for the address: no key is looked at.
fn charge_unrouted(app: &App, routes: &[&Route], peer: IpAddr) -> Result<(), ApiError> {
    let own = routes.iter().any(|route| route.access == Access::Anyone);
    match &app.live().callers {
        Some(callers) if !own => callers.charge(&Caller::anonymous(), peer, 1, app.now()),
        _ => Ok(()),
    }
}

/// An answer in the making. Whatever happens in the handler, it becomes one.
pub(crate) struct ResponseFuture {
    app: Arc<App>,
    route: Option<&'static Route>,
    request_id: RequestId,
    /// Who asks for a change; nothing if nothing is to be changed.
    changed_by: Option<Box<str>>,
    /// Taken when it is done.
    stage: Option<Stage>,
}

enum Stage {
    HandlerFuture(HandlerFuture),
    Refused(ApiError),
}

impl Future for ResponseFuture {
    type Output = Response;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Response> {
        let outcome = match &mut self.stage {
            Some(Stage::HandlerFuture(handling)) => ready!(poll_unpanicking(handling, context)),
            _ => match self.stage.take() {
                Some(Stage::Refused(error)) => Err(error),
                _ => Err(failed()),
            },
        };
        let mut code = None;
        let response = outcome.unwrap_or_else(|error| {
            if let Some(refusal) = error.key_refusal() {
                self.app.metrics().count_refused_key(refusal);
            }
            if error.code() == Code::CallerLimited {
                self.app.metrics().count_refused_caller();
            }
            code = Some(error.code());
            error.into_response(self.request_id.as_str())
        });
        self.tell(response.status(), code);
        Poll::Ready(self.finish(response))
    }
}

/// A panic in a handler is a defect of ours: it is logged, and the caller gets an answer all the same.
fn poll_unpanicking(
    handling: &mut HandlerFuture,
    context: &mut Context<'_>,
) -> Poll<Result<Response, ApiError>> {
    let polled = catch_unwind(AssertUnwindSafe(|| handling.as_mut().poll(context)));
    polled.unwrap_or_else(|_| {
        tracing::error!("a handler panicked");
        Poll::Ready(Err(failed()))
    })
}

pub(crate) fn failed() -> ApiError {
    ApiError::new(Code::InternalError, "the server failed; the request id is in its log")
}

impl ResponseFuture {
    /// The log knows a request by the id that its caller was told. Of the request itself it is told the route alone: paths and
    /// bodies may hold keys. A check costs a look at the level that is logged.
    pub(crate) fn tell(&self, status: StatusCode, code: Option<Code>) {
        let request_id = self.request_id.as_str();
        let (method, route) = self.route.map_or(("", "other"), |route| (route.method.as_str(), route.path));
        let code = code.map(tracing::field::display);
        let outage = status == StatusCode::SERVICE_UNAVAILABLE;
        let status = status.as_u16();
        match &self.changed_by {
            // Of an outage there is one line when it begins; one for each request would hide it.
            _ if status >= 500 && !outage => {
                tracing::error!(request_id, method, route, status, code, "not served");
            }
            Some(by) if status < 300 => tracing::info!(request_id, method, route, status, %by, "change made"),
            _ => tracing::debug!(request_id, method, route, status, code, "answered"),
        }
    }

    /// What every answer carries.
    pub(crate) fn finish(&self, mut response: Response) -> Response {
        let path = self.route.map_or("other", |route| route.path);
        self.app.metrics().count_response(path, response.status().as_u16());
        let headers = response.headers_mut();
        // Every answer is of its moment, and none is meant to stand inside the page of another.
        headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
        let framed_by_nobody = HeaderValue::from_static("frame-ancestors 'none'");
        headers.entry(header::CONTENT_SECURITY_POLICY).or_insert(framed_by_nobody);
        if let Some(deprecated) = self.route.and_then(|route| route.deprecated) {
            headers.insert("deprecation", HeaderValue::from_static(deprecated.since));
            headers.insert("sunset", HeaderValue::from_static(deprecated.sunset));
        }
        headers.insert(REQUEST_ID, self.request_id.0.clone());
        headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        response
    }
}

/// The identifier of a request: the caller's, if it is one we can repeat, else one of ours.
#[derive(Clone)]
pub(crate) struct RequestId(HeaderValue);

impl RequestId {
    pub(crate) fn of(app: &App, headers: &HeaderMap) -> Self {
        let usable = |value: &&HeaderValue| {
            let bytes = value.as_bytes();
            !bytes.is_empty() && bytes.len() <= REQUEST_ID_BYTES_MAX && bytes.iter().all(u8::is_ascii_graphic)
        };
        let given = headers.get(REQUEST_ID).filter(usable).cloned();
        RequestId(given.unwrap_or_else(|| {
            let text = hexadecimal(app.request_ids.make());
            HeaderValue::from_bytes(&text).unwrap_or_else(|_| HeaderValue::from_static("req_0"))
        }))
    }

    pub(crate) fn as_str(&self) -> &str {
        self.0.to_str().unwrap_or("")
    }
}

/// `req_` and the number in sixteen digits.
fn hexadecimal(number: u64) -> [u8; 20] {
    let mut text = *b"req_0000000000000000";
    for (digit, shift) in text[4..].iter_mut().zip((0..16).rev()) {
        *digit = b"0123456789abcdef"[usize::try_from(number >> (4 * shift) & 15).unwrap_or(0)];
    }
    text
}

impl Call {
    /// The body, if it is JSON, not too large and in time.
    pub(crate) async fn json_body(&self, body: Incoming, bytes_max: usize) -> Result<Bytes, ApiError> {
        self.require_json()?;
        self.body(body, bytes_max).await
    }

    /// The same, or nothing at all.
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

    /// The body, whatever it is, if it is not too large and in time.
    pub(crate) async fn body(&self, body: Incoming, bytes_max: usize) -> Result<Bytes, ApiError> {
        self.require_plain()?;
        let mut reading = pin!(read_whole(body, bytes_max));
        // Most bodies came with their heads: no timer is set for them.
        let read = match poll_fn(|context| Poll::Ready(reading.as_mut().poll(context))).await {
            Poll::Ready(read) => Ok(read),
            Poll::Pending => tokio::time::timeout(self.app.body_timeout, reading).await,
        };
        read.map_err(|_| ApiError::new(Code::RequestTimeout, "the body did not arrive in time"))?
    }

    pub(crate) fn require_json(&self) -> Result<(), ApiError> {
        if self.is_of_type("application/json") {
            return Ok(());
        }
        Err(ApiError::new(
            Code::UnsupportedMediaType,
            "the body must be JSON: send Content-Type: application/json",
        ))
    }

    /// A body that is read as it is must not be one that has to be unpacked first.
    pub(crate) fn require_plain(&self) -> Result<(), ApiError> {
        let mut codings = self.parts.headers.get_all(header::CONTENT_ENCODING).iter();
        if codings.all(|coding| coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"identity")) {
            return Ok(());
        }
        Err(ApiError::new(
            Code::UnsupportedMediaType,
            "the body must not be compressed: send it without Content-Encoding",
        ))
    }

    /// Whether the body says that it is of this type.
    pub(crate) fn is_of_type(&self, media_type: &str) -> bool {
        let kind =
            self.parts.headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
        let kind = kind.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
        kind.eq_ignore_ascii_case(media_type.as_bytes())
    }

    /// The values of the query, parsed strictly.
    pub(crate) fn query<T: serde::de::DeserializeOwned>(&self) -> Result<T, ApiError> {
        let query = self.parts.uri.query().unwrap_or_default();
        // The parser below replaces what is no text; that could be another user's name.
        if percent_encoding::percent_decode_str(query).decode_utf8().is_err() {
            return Err(ApiError::new(Code::InvalidInput, "the query must be UTF-8"));
        }
        serde_urlencoded::from_str(query).map_err(|error| json::located(".", &error.to_string()))
    }

    /// The piece of the path that a variable of the route stands for.
    pub(crate) fn path_param(&self, name: &'static str) -> Result<String, ApiError> {
        let sent = routes::variable(self.path, self.parts.uri.path(), name);
        let decoded = percent_encoding::percent_decode_str(sent).decode_utf8();
        decoded.map(Into::into).map_err(|_| ApiError::field(Code::InvalidInput, name, "must be UTF-8"))
    }
}

/// The bytes of a body. One that came in one piece, as almost all do, is not copied.
async fn read_whole(mut body: Incoming, bytes_max: usize) -> Result<Bytes, ApiError> {
    let too_large = || {
        let message = format!("the body must be at most {bytes_max} bytes");
        Err(ApiError::new(Code::PayloadTooLarge, message))
    };
    // Whoever says so beforehand is not asked to send it (`Expect: 100-continue`): that is done by the first look at it.
    let announced = body.size_hint().lower();
    if announced > bytes_max as u64 {
        return too_large();
    }
    let (mut first, mut all) = (Bytes::new(), BytesMut::new());
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| ApiError::new(Code::InvalidInput, "the body could not be read"))?;
        let Ok(data) = frame.into_data() else { continue };
        if first.len().max(all.len()) + data.len() > bytes_max {
            return too_large();
        }
        if first.is_empty() {
            first = data;
            continue;
        }
        if all.is_empty() {
            // Not more than the body needs: a buffer that doubles would take up to twice as much.
            all.reserve(usize::try_from(announced).unwrap_or(0));
            all.extend_from_slice(&first);
        }
        all.extend_from_slice(&data);
    }
    Ok(if all.is_empty() { first } else { all.freeze() })
}

#[cfg(test)]
mod tests {
    use tollgate::{MemoryCounters, Seed};

    use super::routes::{Deprecated, ROUTES, route};
    use super::*;
    use crate::app::Secrets;
    use crate::auth::api_keys::KeySecret;
    use crate::config::settings::{Flags, Settings};
    use crate::counters::Counters;
    use crate::runtime::clock::Clock;

    pub(crate) fn app() -> Arc<App> {
        let settings = Settings::load(&Flags::default(), std::iter::empty()).unwrap();
        let counters = Counters::Memory(MemoryCounters::default());
        let secrets = Secrets { admin_key: "key", key_secret: KeySecret::new("secret") };
        App::new(settings, counters, Seed([1; 16]), secrets, Clock::start(), Arc::default())
    }

    pub(crate) async fn answered(route: &'static Route, handling: HandlerFuture) -> Response {
        let app = app();
        let request_id = RequestId::of(&app, &HeaderMap::new());
        let stage = Some(Stage::HandlerFuture(handling));
        ResponseFuture { app, route: Some(route), request_id, changed_by: None, stage }.await
    }

    #[tokio::test]
    pub(crate) async fn a_deprecated_route_says_since_when_and_until_when() {
        static OLD: Route = Route {
            deprecated: Some(Deprecated { since: "@1795000000", sunset: "Tue, 16 Nov 2027 00:00:00 GMT" }),
            ..route!(Get "/old", Access::Anyone, health::healthz)
        };
        static CURRENT: Route = route!(Get "/current", Access::Anyone, health::healthz);
        let ok = || Box::pin(async { Ok(Response::default()) });
        let response = answered(&OLD, ok()).await;
        assert_eq!(response.headers()["deprecation"], "@1795000000");
        assert_eq!(response.headers()["sunset"], "Tue, 16 Nov 2027 00:00:00 GMT");
        assert!(!answered(&CURRENT, ok()).await.headers().contains_key("deprecation"));
    }

    #[tokio::test]
    pub(crate) async fn t74_a_panic_in_a_handler_is_an_answer_with_a_request_id() {
        let response = answered(&ROUTES[0], Box::pin(async { panic!("a defect") })).await;
        assert_eq!(response.status(), 500);
        assert!(response.headers().contains_key("x-request-id"));
    }
}

//! The REST surface: one table of routes, one way in and out for all of them.
//!
//! A route names its method, its path and what it asks of the caller; [`dispatch`] does for each what each needs:
//! request id, key, panic barrier, error envelope, metrics. A handler is parse, ask, render.

mod admin;
mod batch;
mod check;
mod config;
mod explain;
mod openapi;
mod reset;
mod service;
mod status;

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use axum::routing::{MethodFilter, MethodRouter};
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use http_body_util::{BodyExt, Limited};

use crate::app::App;
use crate::auth::{Access, Caller};
use crate::error::{ApiError, Code};
use crate::scope::Scope;

/// A check with everything in it stays far below this.
const CHECK_BYTES_MAX: usize = 64 << 10;
/// A batch of a thousand checks.
const BATCH_BYTES_MAX: usize = 1 << 20;
/// An identifier from the caller that is longer is replaced.
const REQUEST_ID_BYTES_MAX: usize = 128;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// One route of version 1.
pub(crate) struct Route {
    method: Verb,
    path: &'static str,
    access: Access,
    deprecated: Option<Deprecated>,
    handler: Handler,
}

/// A route on its way out: answered as ever, with `Deprecation` and `Sunset` headers.
#[derive(Copy, Clone)]
struct Deprecated {
    /// Since when, as a structured-field date (`@` and Unix seconds).
    since: &'static str,
    /// When it goes, as an HTTP date.
    sunset: &'static str,
}

#[derive(Copy, Clone, PartialEq, Eq)]
enum Verb {
    Get,
    Post,
    Put,
    Delete,
}

type Answering = Pin<Box<dyn Future<Output = Result<Response, ApiError>> + Send>>;
type Handler = fn(Call, Body) -> Answering;

/// A request that was let in.
pub(crate) struct Call {
    app: Arc<App>,
    parts: Parts,
    caller: Caller,
    request_id: RequestId,
}

/// Wraps an async handler as a plain function; one that takes no body is marked so.
macro_rules! route {
    ($method:ident $path:literal, $access:expr, $handler:path) => {
        route!(@ $method, $path, $access, |call, _| Box::pin($handler(call)))
    };
    ($method:ident $path:literal, $access:expr, $handler:path, body) => {
        route!(@ $method, $path, $access, |call, body| Box::pin($handler(call, body)))
    };
    (@ $method:ident, $path:literal, $access:expr, $handler:expr) => {
        Route { method: Verb::$method, path: $path, access: $access, deprecated: None, handler: $handler }
    };
}

/// Every route. The alias under `/api` is made from the same list.
pub(crate) static ROUTES: &[Route] = &[
    route!(Post "/v1/rate-limit/check", Access::OpenScope(Scope::Check), check::check, body),
    route!(Post "/v1/rate-limit/batch-check", Access::OpenScope(Scope::Check), batch::batch_check, body),
    route!(Get "/v1/rate-limit/status", Access::OpenScope(Scope::Read), status::status),
    route!(Get "/v1/rate-limit/status/{user_id}/{*endpoint}", Access::OpenScope(Scope::Read), status::status_by_path),
    route!(Post "/v1/rate-limit/explain", Access::OpenScope(Scope::Read), explain::explain, body),
    route!(Get "/v1/rate-limit/config", Access::Keyed(Scope::Read), config::read),
    route!(Put "/v1/rate-limit/config", Access::Keyed(Scope::Config), config::write, body),
    route!(Delete "/v1/rate-limit/config", Access::Keyed(Scope::Config), config::delete),
    route!(Post "/v1/rate-limit/reset", Access::Keyed(Scope::Reset), reset::reset, body),
    route!(Post "/v1/admin/reload", Access::Keyed(Scope::Admin), admin::reload),
    route!(Get "/v1/admin/rules", Access::Keyed(Scope::Admin), admin::rules),
    route!(Get "/v1/admin/penalties", Access::Keyed(Scope::Admin), admin::penalties),
    route!(Delete "/v1/admin/penalties/{client}", Access::Keyed(Scope::Admin), admin::pardon),
    route!(Get "/healthz", Access::Anyone, service::healthz),
    route!(Get "/readyz", Access::Anyone, service::readyz),
    route!(Get "/metrics", Access::Anyone, service::metrics),
    route!(Get "/openapi.json", Access::Anyone, service::openapi),
    route!(Get "/docs", Access::Anyone, service::docs),
    route!(Get "/docs/docs.js", Access::Anyone, service::docs_script),
    route!(Get "/docs/docs.css", Access::Anyone, service::docs_style),
    route!(Get "/", Access::Anyone, service::index),
];

/// The surface as a router.
pub(crate) fn router(app: Arc<App>) -> Router {
    let mut router = Router::new();
    for path in paths() {
        router = router.route(path, methods_of(path));
        if path.starts_with("/v1/") {
            router = router.route(&format!("/api{path}"), methods_of(path));
        }
    }
    router.fallback(not_found).with_state(app)
}

fn paths() -> Vec<&'static str> {
    let mut paths: Vec<&str> = ROUTES.iter().map(|route| route.path).collect();
    paths.dedup();
    paths
}

/// The routes of one path; any other method is told which there are.
fn methods_of(path: &'static str) -> MethodRouter<Arc<App>> {
    let mut methods = MethodRouter::new();
    let mut allow = Vec::new();
    for route in ROUTES.iter().filter(|route| route.path == path) {
        let (filter, names) = match route.method {
            Verb::Get => (MethodFilter::GET, "GET, HEAD"),
            Verb::Post => (MethodFilter::POST, "POST"),
            Verb::Put => (MethodFilter::PUT, "PUT"),
            Verb::Delete => (MethodFilter::DELETE, "DELETE"),
        };
        allow.push(names);
        methods = methods.on(filter, move |State(app), request| dispatch(app, route, request));
    }
    // Made once per path at start-up, and kept for good.
    let allow: &'static str = Box::leak(allow.join(", ").into_boxed_str());
    methods.fallback(move |State(app): State<Arc<App>>, request: http::Request<Body>| async move {
        refuse(&app, request.headers(), ApiError::method_not_allowed(allow))
    })
}

async fn not_found(State(app): State<Arc<App>>, request: http::Request<Body>) -> Response {
    refuse(&app, request.headers(), ApiError::new(Code::NotFound, "there is nothing here; see /docs"))
}

fn refuse(app: &App, headers: &HeaderMap, error: ApiError) -> Response {
    let request_id = RequestId::of(app, headers);
    let mut response = error.into_response(request_id.as_str());
    finish(app, "other", &request_id, &mut response);
    response
}

/// The way of every call: who, whether, what, and whatever happens an answer.
async fn dispatch(app: Arc<App>, route: &'static Route, request: http::Request<Body>) -> Response {
    let request_id = RequestId::of(&app, request.headers());
    let admitted = app.live().gate.admit(request.headers(), route.access);
    let outcome = match admitted {
        Ok(caller) => {
            let (parts, body) = request.into_parts();
            let call = Call { app: Arc::clone(&app), parts, caller, request_id: request_id.clone() };
            catch_panic((route.handler)(call, body)).await
        }
        Err(error) => Err(error),
    };
    let mut response = outcome.unwrap_or_else(|error| error.into_response(request_id.as_str()));
    if let Some(deprecated) = route.deprecated {
        let headers = response.headers_mut();
        headers.insert("deprecation", HeaderValue::from_static(deprecated.since));
        headers.insert("sunset", HeaderValue::from_static(deprecated.sunset));
    }
    finish(&app, route.path, &request_id, &mut response);
    response
}

fn finish(app: &App, route: &'static str, request_id: &RequestId, response: &mut Response) {
    app.metrics().count_response(route, response.status().as_u16());
    let headers = response.headers_mut();
    headers.insert(REQUEST_ID, request_id.0.clone());
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
}

/// A panic in a handler is a defect of ours: it is logged, and the caller gets an answer all the same.
async fn catch_panic(answering: Answering) -> Result<Response, ApiError> {
    let mut answering = pin!(answering);
    std::future::poll_fn(|context| {
        let polled = catch_unwind(AssertUnwindSafe(|| answering.as_mut().poll(context)));
        polled.unwrap_or_else(|_| {
            tracing::error!("a handler panicked");
            Poll::Ready(Err(ApiError::new(
                Code::InternalError,
                "the server failed; the request id is in its log",
            )))
        })
    })
    .await
}

/// The identifier of a request: the caller's, if it is one we can repeat, else one of ours.
#[derive(Clone)]
pub(crate) struct RequestId(HeaderValue);

impl RequestId {
    fn of(app: &App, headers: &HeaderMap) -> Self {
        let usable = |value: &&HeaderValue| {
            let bytes = value.as_bytes();
            !bytes.is_empty() && bytes.len() <= REQUEST_ID_BYTES_MAX && bytes.iter().all(u8::is_ascii_graphic)
        };
        let given = headers.get(REQUEST_ID).filter(usable).cloned();
        RequestId(given.unwrap_or_else(|| {
            let text = format!("req_{:016x}", app.request_ids.make());
            HeaderValue::from_str(&text).unwrap_or_else(|_| HeaderValue::from_static("req_0"))
        }))
    }

    pub(crate) fn as_str(&self) -> &str {
        self.0.to_str().unwrap_or("")
    }
}

impl Call {
    /// The body, if it is JSON, not too large and in time.
    async fn json_body(&self, body: Body, bytes_max: usize) -> Result<Bytes, ApiError> {
        self.require_json()?;
        let too_large =
            || ApiError::new(Code::PayloadTooLarge, format!("the body must be at most {bytes_max} bytes"));
        let body = Limited::new(body, bytes_max);
        match tokio::time::timeout(self.app.body_timeout, body.collect()).await {
            Ok(Ok(collected)) => Ok(collected.to_bytes()),
            Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => Err(too_large()),
            Ok(Err(_)) => Err(ApiError::new(Code::InvalidInput, "the body could not be read")),
            Err(_) => Err(ApiError::new(Code::RequestTimeout, "the body did not arrive in time")),
        }
    }

    fn require_json(&self) -> Result<(), ApiError> {
        let kind =
            self.parts.headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
        let kind = kind.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
        if kind.eq_ignore_ascii_case(b"application/json") {
            return Ok(());
        }
        Err(ApiError::new(
            Code::UnsupportedMediaType,
            "the body must be JSON: send Content-Type: application/json",
        ))
    }

    /// The values of the query, parsed strictly.
    fn query<T: serde::de::DeserializeOwned>(&self) -> Result<T, ApiError> {
        let query = axum::extract::Query::<T>::try_from_uri(&self.parts.uri);
        query.map(|query| query.0).map_err(|error| ApiError::new(Code::InvalidInput, error.body_text()))
    }

    /// The path behind a prefix, whichever of the two spellings of the prefix was used.
    fn path_behind(&self, prefix: &str) -> &str {
        let path = self.parts.uri.path();
        let path = path.strip_prefix("/api").unwrap_or(path);
        path.strip_prefix(prefix).unwrap_or_default()
    }
}

/// Decodes one piece of a path.
fn decode(field: &'static str, piece: &str) -> Result<String, ApiError> {
    let decoded = percent_encoding::percent_decode_str(piece).decode_utf8();
    decoded.map(Into::into).map_err(|_| ApiError::invalid(field, "must be UTF-8"))
}

#[cfg(test)]
mod tests {
    use tollgate::{MemoryCounters, Seed};

    use super::*;
    use crate::clock::Clock;
    use crate::settings::{Flags, Settings};

    fn app() -> Arc<App> {
        let settings = Settings::load(&Flags::default(), std::iter::empty()).unwrap();
        App::new(settings, MemoryCounters::default(), Seed([1; 16]), "key", Clock::start(), Arc::default())
    }

    async fn answer(route: &'static Route) -> Response {
        dispatch(app(), route, http::Request::new(Body::empty())).await
    }

    async fn panics(_: Call) -> Result<Response, ApiError> {
        panic!("a defect");
    }

    #[tokio::test]
    async fn a_deprecated_route_says_since_when_and_until_when() {
        static OLD: Route = Route {
            deprecated: Some(Deprecated { since: "@1795000000", sunset: "Tue, 16 Nov 2027 00:00:00 GMT" }),
            ..route!(Get "/old", Access::Anyone, service::healthz)
        };
        let response = answer(&OLD).await;
        assert_eq!(response.headers()["deprecation"], "@1795000000");
        assert_eq!(response.headers()["sunset"], "Tue, 16 Nov 2027 00:00:00 GMT");
        static CURRENT: Route = route!(Get "/current", Access::Anyone, service::healthz);
        assert!(!answer(&CURRENT).await.headers().contains_key("deprecation"));
    }

    #[tokio::test]
    async fn t74_a_panic_in_a_handler_is_an_answer_with_a_request_id() {
        static BROKEN: Route = route!(Get "/broken", Access::Anyone, panics);
        let response = answer(&BROKEN).await;
        assert_eq!(response.status(), 500);
        assert!(response.headers().contains_key("x-request-id"));
    }

    #[test]
    fn every_route_but_those_of_the_service_itself_asks_for_a_scope() {
        for route in ROUTES {
            let open = matches!(route.access, Access::Anyone);
            assert_eq!(open, !route.path.starts_with("/v1/"), "{}", route.path);
        }
    }
}

//! Health checks, metrics and the API documentation.

use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use http_body_util::Full;
use serde::Serialize;
use utoipa::ToSchema;

use super::{Call, Response, openapi as description};
use crate::config::sync::Source;
use crate::counters::StoreState;
use crate::http::error::ApiError;
use crate::http::response;

/// Pages load only what this server serves.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

/// State of this node.
#[derive(Default, Serialize, ToSchema)]
pub(crate) struct HealthBody {
    /// `ok`, `ready`, `degraded` (serves, but an error needs attention), `misconfigured` (cannot serve until the error is
    /// fixed), `starting` (loading the configuration) or `draining` (shutting down).
    status: &'static str,
    /// Why the settings file could not be applied.
    #[serde(skip_serializing_if = "Option::is_none")]
    config_error: Option<String>,
    /// Error of the counter store.
    #[serde(skip_serializing_if = "Option::is_none")]
    store_error: Option<String>,
    /// Error of the database or its contents, and which configuration is in force instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    database_error: Option<String>,
    /// Error of the data directory. Decisions do not depend on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    data_dir_error: Option<String>,
}

/// Liveness: 200 while the process serves requests.
#[utoipa::path(get, path = "/healthz", responses((status = 200, description = "The process is alive.", body = HealthBody)))]
pub(crate) async fn healthz(_: Call) -> Result<Response, ApiError> {
    Ok(response::json(StatusCode::OK, &HealthBody { status: "ok", ..HealthBody::default() }))
}

/// Readiness: whether this node should receive requests.
#[utoipa::path(get, path = "/readyz", responses(
    (status = 200, description = "Ready. With `degraded`, an error field says what needs attention.", body = HealthBody),
    (status = 503, description = "Draining, starting, rejected by the counter store, or `auth.key_secret` differs from that of the other nodes.", body = HealthBody),
))]
pub(crate) async fn readyz(call: Call) -> Result<Response, ApiError> {
    if call.app.is_draining() {
        let body = HealthBody { status: "draining", ..HealthBody::default() };
        return Ok(response::json(StatusCode::SERVICE_UNAVAILABLE, &body));
    }
    // Not a reason to be unready: an invalid settings file (the previous one is in force), unreachable counters (all
    // nodes would be removed at once, though all can decide with their fallback), a full disk.
    let config_error = call.app.reload().and_then(|handle| handle.status().last_error);
    let store = call.app.counters().state();
    let store_error = store.trouble();
    let config = call.app.config_sync().state();
    let database_error = config.trouble();
    let data_dir_error = call.app.persistence_status().trouble();
    let is_fine = config_error.is_none() && database_error.is_none() && data_dir_error.is_none();
    let (code, status) = match store {
        StoreState::Refused(_) => (StatusCode::SERVICE_UNAVAILABLE, "misconfigured"),
        // Every client with an API key would be refused.
        _ if config.secret_differs => (StatusCode::SERVICE_UNAVAILABLE, "misconfigured"),
        _ if config.source == Source::File && config.is_loading => {
            (StatusCode::SERVICE_UNAVAILABLE, "starting")
        }
        StoreState::Reached if is_fine => (StatusCode::OK, "ready"),
        _ => (StatusCode::OK, "degraded"),
    };
    Ok(response::json(
        code,
        &HealthBody { status, config_error, store_error, database_error, data_dir_error },
    ))
}

/// Metrics in OpenMetrics text format.
#[utoipa::path(get, path = "/metrics", responses((
    status = 200, description = "OpenMetrics text.",
    content((String = "application/openmetrics-text; version=1.0.0; charset=utf-8")),
)))]
pub(crate) async fn metrics(call: Call) -> Result<Response, ApiError> {
    Ok(text("application/openmetrics-text; version=1.0.0; charset=utf-8", call.app.metrics_text()))
}

/// This OpenAPI document.
#[utoipa::path(get, path = "/openapi.json", responses((status = 200, description = "OpenAPI 3.1.", body = Object)))]
pub(crate) async fn openapi(_: Call) -> Result<Response, ApiError> {
    Ok(text("application/json", description::json()))
}

/// The documentation page. It loads nothing from other hosts.
pub(crate) async fn docs(_: Call) -> Result<Response, ApiError> {
    Ok(text("text/html; charset=utf-8", include_str!("docs/index.html")))
}

pub(crate) async fn docs_script(_: Call) -> Result<Response, ApiError> {
    Ok(text("text/javascript; charset=utf-8", include_str!("docs/docs.js")))
}

pub(crate) async fn docs_style(_: Call) -> Result<Response, ApiError> {
    Ok(text("text/css; charset=utf-8", include_str!("docs/docs.css")))
}

/// Redirects `/` and `/docs/` to `/docs`.
pub(crate) async fn index(_: Call) -> Result<Response, ApiError> {
    let mut response = Response::default();
    *response.status_mut() = StatusCode::SEE_OTHER;
    response.headers_mut().insert(header::LOCATION, HeaderValue::from_static("/docs"));
    Ok(response)
}

fn text(kind: &'static str, text: impl Into<Bytes>) -> Response {
    let mut response = Response::new(Full::new(text.into()));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

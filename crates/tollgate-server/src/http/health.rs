//! Health, metrics and documentation: what operators and machines ask of the service itself.

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

/// Pages may load what this server serves, and nothing else.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

/// How the service is.
#[derive(Default, Serialize, ToSchema)]
pub(crate) struct HealthBody {
    /// `ok`, `ready`, `degraded` (it decides, but something needs attention), `misconfigured` (it can decide nothing
    /// until an operator acts), `starting` (everything is being read for the first time) or `draining`.
    status: &'static str,
    /// What is wrong with the configuration file, if it is not the one in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    config_error: Option<String>,
    /// What is wrong with the shared counters, if anything is.
    #[serde(skip_serializing_if = "Option::is_none")]
    store_error: Option<String>,
    /// What is wrong with the database or with what it holds, if anything is; what is in force then.
    #[serde(skip_serializing_if = "Option::is_none")]
    catalog_error: Option<String>,
    /// What could not be written to the data directory, if anything could not: decisions do not depend on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    data_dir_error: Option<String>,
}

/// 200 as soon as the process serves.
#[utoipa::path(get, path = "/healthz", responses((status = 200, description = "It serves", body = HealthBody)))]
pub(crate) async fn healthz(_: Call) -> Result<Response, ApiError> {
    Ok(response::json(StatusCode::OK, &HealthBody { status: "ok", ..HealthBody::default() }))
}

/// Whether new requests should be sent here.
#[utoipa::path(get, path = "/readyz", responses(
    (status = 200, description = "Send requests; `degraded` names what needs attention", body = HealthBody),
    (status = 503, description = "It is shutting down or starting, the shared counters refuse it, or its key_secret is not that of the others", body = HealthBody),
))]
pub(crate) async fn readyz(call: Call) -> Result<Response, ApiError> {
    if call.app.is_draining() {
        let body = HealthBody { status: "draining", ..HealthBody::default() };
        return Ok(response::json(StatusCode::SERVICE_UNAVAILABLE, &body));
    }
    // A broken file is no reason to stop sending requests: the old rules are in force. Nor are counters that do not
    // answer: every node would be taken out at once, and all of them can still decide. Nor is a full disk.
    let config_error = call.app.reload().and_then(|handle| handle.status().last_error);
    let store = call.app.counters().state();
    let store_error = store.trouble();
    let catalog = call.app.config_sync().state();
    let catalog_error = catalog.trouble();
    let data_dir_error = call.app.persistence_status().trouble();
    let is_fine = config_error.is_none() && catalog_error.is_none() && data_dir_error.is_none();
    let (code, status) = match store {
        StoreState::Refused(_) => (StatusCode::SERVICE_UNAVAILABLE, "misconfigured"),
        // Every client with an API key would be refused here.
        _ if catalog.secret_differs => (StatusCode::SERVICE_UNAVAILABLE, "misconfigured"),
        _ if catalog.source == Source::File && catalog.is_loading => {
            (StatusCode::SERVICE_UNAVAILABLE, "starting")
        }
        StoreState::Reached if is_fine => (StatusCode::OK, "ready"),
        _ => (StatusCode::OK, "degraded"),
    };
    Ok(response::json(code, &HealthBody { status, config_error, store_error, catalog_error, data_dir_error }))
}

/// Metrics: OpenMetrics text, or the text format of before where that is asked for.
#[utoipa::path(get, path = "/metrics", responses((
    status = 200, description = "OpenMetrics text",
    content((String = "application/openmetrics-text; version=1.0.0; charset=utf-8")),
)))]
pub(crate) async fn metrics(call: Call) -> Result<Response, ApiError> {
    Ok(text("application/openmetrics-text; version=1.0.0; charset=utf-8", call.app.metrics_text()))
}

/// This description.
#[utoipa::path(get, path = "/openapi.json", responses((status = 200, description = "OpenAPI 3.1", body = Object)))]
pub(crate) async fn openapi(_: Call) -> Result<Response, ApiError> {
    Ok(text("application/json", description::json()))
}

/// The documentation, as a page that needs nothing from elsewhere.
pub(crate) async fn docs(_: Call) -> Result<Response, ApiError> {
    Ok(text("text/html; charset=utf-8", include_str!("docs/index.html")))
}

pub(crate) async fn docs_script(_: Call) -> Result<Response, ApiError> {
    Ok(text("text/javascript; charset=utf-8", include_str!("docs/docs.js")))
}

pub(crate) async fn docs_style(_: Call) -> Result<Response, ApiError> {
    Ok(text("text/css; charset=utf-8", include_str!("docs/docs.css")))
}

/// Where to go from the root, and from the documentation with a slash behind it.
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

//! Health, readiness, metrics, OpenAPI and the documentation page.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use serde::Serialize;
use tollgate_stores::counters::StoreState;
use utoipa::ToSchema;

use super::{Call, Response, openapi as description};
use crate::config::sync::Source;
use crate::http::error::ApiError;
use crate::http::response;
use crate::listener::Payload;
use crate::records::metrics::MetricFormat;

/// Pages may load resources of this server only.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

/// The health of the service.
#[derive(Default, Serialize, ToSchema)]
pub(crate) struct HealthBody {
    /// `ok`, `ready`, `degraded` (serving, but something needs attention), `misconfigured` (cannot decide until an operator acts),
    /// `starting` (has not read its configuration yet) or `draining` (shutting down).
    status: &'static str,
    /// Why the configuration file is not in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    config_error: Option<String>,
    /// What is wrong with the shared counters.
    #[serde(skip_serializing_if = "Option::is_none")]
    store_error: Option<String>,
    /// What is wrong with the database or its content, and which configuration is in force meanwhile.
    #[serde(skip_serializing_if = "Option::is_none")]
    database_error: Option<String>,
    /// What could not be written to the data directory. Decisions do not depend on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    data_dir_error: Option<String>,
    /// Why records of decisions are not stored. Decisions do not depend on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    records_error: Option<String>,
    /// Why tokens of clients cannot be verified: the keys of an issuer were never fetched.
    #[serde(skip_serializing_if = "Option::is_none")]
    identity_error: Option<String>,
}

/// Returns 200 while the process serves requests.
#[utoipa::path(get, path = "/healthz", responses((status = 200, description = "Serving", body = HealthBody)))]
pub(crate) async fn healthz(_: Call) -> Result<Response, ApiError> {
    Ok(response::json(StatusCode::OK, &HealthBody { status: "ok", ..HealthBody::default() }))
}

/// Reports whether a load balancer should send requests to this node.
#[utoipa::path(get, path = "/readyz", responses(
    (status = 200, description = "Ready; with status `degraded`, an error field names the cause", body = HealthBody),
    (status = 503, description = "Shutting down, starting without having read the configured database, rejected by Redis, or `auth.key_secret` differs from that of the other nodes", body = HealthBody),
))]
pub(crate) async fn readyz(call: Call) -> Result<Response, ApiError> {
    if call.app.is_draining() {
        let body = HealthBody { status: "draining", ..HealthBody::default() };
        return Ok(response::json(StatusCode::SERVICE_UNAVAILABLE, &body));
    }
    // An invalid file, unreachable counters and a full disk leave the node able to decide. Reporting 503 for them would take all nodes
    // out at once.
    let config_error = call.app.reload().and_then(|handle| handle.status().last_error);
    let store = call.app.counters().state();
    let store_error = store.problem();
    let config = call.app.config_sync().state();
    let database_error = config.problem();
    let data_dir_error = call.app.persistence().problem();
    let records_error = call.app.limiter().records().record_stats.problem();
    let identity_error = call.settings.jwt.as_ref().and_then(|jwt| jwt.problem());
    let causes = [&config_error, &database_error, &data_dir_error, &records_error, &identity_error];
    let is_fine = causes.iter().all(|cause| cause.is_none());
    let (code, status) = match store {
        StoreState::Rejected(_) => (StatusCode::SERVICE_UNAVAILABLE, "misconfigured"),
        // Every client with an API key would be refused.
        _ if config.secret_differs => (StatusCode::SERVICE_UNAVAILABLE, "misconfigured"),
        _ if config.source == Source::Unread || (config.source == Source::File && config.is_loading) => {
            (StatusCode::SERVICE_UNAVAILABLE, "starting")
        }
        StoreState::Up if is_fine => (StatusCode::OK, "ready"),
        _ => (StatusCode::OK, "degraded"),
    };
    let causes = HealthBody {
        status,
        config_error,
        store_error,
        database_error,
        data_dir_error,
        records_error,
        identity_error,
    };
    // The causes name servers and files: not for a web page that reaches this route under its own name.
    let is_own = call.settings.hosts.require_own(&call.parts.uri, &call.parts.headers).is_ok();
    let body = if is_own { causes } else { HealthBody { status, ..HealthBody::default() } };
    Ok(response::json(code, &body))
}

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PROTOBUF: &str =
    "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited";

/// Returns all metrics. Only the protobuf format has native histograms; Prometheus asks for it if they are enabled.
#[utoipa::path(get, path = "/metrics", responses((
    status = 200, description = "OpenMetrics text, or Prometheus protobuf if the header Accept prefers it.",
    content(
        (String = "application/openmetrics-text; version=1.0.0; charset=utf-8"),
        (String = "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"),
    ),
)))]
pub(crate) async fn metrics(call: Call) -> Result<Response, ApiError> {
    let (format, kind) = if prefers_protobuf(&call.parts.headers) {
        (MetricFormat::Protobuf, PROTOBUF)
    } else {
        (MetricFormat::Text, OPENMETRICS)
    };
    Ok(text(kind, call.app.encode_metrics(format)))
}

/// Whether `Accept` has Prometheus protobuf with the highest quality.
fn prefers_protobuf(headers: &HeaderMap) -> bool {
    let ranges = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let (mut protobuf, mut other) = (0.0, 0.0);
    for range in ranges.flat_map(|value| value.split(',')) {
        let mut parts = range.split(';').map(|part| part.trim().to_ascii_lowercase());
        let kind = parts.next().unwrap_or_default();
        let parameters: Vec<String> = parts.collect();
        let has = |parameter: &str| parameters.iter().any(|each| each == parameter);
        let quality = parameters.iter().find_map(|each| each.strip_prefix("q=")?.parse().ok());
        let is_protobuf = kind == "application/vnd.google.protobuf"
            && has("proto=io.prometheus.client.metricfamily")
            && has("encoding=delimited");
        let best: &mut f32 = if is_protobuf { &mut protobuf } else { &mut other };
        *best = best.max(quality.unwrap_or(1.0));
    }
    protobuf > 0.0 && protobuf >= other
}

/// Returns this description.
#[utoipa::path(get, path = "/openapi.json", responses((status = 200, description = "OpenAPI 3.1", body = Object)))]
pub(crate) async fn openapi(_: Call) -> Result<Response, ApiError> {
    Ok(text("application/json", description::json()))
}

/// The documentation page and its files.
pub(crate) async fn docs(call: Call) -> Result<Response, ApiError> {
    const SCRIPT: &str = "text/javascript; charset=utf-8";
    let (kind, file) = match call.path {
        "/docs/docs.css" => ("text/css; charset=utf-8", include_str!("docs/docs.css")),
        "/docs/docs.js" => (SCRIPT, include_str!("docs/docs.js")),
        "/docs/dom.js" => (SCRIPT, include_str!("docs/dom.js")),
        "/docs/operation.js" => (SCRIPT, include_str!("docs/operation.js")),
        "/docs/request.js" => (SCRIPT, include_str!("docs/request.js")),
        "/docs/schema.js" => (SCRIPT, include_str!("docs/schema.js")),
        _ => ("text/html; charset=utf-8", include_str!("docs/index.html")),
    };
    Ok(text(kind, file))
}

/// Redirects `/` and `/docs/` to `/docs`.
pub(crate) async fn index(_: Call) -> Result<Response, ApiError> {
    let mut response = Response::default();
    *response.status_mut() = StatusCode::SEE_OTHER;
    response.headers_mut().insert(header::LOCATION, HeaderValue::from_static("/docs"));
    Ok(response)
}

fn text(kind: &'static str, text: impl Into<Bytes>) -> Response {
    let mut response = Response::new(Payload::Whole(text.into()));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefers(accept: &'static str) -> bool {
        prefers_protobuf(&HeaderMap::from_iter([(header::ACCEPT, HeaderValue::from_static(accept))]))
    }

    #[test]
    fn protobuf_is_sent_to_clients_that_prefer_it() {
        assert!(prefers(PROTOBUF));
        // As Prometheus sends it with and without native histograms.
        assert!(prefers(
            "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited,\
             application/openmetrics-text;version=1.0.0;q=0.8,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
        ));
        assert!(!prefers(
            "application/openmetrics-text;version=1.0.0;q=0.6,application/vnd.google.protobuf;\
             proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0.5,*/*;q=0.2"
        ));
        for other in ["", "*/*", "text/plain", "application/vnd.google.protobuf", "a;q=x,b;q="] {
            assert!(!prefers(other), "{other}");
        }
        assert!(!prefers_protobuf(&HeaderMap::new()));
    }
}

//! `/v1/admin/upstreams`: the upstreams of the reverse proxy and their health.

use std::sync::atomic::Ordering;

use http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::gateways::proxy::routes::Route;
use crate::gateways::proxy::upstream::Upstream;
use crate::http::error::{ApiError, Code, ErrorEnvelope};
use crate::http::{Call, Response, response};

/// No parameters: an ignored filter would look as if it had been applied.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NoQuery {}

/// The upstreams of every route.
#[derive(Serialize, ToSchema)]
pub(crate) struct UpstreamsResponse {
    upstreams: Vec<UpstreamView>,
}

/// One upstream of one route. The figures are those of all routes that share it, since the start of this node.
#[derive(Serialize, ToSchema)]
pub(crate) struct UpstreamView {
    /// Hosts and path of the route.
    route: String,
    /// The URL in the settings.
    url: String,
    /// Whether it gets requests.
    healthy: bool,
    /// Failures in a row.
    failures: u32,
    /// The error of the last health check; null if it passed, and without health checks.
    check_error: Option<String>,
    /// Requests in flight.
    in_flight: usize,
    /// Open connections.
    connections: u64,
    /// Requests sent.
    requests: u64,
    /// Connects that failed.
    connect_errors: u64,
    /// Requests without a valid response in time.
    response_errors: u64,
    /// Requests that were sent again to another upstream.
    retries: u64,
}

/// Lists the upstreams of the reverse proxy with their health.
#[utoipa::path(
    get, path = "/v1/admin/upstreams",
    responses(
        (status = 200, description = "The upstreams.", body = UpstreamsResponse),
        (status = 400, description = "A parameter was given; this call takes no parameters.", body = ErrorEnvelope<'_>),
        (status = 404, description = "This node has no reverse proxy.", body = ErrorEnvelope<'_>),
    )
)]
pub(crate) async fn upstreams(call: Call) -> Result<Response, ApiError> {
    let NoQuery {} = call.query()?;
    let Some(proxy) = call.app.proxy() else {
        let message =
            "this node has no reverse proxy; add [proxy] to its settings, or start tollgate gateway";
        return Err(ApiError::new(Code::NotFound, message));
    };
    let table = proxy.routes();
    let views =
        table.routes.iter().flat_map(|route| route.group.upstreams.iter().map(|one| view(route, one)));
    Ok(response::json(StatusCode::OK, &UpstreamsResponse { upstreams: views.collect() }))
}

fn view(route: &Route, upstream: &Upstream) -> UpstreamView {
    let (state, figures) = (upstream.state(), &upstream.stats);
    UpstreamView {
        route: route.name.to_string(),
        url: upstream.url.to_string(),
        healthy: state.is_healthy,
        failures: state.failures,
        check_error: state.last_check.and_then(|check| check.error).map(String::from),
        in_flight: figures.in_flight.load(Ordering::Relaxed),
        connections: upstream.connections().open.load(Ordering::Relaxed),
        requests: figures.requests.load(Ordering::Relaxed),
        connect_errors: figures.connect_errors.load(Ordering::Relaxed),
        response_errors: figures.response_errors.load(Ordering::Relaxed),
        retries: figures.retries.load(Ordering::Relaxed),
    }
}

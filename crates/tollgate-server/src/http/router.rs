//! The way in: route, Host and Origin, authentication, the caller's own limit, handler.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

use arc_swap::Guard;
use http::request::Parts;
use http::{HeaderMap, HeaderValue};
use hyper::body::Incoming;

use super::Response;
use super::access_log::AccessEntry;
use super::call::Call;
use super::error::{ApiError, Code};
use super::hosts::require_one_host;
use super::request_id::RequestId;
use super::respond::{Outcome, ResponseFuture};
use super::routes::{Route, routes_of};
use crate::app::{App, Reloadable};
use crate::auth::{Access, AuthError, Caller, Presented};
use crate::listener::{ConnectionInfo, HttpService};

/// The REST API as a service of the listener.
pub(crate) struct RestService(pub(crate) Arc<App>);

impl HttpService for RestService {
    type ResponseFuture = ResponseFuture;

    fn respond(&self, request: http::Request<Incoming>, connection: &Arc<ConnectionInfo>) -> ResponseFuture {
        answer(&self.0, request, connection)
    }

    fn may_be_large(response: &ResponseFuture) -> bool {
        response.may_be_large()
    }

    fn decline(response: &ResponseFuture) -> Response {
        response.declined()
    }
}

/// Answers one request.
fn answer(
    app: &Arc<App>,
    request: http::Request<Incoming>,
    connection: &Arc<ConnectionInfo>,
) -> ResponseFuture {
    let request_id = app.request_ids().of(request.headers());
    let routes = routes_of(request.uri().path());
    let route = routes.iter().copied().find(|route| route.takes(request.method()));
    let access = AccessEntry::start();
    let response = ResponseFuture::new(app, route, request_id.clone(), access.clone());
    let settings = app.live();
    let address = match client_address(&settings, request.headers(), connection) {
        Ok(address) => address,
        Err(error) => return response.with(Outcome::Failed(error), None),
    };
    let admitted = require_one_host(request.version(), request.uri(), request.headers())
        .and_then(|_| require_own_host(&settings, route, &request))
        .and_then(|()| route.ok_or_else(|| unrouted(routes)));
    match admitted {
        Ok(route) => match enter(app, settings, route, request, (connection, address), request_id, access) {
            Ok((call, body)) => {
                let changed_by = route.is_change() && !is_dry_run(&call.parts);
                let changed_by = changed_by.then(|| call.caller.name.clone());
                response.with(Outcome::Pending((route.handler)(call, body)), changed_by)
            }
            Err(error) => response.with(Outcome::Failed(error), None),
        },
        // Not charged: a web page must not use up the limit of its user's address.
        Err(error) if error.code() == Code::MisdirectedRequest => response.with(Outcome::Failed(error), None),
        Err(error) => {
            let error = charge_unrouted(app, routes, address).err().map_or(error, Into::into);
            response.with(Outcome::Failed(error), None)
        }
    }
}

/// The address that a request came from. Its caller's own limit and failed keys are counted by it.
pub(crate) fn client_address(
    settings: &Reloadable,
    headers: &HeaderMap,
    connection: &ConnectionInfo,
) -> Result<IpAddr, ApiError> {
    let policy = &settings.client_address;
    let Some(header) = policy.header() else { return Ok(connection.source.ip().to_canonical()) };
    let values = headers.get_all(header).into_iter().map(HeaderValue::as_bytes);
    let found = policy.client_address(connection.peer.ip(), values);
    found.map_err(|error| ApiError::field(Code::InvalidInput, header, error.to_string()))
}

/// Refuses requests of foreign web pages. Probes pass under any name: orchestrators and proxies choose it.
fn require_own_host(
    settings: &Reloadable,
    route: Option<&Route>,
    request: &http::Request<Incoming>,
) -> Result<(), ApiError> {
    // Gateways pass on the Host and Origin of their clients.
    if route.is_some_and(|route| route.is_probe() || route.access == Access::TrustedProxy) {
        return Ok(());
    }
    settings.hosts.require_own(request.uri(), request.headers())
}

fn unrouted(routes: &[&Route]) -> ApiError {
    if routes.is_empty() {
        return ApiError::new(Code::NotFound, "no such path; see /docs");
    }
    let allow: Vec<&str> = routes.iter().map(|route| route.allow()).collect();
    ApiError::method_not_allowed(allow.join(", "))
}

/// Authenticates the caller and charges its own limit, before any of the body is read.
fn enter(
    app: &Arc<App>,
    settings: Guard<Arc<Reloadable>>,
    route: &'static Route,
    request: http::Request<Incoming>,
    (connection, address): (&Arc<ConnectionInfo>, IpAddr),
    request_id: RequestId,
    access: Option<Arc<AccessEntry>>,
) -> Result<(Call, Incoming), ApiError> {
    require_trusted_proxy(app, &settings, route, connection)?;
    let presented =
        Presented { headers: request.headers(), certificate: connection.certificate.as_ref(), address };
    let caller = settings.authenticator.authorize(presented, route.access, app.auth_parts())?;
    if let Some(access) = &access {
        access.set_caller(&caller.name);
    }
    if route.concerns_all_tenants() {
        caller.require_unbound()?;
    }
    charge_caller(app, &settings, route, &caller, address)?;
    let (parts, body) = request.into_parts();
    let call = Call {
        app: Arc::clone(app),
        settings,
        parts,
        path: route.path,
        caller,
        connection: Arc::clone(connection),
        address,
        request_id,
        access,
    };
    Ok((call, body))
}

/// Only the socket identifies a gateway: a header could be its client's.
fn require_trusted_proxy(
    app: &App,
    settings: &Reloadable,
    route: &Route,
    connection: &ConnectionInfo,
) -> Result<(), AuthError> {
    let peer = connection.peer.ip().to_canonical();
    if route.access == Access::TrustedProxy && !settings.client_address.trusts(peer) {
        app.untrusted_gateways().note(peer, app.now());
        return Err(AuthError::UntrustedProxy(peer));
    }
    Ok(())
}

/// Probes, metrics and gateways are exempt: they must not fail because of load.
fn charge_caller(
    app: &App,
    settings: &Reloadable,
    route: &Route,
    caller: &Caller,
    address: IpAddr,
) -> Result<(), AuthError> {
    match &settings.callers {
        // A batch is charged by its checks once it is parsed; a cost of 0 refuses a caller that has exceeded its limit.
        Some(callers) if !matches!(route.access, Access::Anyone | Access::TrustedProxy) => {
            callers.charge(caller, address, u32::from(!route.by_check), app.now())
        }
        _ => Ok(()),
    }
}

/// Requests without a route count against the limit of their address, except on the paths of probes and metrics.
fn charge_unrouted(app: &App, routes: &[&Route], address: IpAddr) -> Result<(), AuthError> {
    let is_exempt = routes.iter().any(|route| route.access == Access::Anyone);
    match &app.live().callers {
        Some(callers) if !is_exempt => callers.charge(&Caller::anonymous(), address, 1, app.now()),
        _ => Ok(()),
    }
}

/// Whether the query has `dry_run=true`: the log must not report a change then. Handlers reject other values.
fn is_dry_run(parts: &Parts) -> bool {
    let query: Result<Vec<(Cow<'_, str>, Cow<'_, str>)>, _> =
        serde_urlencoded::from_str(parts.uri.query().unwrap_or_default());
    query.is_ok_and(|query| query.iter().any(|(name, value)| name == "dry_run" && value == "true"))
}

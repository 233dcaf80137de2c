//! The reverse proxy: finds the route, identifies the client, asks the limiter, and forwards or refuses.
//!
//! One check per request. Whatever the answer, the response has the rate-limit headers of the decision.

pub(crate) mod access_log;
mod body;
mod client;
mod forward;
mod headers;
pub(crate) mod health;
mod pool;
mod refusal;
pub(crate) mod routes;
mod tunnel;
pub(crate) mod upstream;

use std::borrow::Cow;
use std::io;
use std::net::IpAddr;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::{ArcSwap, Guard};
use futures_util::FutureExt;
use http::header::HeaderValue;
use http::uri::{Authority, PathAndQuery};
use http::{Method, Request, Response, StatusCode, Uri};
use hyper::body::Incoming;
use tokio::sync::Semaphore;
use tollgate::identity::ClientAddressPolicy;
use tollgate::{Answer, Decision, Endpoint};

use self::access_log::AccessLog;
use self::body::RequestBody;
use self::forward::Forwarded;
use self::refusal::{Form, Refusal};
use self::routes::{Route, RouteTable};
use super::forward_auth::of_client;
use super::identify::{ClientRequest, IdentityPolicy};
use crate::api::decision::put_headers;
use crate::app::{App, Reloadable};
use crate::auth::Caller;
use crate::check::error::CheckError;
use crate::check::warnings::Warnings;
use crate::config::settings::{LoginEndpoint, ProxySettings};
use crate::http::error::ApiError;
use crate::http::request_id::{REQUEST_ID, RequestId};
use crate::http::{client_address, read_body, require_one_host};
use crate::listener::{AcceptPolicy, ConnectionInfo, ConnectionStats, HttpService, Payload};

/// Routes and figures of the reverse proxy.
pub(crate) struct Proxy {
    /// How connections are accepted.
    pub(crate) accept_policy: Arc<ArcSwap<AcceptPolicy>>,
    table: ArcSwap<RouteTable>,
    access_log: AccessLog,
    /// Requests that may wait for their delay.
    delays: Semaphore,
    pub(crate) stats: ProxyStats,
}

/// Figures of the proxy besides those of routes and upstreams.
#[derive(Default)]
pub(crate) struct ProxyStats {
    pub(crate) connections: Arc<ConnectionStats>,
    /// Requests that no route takes.
    pub(crate) unrouted: AtomicU64,
    /// Requests refused because too many were waiting for their delay.
    pub(crate) delays_refused: AtomicU64,
}

/// The proxy as a service of its listener.
#[derive(Clone)]
pub(crate) struct ProxyService {
    pub(crate) app: Arc<App>,
    pub(crate) proxy: Arc<Proxy>,
}

impl HttpService for ProxyService {
    type ResponseFuture = Pin<Box<dyn Future<Output = Response<Payload>> + Send>>;
    const UPGRADES: bool = true;
    const JOINS_WRITES: bool = false;

    fn respond(&self, request: Request<Incoming>, connection: &Arc<ConnectionInfo>) -> Self::ResponseFuture {
        let (service, connection) = (self.clone(), Arc::clone(connection));
        // Lent to every step: an async function holds two copies of a request that it takes by value.
        let mut request = request.map(RequestBody::Received);
        // Allocated first, so that the future, of several kilobytes, is made in place and not copied.
        let place = Box::new_uninit();
        let serving = Box::write(place, async move { service.serve(&mut request, &connection).await });
        Box::into_pin(serving)
    }
}

/// A request whose route is not known yet.
struct Unrouted<'a> {
    /// As the client sent it.
    uri: &'a Uri,
    connection: &'a Arc<ConnectionInfo>,
    settings: &'a Reloadable,
    request_id: &'a RequestId,
}

/// A request on its way: what every step needs.
struct Arrival<'a> {
    connection: &'a Arc<ConnectionInfo>,
    settings: &'a Reloadable,
    request_id: &'a RequestId,
    /// The client, by `identity.client_address`.
    address: IpAddr,
}

/// What is known about a request when its response is made.
#[derive(Default)]
struct Outcome {
    route: Option<Arc<Route>>,
    /// The decision whose headers the response gets.
    decision: Option<Decision>,
}

impl Proxy {
    /// Opens the proxy.
    ///
    /// # Errors
    /// When the client of upstreams cannot be made.
    pub(crate) fn new(settings: &ProxySettings, addresses: &ClientAddressPolicy) -> io::Result<Self> {
        Ok(Proxy {
            accept_policy: Arc::new(ArcSwap::from_pointee(accept_policy(settings, addresses))),
            table: ArcSwap::from_pointee(RouteTable::new(settings, None)?),
            access_log: AccessLog::start(settings.access_log),
            delays: Semaphore::new(settings.delayed_max),
            stats: ProxyStats::default(),
        })
    }

    /// Uses other routes and certificates. Requests in flight finish on those that they began with. Switching TLS on or off needs a
    /// restart.
    ///
    /// # Errors
    /// When the client of upstreams cannot be made; nothing is changed then.
    pub(crate) fn apply(&self, settings: &ProxySettings, addresses: &ClientAddressPolicy) -> io::Result<()> {
        let table = RouteTable::new(settings, Some(&self.table.load()))?;
        self.table.store(Arc::new(table));
        let accept = accept_policy(settings, addresses);
        if accept.tls.is_some() == self.accept_policy.load().tls.is_some() {
            self.accept_policy.store(Arc::new(accept));
        }
        Ok(())
    }

    pub(crate) fn access_log_dropped(&self) -> &AtomicU64 {
        &self.access_log.dropped
    }

    pub(crate) fn routes(&self) -> Guard<Arc<RouteTable>> {
        self.table.load()
    }

    /// Holds a request that is admitted later. Only so many wait at a time.
    async fn delay(&self, decision: &Decision) -> Result<(), Refusal> {
        let Answer::Admit { delay } = decision.answer else { return Ok(()) };
        if delay == tollgate::Span::ZERO {
            return Ok(());
        }
        let Ok(_waiting) = self.delays.try_acquire() else {
            self.stats.delays_refused.fetch_add(1, Ordering::Relaxed);
            let message = "too many requests are waiting for their turn (proxy.delayed_max)";
            return Err(Refusal::new(StatusCode::TOO_MANY_REQUESTS, "RATE_LIMITED", message));
        };
        tokio::time::sleep(Duration::from_micros(delay.as_micros())).await;
        Ok(())
    }
}

impl ProxyService {
    async fn serve(
        &self,
        request: &mut Request<RequestBody>,
        connection: &Arc<ConnectionInfo>,
    ) -> Response<Payload> {
        // Not the guard: during the call to the upstream it would occupy one of the few slots of the thread.
        let settings = Arc::clone(&self.app.live());
        let request_id = self.app.request_ids().of(request.headers());
        let (form, mut outcome) = (Form::of(request.headers()), Outcome::default());
        let exchange = self.proxy.access_log.begin(request, &request_id);
        let uri = std::mem::take(request.uri_mut());
        let received = Unrouted { uri: &uri, connection, settings: &settings, request_id: &request_id };
        let serving = AssertUnwindSafe(self.answer(&received, request, &mut outcome)).catch_unwind();
        let answered = serving.await.unwrap_or_else(|_| {
            tracing::error!(request_id = request_id.as_str(), "the proxy panicked");
            Err(Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "INTERNAL_ERROR", "internal error"))
        });
        let mut response = answered.unwrap_or_else(|refusal| refusal.respond(form, request_id.as_str()));
        self.settle(&mut outcome, response.status()).await;
        response.headers_mut().insert(REQUEST_ID, request_id.header());
        if let Some(decision) = &outcome.decision {
            put_headers(response.headers_mut(), decision, &settings.profiles);
        }
        if let Some(route) = &outcome.route {
            route.stats.count_response(response.status());
        }
        if let Some(exchange) = exchange {
            let client = client_address(&settings, &exchange.headers, connection).ok();
            self.proxy.access_log.end(&exchange, client, &outcome, &response);
        }
        response
    }

    /// Refunds what the rules refund for this status. The response waits for it, so that the client's next request finds it.
    async fn settle(&self, outcome: &mut Outcome, status: StatusCode) {
        let receipt = outcome.decision.as_mut().and_then(Decision::take_receipt);
        if let Some(receipt) = receipt.filter(|receipt| receipt.refunds(status.as_u16())) {
            self.app.limiter().settle(receipt, status.as_u16(), self.app.now()).await;
        }
    }

    /// The steps of one request.
    async fn answer(
        &self,
        received: &Unrouted<'_>,
        request: &mut Request<RequestBody>,
        outcome: &mut Outcome,
    ) -> Result<Response<Payload>, Refusal> {
        let (arrival, target, route) = self.arrive(received, request)?;
        let route = outcome.route.insert(route);
        let decision = self.check(&arrival, &target, route, request).await?;
        let decision = outcome.decision.insert(decision);
        if !decision.admits() {
            route.stats.refused.fetch_add(1, Ordering::Relaxed);
            return Err(Refusal::of_decision(decision));
        }
        decision.release_slot();
        self.proxy.delay(decision).await?;
        Forwarded { route, target: &target, arrival: &arrival }.send(request).await
    }

    /// Finds the client's address, the path and the route of a request.
    fn arrive<'a>(
        &self,
        received: &Unrouted<'a>,
        request: &Request<RequestBody>,
    ) -> Result<(Arrival<'a>, Target<'a>, Arc<Route>), Refusal> {
        let Unrouted { uri, connection, settings, request_id } = *received;
        let invalid = |message: String| Refusal::new(StatusCode::BAD_REQUEST, "INVALID_INPUT", message);
        if request.method() == Method::CONNECT {
            let message = "CONNECT is not supported";
            return Err(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "METHOD_NOT_ALLOWED", message));
        }
        let host = require_one_host(request.version(), uri, request.headers())?.cloned();
        let host = host.or_else(|| HeaderValue::from_str(uri.authority()?.as_str()).ok());
        // HTTP/1 servers differ in which of the two they use.
        let differs = |authority: &Authority| {
            host.as_ref()
                .is_none_or(|host| !host.as_bytes().eq_ignore_ascii_case(authority.as_str().as_bytes()))
        };
        if uri.authority().is_some_and(differs) {
            return Err(invalid("host: must equal the authority of the request target".to_owned()));
        }
        let address = client_address(settings, request.headers(), connection)?;
        let target = Target::parse(uri, host).map_err(invalid)?;
        let table = self.proxy.routes();
        let route = table.find(target.host.as_ref(), &target.endpoint).ok_or_else(|| {
            self.proxy.stats.unrouted.fetch_add(1, Ordering::Relaxed);
            Refusal::new(StatusCode::NOT_FOUND, "NOT_FOUND", "no route takes this host and path")
        })?;
        Ok((Arrival { connection, settings, request_id, address }, target, Arc::clone(route)))
    }

    /// Identifies the client and decides the request. Only the body of a login is read for that; it is forwarded as it is.
    async fn check(
        &self,
        arrival: &Arrival<'_>,
        target: &Target<'_>,
        route: &Route,
        request: &mut Request<RequestBody>,
    ) -> Result<Decision, Refusal> {
        let policy = IdentityPolicy::new(arrival.settings, self.app.token_throttle());
        let login = policy.login_endpoint(request.method().as_str(), target.endpoint.as_str());
        match login {
            // Boxed, so that requests without a login do not have the space.
            Some(endpoint) => Box::pin(self.read_login(request, endpoint)).await?,
            None => request.body_mut().stream(route.timeouts.idle),
        }
        let name = login.and_then(|endpoint| Some((endpoint, request.body().whole()?)));
        let request = ClientRequest {
            method: request.method().as_str(),
            path: target.endpoint.as_str(),
            headers: request.headers(),
            address: arrival.address,
        };
        let identity = policy.identify(&request, name, self.app.clock()).map_err(ApiError::from)?;
        let (caller, request_id) = (Caller::anonymous(), Some(arrival.request_id.as_str()));
        let checker = self.app.checker(&caller, arrival.settings, request_id).map_err(ApiError::from)?;
        let mut warnings = Warnings::default();
        match checker.check(&identity.check(&request), &mut warnings, checker.started).await {
            Ok(decision) => Ok(decision),
            // Rendered like a refusal, with the headers of the decision.
            Err(CheckError::Unavailable(decision)) => Ok(*decision),
            Err(error) => Err(of_client(error, &arrival.settings.profiles).into()),
        }
    }

    /// Reads the body of a login.
    async fn read_login(
        &self,
        request: &mut Request<RequestBody>,
        endpoint: &LoginEndpoint,
    ) -> Result<(), Refusal> {
        let Some(body) = request.body_mut().take_received() else { return Ok(()) };
        let (bytes_max, timeout) = (endpoint.body_bytes_max, self.app.body_timeout());
        let whole = read_body(request.headers(), body, bytes_max, timeout).await?;
        *request.body_mut() = RequestBody::Whole(whole);
        Ok(())
    }
}

fn accept_policy(settings: &ProxySettings, addresses: &ClientAddressPolicy) -> AcceptPolicy {
    let tls = settings.tls.as_ref().map(|tls| Arc::clone(&tls.config));
    AcceptPolicy { tls, client_address: addresses.clone() }
}

/// What a request asks for. The path that is matched is the path that is forwarded.
pub(super) struct Target<'u> {
    pub(super) endpoint: Endpoint<'u>,
    /// The normalized path and the query as sent.
    pub(super) path_and_query: Cow<'u, PathAndQuery>,
    pub(super) host: Option<HeaderValue>,
}

impl<'u> Target<'u> {
    fn parse(uri: &'u Uri, host: Option<HeaderValue>) -> Result<Self, String> {
        let path = uri.path();
        let endpoint = Endpoint::parse(path).map_err(|error| error.to_string())?;
        let forwarded = Endpoint::forwarded_path(path).map_err(|error| error.to_string())?;
        let path_and_query = match uri.path_and_query() {
            Some(sent) if forwarded == path => Cow::Borrowed(sent),
            _ => {
                let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
                let target = PathAndQuery::try_from(forwarded.into_owned() + &query);
                Cow::Owned(target.map_err(|error| format!("endpoint: cannot be forwarded: {error}"))?)
            }
        };
        Ok(Target { endpoint, path_and_query, host })
    }
}

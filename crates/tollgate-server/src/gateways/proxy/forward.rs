//! Sends an admitted request to an upstream, and once more to another one if it certainly was not processed.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use http::header::{EXPECT, HOST, HeaderName, HeaderValue};
use http::uri::PathAndQuery;
use http::{Method, Request, Response, StatusCode, Uri, Version};
use http_body_util::BodyExt;
use hyper::upgrade::OnUpgrade;
use tracing::{debug, warn};

use super::body::{BodyError, RequestBody, UpstreamBody};
use super::client::SendError;
use super::headers::{self, Hop};
use super::pool::{Outgoing, ReceivedBody};
use super::refusal::Refusal;
use super::routes::Route;
use super::tunnel::Tunnel;
use super::upstream::{InFlight, Upstream};
use super::{Arrival, Target};
use crate::config::settings::HostHeader;
use crate::http::request_id::REQUEST_ID;
use crate::listener::{Payload, address_header};

/// Forwards one request.
pub(super) struct Forwarded<'a> {
    pub(super) route: &'a Arc<Route>,
    pub(super) target: &'a Target<'a>,
    pub(super) arrival: &'a Arrival<'a>,
}

/// A request that asks to switch protocols.
struct Upgrade {
    protocol: HeaderValue,
    client: OnUpgrade,
}

impl<'a> Forwarded<'a> {
    /// Forwards a request and returns the response of the upstream.
    pub(super) async fn send(
        &self,
        request: &mut Request<RequestBody>,
    ) -> Result<Response<Payload>, Refusal> {
        let protocol = headers::upgrade(request.headers()).filter(|_| request.version() == Version::HTTP_11);
        let client = request.extensions_mut().remove::<OnUpgrade>();
        let upgrade = protocol.zip(client).map(|(protocol, client)| Upgrade { protocol, client });
        let copy = RequestCopy::of(request);
        self.prepare(request, upgrade.as_ref())?;
        let started = Instant::now();
        let sent = self.send_with_retry(request, copy, upgrade.as_ref(), started).await;
        let (upstream, in_flight, response) = sent.map_err(|error| {
            self.route.stats.upstream_errors.fetch_add(1, Ordering::Relaxed);
            refusal(&error)
        })?;
        upstream.record_success();
        self.route.stats.upstream_duration.observe(started.elapsed());
        self.respond(response, in_flight, upgrade)
    }

    /// Makes the head of the client's request that of the request to the upstream.
    fn prepare(&self, request: &mut Request<RequestBody>, upgrade: Option<&Upgrade>) -> Result<(), Refusal> {
        let Arrival { connection, settings, request_id, address } = self.arrival;
        let fields = request.headers_mut();
        headers::remove_hop_by_hop(fields).map_err(|error| {
            Refusal::new(StatusCode::BAD_REQUEST, "INVALID_INPUT", format!("Connection {error}"))
        })?;
        // Answered by this node when it reads the body.
        fields.remove(EXPECT);
        let peer = connection.source_header();
        let is_client = connection.source.ip().to_canonical() == *address;
        let hop = Hop {
            peer: peer.clone(),
            client: if is_client { peer.clone() } else { address_header(*address) },
            is_trusted: settings.client_address.trusts(connection.peer.ip()),
            is_tls: connection.is_tls,
            host: self.target.host.as_ref(),
        };
        headers::set_forwarded(fields, hop);
        fields.insert(REQUEST_ID, request_id.header());
        if let Some(upgrade) = upgrade {
            headers::request_upgrade(fields, upgrade.protocol.clone());
        }
        *request.uri_mut() = Uri::from(PathAndQuery::clone(&self.target.path_and_query));
        *request.version_mut() = Version::HTTP_11;
        Ok(())
    }

    /// Sends the request, and once more, to another upstream if there is one, if the first could not be reached, or closed the
    /// connection before its response and the method is idempotent. Only a body at hand can be sent again.
    async fn send_with_retry(
        &self,
        request: &mut Request<RequestBody>,
        copy: Option<RequestCopy>,
        upgrade: Option<&Upgrade>,
        started: Instant,
    ) -> Result<(&'a Upstream, InFlight, Response<ReceivedBody>), SendError> {
        let route: &'a Route = self.route;
        let group = &route.group;
        let first = group.pick(None, started).ok_or_else(|| SendError::Connect("no upstream".to_owned()))?;
        let is_idempotent = is_idempotent(request.method());
        let error = match self.send_to(first, &mut Some(std::mem::take(request)), started).await {
            Ok((in_flight, response)) => return Ok((first, in_flight, response)),
            Err(error) => error,
        };
        let may_repeat = match error {
            SendError::Connect(_) => true,
            SendError::Closed => is_idempotent,
            _ => false,
        };
        let Some(copy) = copy.filter(|_| may_repeat) else { return Err(error) };
        let now = Instant::now();
        let Some(second) = group.pick(Some(first), now) else { return Err(error) };
        let mut request = copy.into_request();
        // It was valid the first time.
        let Ok(()) = self.prepare(&mut request, upgrade) else { return Err(error) };
        debug!(upstream = %first.url, %error, again = %second.url, "sending a request again");
        first.stats.retries.fetch_add(1, Ordering::Relaxed);
        let (in_flight, response) = Box::pin(self.send_to(second, &mut Some(request), now)).await?;
        Ok((second, in_flight, response))
    }

    async fn send_to(
        &self,
        upstream: &Arc<Upstream>,
        request: Outgoing<'_>,
        now: Instant,
    ) -> Result<(InFlight, Response<ReceivedBody>), SendError> {
        if let Some(request) = request {
            match self.host_header(upstream) {
                Some(host) => drop(request.headers_mut().insert(HOST, host)),
                None => drop(request.headers_mut().remove(HOST)),
            }
        }
        let in_flight = InFlight::begin(upstream);
        let sent = upstream.client.send(request, now).await;
        if let Err(error) = &sent {
            note_failure(upstream, error);
        }
        Ok((in_flight, sent?))
    }

    /// HTTP/2 has the authority of the URL instead.
    fn host_header(&self, upstream: &Upstream) -> Option<HeaderValue> {
        if upstream.url.protocol.is_http2() {
            return None;
        }
        let of_client = self.target.host.clone().filter(|_| self.route.host == HostHeader::Preserve);
        of_client.or_else(|| upstream.host.clone())
    }

    /// The response to the client.
    fn respond(
        &self,
        mut response: Response<ReceivedBody>,
        in_flight: InFlight,
        upgrade: Option<Upgrade>,
    ) -> Result<Response<Payload>, Refusal> {
        let idle_timeout = self.route.timeouts.idle;
        let switched = (response.status() == StatusCode::SWITCHING_PROTOCOLS)
            .then(|| (headers::upgrade(response.headers()), hyper::upgrade::on(&mut response)));
        let (mut parts, body) = response.into_parts();
        parts.extensions = http::Extensions::new();
        // Otherwise hyper responds in the upstream's version, and closes the connection after HTTP/1.0.
        parts.version = Version::HTTP_11;
        headers::remove_hop_by_hop_of_response(&mut parts.headers);
        headers::remove_rate_limit_headers(&mut parts.headers, &self.arrival.settings.profiles);
        match (switched, upgrade) {
            (Some((Some(protocol), upstream)), Some(Upgrade { client, .. })) => {
                headers::request_upgrade(&mut parts.headers, protocol);
                let (stats, connection) =
                    (Arc::clone(&self.route.stats), Arc::clone(self.arrival.connection));
                Tunnel { client, upstream, idle_timeout, stats, in_flight, connection }.spawn();
                Ok(Response::from_parts(parts, Payload::default()))
            }
            (Some(_), _) => {
                let message = "the upstream switched protocols without being asked";
                Err(Refusal::new(StatusCode::BAD_GATEWAY, "UPSTREAM_FAILED", message))
            }
            (None, _) => {
                let body = UpstreamBody::new(body, idle_timeout, in_flight);
                Ok(Response::from_parts(parts, Payload::Body(body.boxed_unsync())))
            }
        }
    }
}

/// A copy of the client's request for a retry, without what the proxy adds. Retries are rare, so it is kept cheaper than a clone of
/// the `HeaderMap`.
struct RequestCopy {
    method: Method,
    fields: Vec<(HeaderName, HeaderValue)>,
    body: RequestBody,
}

impl RequestCopy {
    /// A copy of a request whose body is at hand.
    fn of(request: &Request<RequestBody>) -> Option<Self> {
        let body = request.body().again()?;
        let headers = request.headers();
        let mut fields = Vec::with_capacity(headers.len());
        fields.extend(headers.iter().map(|(name, value)| (name.clone(), value.clone())));
        Some(RequestCopy { method: request.method().clone(), fields, body })
    }

    fn into_request(self) -> Request<RequestBody> {
        let mut request = Request::new(self.body);
        *request.method_mut() = self.method;
        for (name, value) in self.fields {
            request.headers_mut().append(name, value);
        }
        request
    }
}

/// Methods that have the same effect once and twice (RFC 9110, 9.2.2).
fn is_idempotent(method: &Method) -> bool {
    matches!(
        *method,
        Method::GET | Method::HEAD | Method::OPTIONS | Method::TRACE | Method::PUT | Method::DELETE
    )
}

fn note_failure(upstream: &Upstream, error: &SendError) {
    let counted = match error {
        SendError::Connect(_) => &upstream.stats.connect_errors,
        SendError::RequestBody(_) => return,
        _ => &upstream.stats.response_errors,
    };
    counted.fetch_add(1, Ordering::Relaxed);
    // Servers close kept-alive connections; one that is gone refuses the next.
    let is_failure = !matches!(error, SendError::Closed);
    if is_failure && upstream.record_failure(Instant::now()) {
        warn!(upstream = %upstream.url, %error, "upstream is out of rotation after failures in a row");
    }
}

/// Details of upstreams are not for clients: the log and the admin API have them.
fn refusal(error: &SendError) -> Refusal {
    debug!(%error, "a request could not be forwarded");
    let failed = |message: &'static str| Refusal::new(StatusCode::BAD_GATEWAY, "UPSTREAM_FAILED", message);
    match error {
        SendError::Timeout => Refusal::new(
            StatusCode::GATEWAY_TIMEOUT,
            "UPSTREAM_TIMEOUT",
            "the upstream did not respond in time",
        ),
        SendError::RequestBody(BodyError::Slow) => {
            Refusal::new(StatusCode::REQUEST_TIMEOUT, "REQUEST_TIMEOUT", BodyError::Slow.to_string())
        }
        SendError::RequestBody(BodyError::Invalid) => {
            Refusal::new(StatusCode::BAD_REQUEST, "INVALID_INPUT", BodyError::Invalid.to_string())
        }
        SendError::Connect(_) => failed("the upstream could not be reached"),
        SendError::Closed => failed("the upstream closed the connection before its response"),
        SendError::Response(_) => failed("the upstream sent no valid response"),
    }
}

//! gRPC: HTTP/2 on both sides, with trailers.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, Version, request};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;

use crate::enforcement::limit;
use crate::harness::Service;
use crate::upstream::{proxied_to, proxy_of};

/// A request as it arrived.
struct Call {
    head: request::Parts,
    body: Bytes,
    trailers: HeaderMap,
}

/// An HTTP/2 server without TLS that echoes bodies and ends them with `grpc-status`.
struct GrpcServer {
    address: SocketAddr,
    calls: Arc<Mutex<Vec<Call>>>,
    runtime: Runtime,
}

fn trailers(fields: &[(&'static str, &'static str)]) -> HeaderMap {
    fields.iter().map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value))).collect()
}

fn body(bytes: Bytes, end: HeaderMap) -> impl Body<Data = Bytes, Error = Infallible> + Unpin {
    Full::new(bytes).with_trailers(Box::pin(std::future::ready(Some(Ok(end)))))
}

async fn answer(
    request: Request<Incoming>,
    calls: Arc<Mutex<Vec<Call>>>,
) -> Result<Response<impl Body<Data = Bytes, Error = Infallible>>, hyper::Error> {
    let (head, incoming) = request.into_parts();
    let collected = incoming.collect().await?;
    let trailers_of_client = collected.trailers().cloned().unwrap_or_default();
    let bytes = collected.to_bytes();
    calls.lock().unwrap().push(Call { head, body: bytes.clone(), trailers: trailers_of_client });
    let end = trailers(&[("grpc-status", "0"), ("grpc-message", "fine")]);
    Ok(Response::builder().header("content-type", "application/grpc").body(body(bytes, end)).unwrap())
}

impl GrpcServer {
    fn start() -> Self {
        let (runtime, calls) = (Runtime::new().unwrap(), Arc::<Mutex<Vec<Call>>>::default());
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let recorded = Arc::clone(&calls);
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let recorded = Arc::clone(&recorded);
                let service = service_fn(move |request| answer(request, Arc::clone(&recorded)));
                let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                tokio::spawn(server.serve_connection(TokioIo::new(stream), service));
            }
        });
        GrpcServer { address, calls, runtime }
    }

    /// Calls a method through the proxy; returns the head, the body and the trailers of the response.
    fn call(&self, proxy: SocketAddr, message: &'static str) -> (http::response::Parts, Bytes, HeaderMap) {
        self.runtime.block_on(async {
            let stream = TokioIo::new(TcpStream::connect(proxy).await.unwrap());
            let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), stream);
            let (mut sender, connection) = handshake.await.unwrap();
            tokio::spawn(connection);
            let end = trailers(&[("x-checksum", "abc"), ("x-forwarded-for", "203.0.113.9")]);
            let request = Request::post(format!("http://{proxy}/shop.Orders/Place"))
                .header("te", "trailers")
                .header("content-type", "application/grpc")
                .body(body(Bytes::from_static(message.as_bytes()), end))
                .unwrap();
            let (head, incoming) = sender.send_request(request).await.unwrap().into_parts();
            let collected = incoming.collect().await.unwrap();
            let end = collected.trailers().cloned().unwrap_or_default();
            (head, collected.to_bytes(), end)
        })
    }
}

#[test]
fn grpc_call_passes_with_trailers_both_ways() {
    let server = GrpcServer::start();
    let url = format!("h2c://{}", server.address);
    let service = Service::with_config(&proxied_to(&[&url], "", &limit(2)));
    let (head, echoed, end) = server.call(proxy_of(&service), "\0\0\0\0\x05hello");
    assert_eq!((head.status.as_u16(), head.version), (200, Version::HTTP_2));
    assert_eq!(head.headers["content-type"], "application/grpc");
    assert_eq!(head.headers["x-ratelimit-remaining"], "1");
    assert_eq!(echoed, "\0\0\0\0\x05hello");
    assert_eq!(end, trailers(&[("grpc-status", "0"), ("grpc-message", "fine")]));
    let calls = server.calls.lock().unwrap();
    let call = &calls[0];
    assert_eq!((call.head.version, call.head.uri.path()), (Version::HTTP_2, "/shop.Orders/Place"));
    assert_eq!((&call.head.headers["te"], &call.body), (&"trailers".parse().unwrap(), &echoed));
    assert_eq!(call.head.headers["x-forwarded-for"], "127.0.0.1");
    assert_eq!(call.trailers, trailers(&[("x-checksum", "abc")]), "without forged forwarding headers");
}

#[test]
fn refused_grpc_call_does_not_reach_the_server() {
    let server = GrpcServer::start();
    let url = format!("h2c://{}", server.address);
    let service = Service::with_config(&proxied_to(&[&url], "", &limit(1)));
    let statuses = ["a", "b"].map(|message| server.call(proxy_of(&service), message).0.status.as_u16());
    assert_eq!(statuses, [200, 429]);
    assert_eq!(server.calls.lock().unwrap().len(), 1);
}

//! The lower bound of a reverse proxy in Rust: hyper in front of the pooled client of hyper-util, nothing between them.
//!
//! `bare_proxy PORT UPSTREAM_PORT`.

use std::net::Ipv4Addr;

use anyhow::{Context, Result};
use hyper::body::Incoming;
use hyper::header::HOST;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main]
async fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let mut port =
        || -> Result<u16> { Ok(args.next().context("usage: bare_proxy PORT UPSTREAM_PORT")?.parse()?) };
    let (port, upstream) = (port()?, port()?);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let client: Client<HttpConnector, Incoming> = Client::builder(TokioExecutor::new()).build(connector);
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let client = client.clone();
        tokio::spawn(async move {
            let service = service_fn(|request| client.request(to(upstream, request)));
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

/// The request for the upstream.
fn to(upstream: u16, mut request: Request<Incoming>) -> Request<Incoming> {
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    let uri =
        Uri::builder().scheme("http").authority(format!("127.0.0.1:{upstream}")).path_and_query(path).build();
    *request.uri_mut() = uri.unwrap_or_default();
    request.headers_mut().remove(HOST);
    request
}

//! The lower bound of an HTTP service in Rust: parses the check and answers as for an admitted check, without deciding.
//!
//! `bare_axum PORT`. The answer is a constant: what tollgate spends beyond it is the cost of a decision.

use std::borrow::Cow;
use std::net::Ipv4Addr;

use anyhow::{Context, Result};
use axum::Router;
use axum::body::Bytes;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use serde::Deserialize;
use tokio::net::TcpListener;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const ADMITTED: &str = concat!(
    r#"{"allowed":true,"limit":1000000,"remaining":999999,"capacity":1000000,"window":"1m","#,
    r#""reset_at":1640000000,"strategy":"token_bucket","rule":"default"}"#
);

#[derive(Deserialize)]
struct Check<'a> {
    #[serde(borrow)]
    user_id: Cow<'a, str>,
    #[serde(borrow)]
    endpoint: Cow<'a, str>,
}

#[tokio::main]
async fn main() -> Result<()> {
    let port: u16 = std::env::args().nth(1).context("usage: bare_axum PORT")?.parse()?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
    axum::serve(listener, Router::new().route("/v1/rate-limit/check", post(check))).await?;
    Ok(())
}

async fn check(body: Bytes) -> Response {
    match serde_json::from_slice::<Check<'_>>(&body) {
        Ok(check) if !check.user_id.is_empty() && !check.endpoint.is_empty() => admitted().into_response(),
        _ => StatusCode::BAD_REQUEST.into_response(),
    }
}

fn admitted() -> impl IntoResponse {
    let headers = [
        ("content-type", "application/json"),
        ("x-ratelimit-limit", "1000000"),
        ("x-ratelimit-remaining", "999999"),
        ("x-ratelimit-reset", "1640000000"),
        ("x-ratelimit-strategy", "token_bucket"),
        ("cache-control", "no-store"),
        ("content-security-policy", "frame-ancestors 'none'"),
        ("x-request-id", "req_0199a3f27c1e7b4a"),
        ("x-content-type-options", "nosniff"),
    ];
    (headers.map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))), ADMITTED)
}

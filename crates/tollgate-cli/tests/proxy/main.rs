//! The reverse proxy in front of upstreams that record what they get.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]
#![allow(clippy::unnecessary_debug_formatting, reason = "paths are written as TOML strings")]

mod bodies;
mod disconnects;
mod enforcement;
mod failures;
mod gateway;
mod grpc;
#[path = "../service/harness.rs"]
#[allow(dead_code, reason = "shared with the service tests, which use more of it")]
mod harness;
mod headers;
mod http2;
mod http2_attacks;
#[path = "../service/http2_floods.rs"]
#[allow(dead_code, clippy::print_stdout, reason = "shared with the service tests, which use more of it")]
mod http2_floods;
mod identity;
mod idle_connections;
mod paths;
mod refunds;
mod reloads;
mod shutdown;
mod smuggling;
mod spoofing;
mod timeouts;
mod tls;
mod tls_client;
mod trailers;
mod upgrades;
mod upstream;
mod upstream_tls;
mod web_servers;

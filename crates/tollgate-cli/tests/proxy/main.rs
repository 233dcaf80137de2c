//! The reverse proxy in front of upstreams that record what they get.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod bodies;
mod enforcement;
mod failures;
mod gateway;
#[path = "../service/harness.rs"]
#[allow(dead_code, reason = "shared with the service tests, which use more of it")]
mod harness;
mod headers;
mod http2;
mod identity;
mod idle_connections;
mod paths;
mod refunds;
mod reloads;
mod shutdown;
mod smuggling;
mod tls;
mod upgrades;
mod upstream;

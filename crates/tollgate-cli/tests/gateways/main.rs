//! Gateways that ask tollgate: nginx and Caddy with the configurations of docs/gateways.md, the others by the requests they send.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod caddy;
mod contracts;
mod delays;
#[path = "../service/harness.rs"]
#[allow(dead_code, reason = "shared with the service tests, which use more of it")]
mod harness;
mod logins;
mod nginx;
mod setup;
mod tokens;

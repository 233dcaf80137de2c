//! The commands against a service behind TLS: nginx with test certificates.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]
#![allow(clippy::unnecessary_debug_formatting)] // quotes paths for TOML

mod client_certificates;
#[path = "../service/harness.rs"]
#[allow(dead_code, reason = "shared with the service tests, which use more of it")]
mod harness;
mod listener;
mod plain_http;
mod renewal;
#[path = "../support/mod.rs"]
mod support;
mod tls_service;
mod tls_setup;
mod trust;

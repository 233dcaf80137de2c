//! The commands and a service behind TLS: a real nginx with certificates made for the test.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod clients;
#[path = "../common/mod.rs"]
mod common;
#[path = "../service/harness.rs"]
#[allow(dead_code, reason = "shared with the tests of the service, which use more of it")]
mod harness;
mod ingress;
mod plain;
mod trust;

//! The admin commands against a running service.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod apply;
mod cli_runner;
mod explanations;
#[path = "../service/harness.rs"]
#[allow(dead_code, reason = "shared with the service tests, which use more of it")]
mod harness;
mod items;
mod keys;
mod migrate;
mod operations;
#[path = "../support/record_rows.rs"]
mod record_rows;
mod records;
#[path = "../support/mod.rs"]
mod support;
mod width;

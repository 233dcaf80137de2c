//! The commands for operators against the real service: what they change is what it then does.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod apply;
#[path = "../common/mod.rs"]
mod common;
#[path = "../service/harness.rs"]
#[allow(dead_code, reason = "shared with the tests of the service, which use more of it")]
mod harness;
mod items;
mod keys;
mod migrate;
mod operator;

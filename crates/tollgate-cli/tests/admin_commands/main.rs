//! The admin commands against a mock server.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod apply;
mod audit;
mod confirmation;
mod connection;
mod help;
mod keys;
mod quotas;
mod rules;
#[path = "../support/mod.rs"]
mod support;
mod tiers;
mod users;

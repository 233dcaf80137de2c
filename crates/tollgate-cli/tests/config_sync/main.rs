//! Config sync end to end: real binaries and databases.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

#[path = "../service/harness.rs"]
#[allow(dead_code, reason = "each test binary uses a part of it")]
mod harness;

mod auth_throttle;
mod database;
mod durable;
mod keys;
mod outages;
mod propagation;
mod rules;
mod secrets;
mod usage;

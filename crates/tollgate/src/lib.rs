//! The library that decides.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod endpoint;
pub mod method;
pub mod rules;

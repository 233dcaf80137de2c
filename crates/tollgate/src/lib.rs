//! The library that decides.
#![cfg_attr(test, allow(clippy::unwrap_used))]

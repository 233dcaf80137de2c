//! The whole service, as its users meet it: the real binary, real sockets.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod attacks;
mod batch;
mod callers;
mod checks;
mod commands;
mod errors;
mod harness;
mod lifecycle;
mod management;

//! The whole service, as its users meet it: the real binary, real sockets.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, missing_docs)]

mod admin;
mod attacks;
mod batch;
mod browser;
mod caller_limits;
mod callers;
mod checks;
mod commands;
mod description;
mod docs;
mod ending;
mod errors;
mod harness;
mod heads;
mod http2;
mod keys;
mod lifecycle;
mod logs;
mod looks;
mod management;
mod matrix;
mod pages;
mod slow;
mod spellings;
mod transfer;

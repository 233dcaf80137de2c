//! Tests of the running service: the real binary and real sockets.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, missing_docs)]

mod access_matrix;
mod admin;
mod attacks;
mod batch;
mod browser;
mod caller_limits;
mod checks;
mod cli;
mod client_address;
mod docs_page;
mod docs_requests;
mod errors;
mod harness;
mod hosts;
mod http1;
mod http2;
mod http2_floods;
mod import_export;
mod keys;
mod lifecycle;
mod logs;
mod metrics;
mod normalization;
mod openapi;
mod other_schemas;
mod pagination;
#[path = "../support/record_rows.rs"]
mod record_rows;
mod records;
mod schemathesis;
mod scopes;
mod shutdown;
mod slow_clients;
mod status;
mod tenant_matrix;
mod token_issuers;
mod top;
mod unread_responses;
mod user_limits;
mod warnings;

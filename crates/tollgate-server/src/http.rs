//! The REST surface: the way in and out of every request.
//!
//! 1. `router` finds the route, checks Host and Origin, authenticates the caller and charges its own limit.
//! 2. The handler in `api` or `admin` parses, evaluates and renders.
//! 3. `respond` turns panics and errors into responses, adds the common headers, counts and logs.

pub(crate) mod access_log;
mod call;
mod deprecation;
pub(crate) mod error;
mod health;
pub(crate) mod hosts;
pub(crate) mod json;
mod openapi;
pub(crate) mod request_id;
mod respond;
pub(crate) mod response;
mod router;
pub(crate) mod routes;

pub(crate) use self::call::{Call, read_body};
pub(crate) use self::hosts::require_one_host;
pub(crate) use self::router::{RestService, client_address};
use crate::listener::Payload;

/// A response.
pub(crate) type Response = http::Response<Payload>;

/// The largest body of requests other than batches and imports.
pub(crate) const CHECK_BYTES_MAX: usize = 64 << 10;
/// The largest body of a batch: a thousand checks.
pub(crate) const BATCH_BYTES_MAX: usize = 1 << 20;

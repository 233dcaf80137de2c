//! The tollgate service: REST API, administration, configuration and records around the library.
//!
//! The modules are listed in the order in which a request passes them; the subsystems beside the request path follow.

// The request path.
mod admin;
mod api; // REST handlers for callers: check, batch-check, status, explain, config, reset
mod auth; // caller keys, scopes, failed-auth throttle, caller limits
mod check; // protocol-neutral: one check, its overrides, idempotency
mod http; // routing, request ids, JSON, error envelope, OpenAPI
pub mod listener; // sockets, connection limits, draining // REST handlers for operators: rules, tiers, quotas, keys, blocks, penalties, audit

// Beside the request path.
mod app;
pub mod config; // settings, reload, config sync with the database
mod counters;
mod fleet; // this node among others: membership, reconciliation after an outage
mod records; // metrics, usage, traffic sample
pub mod runtime; // start, background tasks, data directory, clock, logging, shutdown

#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;

pub use self::admin::import::check_import;

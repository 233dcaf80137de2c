//! The tollgate service: REST API, administration, configuration and records around the library.
//!
//! The modules are listed in the order in which a request passes them; the subsystems beside the request path follow.

// Sockets, connection limits, draining.
pub mod listener;

// Routing, request ids, JSON, error envelope, OpenAPI.
mod http;

// Keys and scopes of callers, failed-auth throttle, caller limits, tokens of clients.
mod auth;

// REST handlers for callers: check, batch-check, status, explain, config, reset.
mod api;

// REST handlers for operators: rules, tiers, quotas, keys, blocks, penalties, audit, import, export.
mod admin;

// Requests of clients behind a gateway: their identity, and forward-auth.
mod gateways;

// Protocol-neutral: a CheckRequest becomes a Decision; batches, idempotency.
mod check;

// What is recorded of decisions: metrics, usage, traffic sample.
mod records;

// Beside the request path: settings, reload, config sync with the database.
pub mod config;

// This node among others: membership, reconciliation after an outage.
mod fleet;

// The parts of the running service.
mod app;

// Start, background tasks, data directory, clock, logging, shutdown.
pub mod runtime;

#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;

#[cfg(feature = "bench")]
pub mod bench;

pub use self::admin::body::document_values;
pub use self::admin::import::check_import;
pub use self::admin::rules::rule_views;

/// The limiter of this service.
type ServiceLimiter = tollgate::Limiter<tollgate_stores::counters::Counters, records::Records>;

//! The service around the library: REST API, settings, reload, metrics.
//!
//! The modules stand in the order of a request's way: bytes arrive ([`transport`]), the surface reads them (`rest`,
//! `json`, `facts`, `auth`), the library decides (`app`), and the answer goes out (`answer`, `error`). [`serve`] puts
//! them together, from [`settings`] to the end of the process.

pub mod settings;

pub mod serve;

pub mod transport;

mod auth;
mod brake;
mod callers;
mod facts;
mod fleet;
mod json;
mod keys;
mod rest;

mod app;
mod catalog;
mod counters;
mod idempotency;
mod recent;
mod recovery;

mod answer;
mod error;
mod metrics;
mod unsaved;
mod usage;

pub mod clock;
pub mod data_dir;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod logging;
pub mod reload;
pub mod scope;

pub use self::rest::check_import;

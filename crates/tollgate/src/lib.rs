//! The decision engine of tollgate: decides for each request to an API whether it may pass now.
//!
//! [`Limiter::check`] is the entry point. The library opens no socket, reads no clock and needs no runtime: time is an
//! argument. The modules below are listed in the order in which a request passes them.

#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

#[macro_use]
mod named_enum; // enums with a name per value

pub mod config; // TOML or JSON to validated rules; every error with line and key

pub mod endpoint; // request paths in a normal form
pub mod identity; // ids, client addresses, normalization, subject hashing
pub mod method; // HTTP methods

pub mod accounts; // users, API keys and blocks
pub mod rules; // rules, overrides and their evaluation: which limits apply

pub mod algorithms; // pure arithmetic of each algorithm
pub mod calendar; // day, week and month windows
pub mod counters; // the counter store trait, counters in memory, the fallback
pub mod limit; // a validated limit
pub mod penalties; // cooldowns for clients that keep exceeding limits

mod limiter; // the steps of one decision

pub mod decision; // what the client is answered
pub mod explain; // why a decision is what it is
pub mod headers; // rate-limit response headers
pub mod inspect; // what the counters of a client hold
mod receipt; // what a refund needs once the response is known
pub mod record; // decisions for metrics and usage

mod mutex; // the mutex of the memory counters, or that of loom
pub mod snapshot; // checksummed streams of counter and account snapshots
mod time;

pub use self::accounts::Accounts;
pub use self::counters::memory::MemoryCounters;
pub use self::decision::{Answer, Decision, Refusal};
pub use self::endpoint::Endpoint;
pub use self::identity::{ApiKey, Client, Id, Request, Seed};
pub use self::limit::{Algorithm, Limit, LimitError, LimitOverride, Window};
pub use self::limiter::{CarryOver, Limiter, LimiterSnapshot, Reset, Settlement};
pub use self::method::Method;
pub use self::receipt::Receipt;
pub use self::rules::{Rule, RuleSet};
pub use self::time::{Span, Timestamp};

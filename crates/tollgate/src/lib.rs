//! Decides, for every request to an API, whether it may pass now.
//!
//! The modules stand in the order of a request's way: text becomes checked types ([`config`]), the request's facts say
//! who is asking ([`identity`]), what is known of them completes the facts ([`accounts`]), rules say which limits
//! apply ([`rules`]), the counters are charged together or not at all ([`algorithms`], [`counters`]), and that makes
//! the [`decision`], its [`headers`] and its [`record`].
//! [`Limiter`] is the way itself.
//!
//! The library reads no clock, opens no socket and knows no runtime: time is an argument.

pub mod config;

pub mod endpoint;
pub mod identity;
pub mod method;

pub mod accounts;
pub mod rules;

pub mod algorithms;
pub mod calendar;
pub mod counters;
pub mod limit;
pub mod penalties;

mod limiter;

pub mod decision;
pub mod explain;
pub mod headers;
pub mod inspect;
pub mod record;

pub mod snapshot;
mod sync;
mod time;

pub use self::accounts::Accounts;
pub use self::counters::memory::MemoryCounters;
pub use self::decision::{Answer, Decision, Refusal};
pub use self::endpoint::Endpoint;
pub use self::identity::{ApiKey, Client, Id, Request, Seed};
pub use self::limit::{Algorithm, Limit, LimitError, LimitOverride, Window};
pub use self::limiter::{Limiter, LimiterSnapshot, Reset};
pub use self::method::Method;
pub use self::rules::{Rule, RuleSet};
pub use self::time::{Span, Timestamp};

//! Connections to Redis servers: batching, dialing, the circuit breaker, and the meaning of errors.

pub(crate) mod batching;
mod breaker;
mod call;
pub(crate) mod dial;
pub(crate) mod error;
pub(crate) mod random;
pub(crate) mod server;

//! Connections to Redis servers: batching, dialing, the circuit breaker, and what errors mean.

pub(crate) mod batching;
mod breaker;
mod call;
pub(crate) mod dial;
pub(crate) mod error;
pub(crate) mod server;

//! Counters that many nodes share.
//!
//! [`redis::RedisCounters`] keeps them on Redis or Valkey and decides there, in one script call, so that two nodes
//! cannot both take the last unit.

pub mod redis;

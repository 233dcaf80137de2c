//! Stores that several nodes share.
//!
//! - [`redis::RedisCounters`]: counters on Redis or Valkey. Each decision is one script call, so two nodes cannot both take the
//!   last unit.
//! - [`counters::Counters`]: counters in memory or on Redis, as a node is configured.
//! - [`sql::Database`]: the configuration and its audit log in SQLite, PostgreSQL, MySQL or MariaDB. No check waits for it.

pub mod counters;
pub mod redis;
pub mod sql;

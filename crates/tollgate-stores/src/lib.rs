//! Stores that several nodes share.
//!
//! - [`redis::RedisCounters`]: counters on Redis or Valkey. Each decision is one script call, so two nodes cannot both take the
//!   last unit.
//! - [`sql::Database`]: the configuration and its audit log in SQLite, PostgreSQL, MySQL or MariaDB. No check waits for it.

pub mod redis;
pub mod sql;

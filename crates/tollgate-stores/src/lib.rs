//! What many nodes share: counters, and what people configure.
//!
//! [`redis::RedisCounters`] keeps them on Redis or Valkey and decides there, in one script call, so that two nodes
//! cannot both take the last unit.
//!
//! [`sql::Database`] keeps the configuration, and who changed it, in SQLite, PostgreSQL, MySQL or
//! MariaDB. No request waits for it.

pub mod redis;
pub mod sql;

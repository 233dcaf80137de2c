//! Storage that the nodes of a fleet share.
//!
//! - [`redis::RedisCounters`]: counters on Redis or Valkey. A decision is one script call on the server, so two nodes
//!   cannot both take the last unit.
//! - [`sql::Database`]: configuration and its audit log in SQLite, PostgreSQL, MySQL or MariaDB. No request waits for it.

pub mod redis;
pub mod sql;

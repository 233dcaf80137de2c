//! Stores that several nodes share.
//!
//! - [`redis::RedisCounters`]: counters on Redis or Valkey. Each decision is one script call, so two nodes cannot both take the
//!   last unit.
//! - [`archive`]: records beyond their retention, as Parquet files in a folder or an object store.
//! - [`backup`]: files of backups in a bucket.
//! - [`record_files`]: records as Parquet files that nodes write without a database.
//! - [`counters::Counters`]: counters in memory or on Redis, as a node is configured.
//! - [`sql::Database`]: the configuration and its audit log in SQLite, PostgreSQL, MySQL or MariaDB. No check waits for it.

pub mod archive;
pub mod backup;
pub mod counters;
pub mod record_files;
pub mod redis;
pub mod sql;

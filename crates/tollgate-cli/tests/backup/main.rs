//! Restore drills: real servers are backed up, lost and restored with the commands and scripts that docs/backup.md names.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

#[path = "../service/harness.rs"]
#[allow(dead_code, reason = "each test binary uses a part of it")]
mod harness;

#[path = "../records/load.rs"]
#[allow(dead_code, reason = "each test binary uses a part of it")]
mod load;

#[path = "../support/small_disk.rs"]
mod small_disk;

#[path = "../records/stored.rs"]
#[allow(dead_code, reason = "each test binary uses a part of it")]
mod stored;

mod commands;
mod deployment;
mod failures;
mod mariadb;
mod node;
mod postgres;
mod redis;
mod scripts;

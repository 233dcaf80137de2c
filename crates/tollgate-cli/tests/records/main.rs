//! Records end to end: real binaries and databases, with exact accounting.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]
#![allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_wrap,
    clippy::float_cmp,
    reason = "counts are small"
)]
#![allow(clippy::print_stdout, reason = "shows what was measured")]

#[path = "../service/harness.rs"]
#[allow(dead_code, reason = "each test binary uses a part of it")]
mod harness;

#[path = "../support/record_rows.rs"]
mod record_rows;

#[path = "../support/small_disk.rs"]
mod small_disk;

mod accounting;
mod archive;
mod crashes;
mod disk;
mod exports;
mod load;
mod outages;
mod parquet;
mod parquet_rows;
mod permissions;
mod stored;

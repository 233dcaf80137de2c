//! Shared by the drivers `rest`, `redis`, `sql`, `records`, `spool`, `parquet`, `tls`, `gateway`, `library` and `allocations`.

pub mod contenders;
pub mod frames;
pub mod http;
pub mod machine;
pub mod process;
pub mod report;
pub mod rules;
pub mod side_by_side;
pub mod wrk;

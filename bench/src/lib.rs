//! Shared by the drivers `rest`, `redis`, `sql`, `spool`, `library` and `allocations`.

pub mod contenders;
pub mod http;
pub mod machine;
pub mod process;
pub mod report;
pub mod rules;
pub mod wrk;

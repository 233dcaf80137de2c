//! What the drivers, `rest`, `library` and `allocations`, share.

pub mod contenders;
pub mod machine;
pub mod process;
pub mod report;
pub mod rules;
pub mod wrk;

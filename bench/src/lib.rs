//! What the two drivers, `rest` and `library`, share.

pub mod process;
pub mod report;
pub mod wrk;

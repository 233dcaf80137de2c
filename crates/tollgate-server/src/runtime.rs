//! The process: start, background tasks, data directory, backup, clock, logging, shutdown.

pub mod backup;
pub mod clock;
pub mod data_dir;
pub mod doctor;
pub mod logging;
pub mod serve;
mod signals;

//! The process: start, background tasks, data directory, clock, logging, shutdown.

pub mod clock;
pub mod data_dir;
pub mod doctor;
pub mod logging;
pub mod serve;
mod signals;

//! The service around the library: settings, sockets, the data directory and the way to run them together.

pub mod clock;
pub mod data_dir;
pub mod logging;
pub mod reload;
pub mod scope;
pub mod settings;
pub mod transport;

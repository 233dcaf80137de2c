//! Configuration: settings files, their reload, and the part that is kept in the database.

pub mod reload;
pub mod settings;
pub(crate) mod sync;

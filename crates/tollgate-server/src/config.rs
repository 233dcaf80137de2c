//! Configuration: the settings file and its reload, and the part in the database.

pub(crate) mod normalize;
pub(crate) mod override_record;
pub mod reload;
pub mod settings;
pub(crate) mod sync;

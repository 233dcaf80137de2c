//! Configuration: the settings file and its reload, and the part in the database.

pub(crate) mod normalize;
pub mod reload;
pub(crate) mod rule_json;
pub mod settings;
pub(crate) mod sync;

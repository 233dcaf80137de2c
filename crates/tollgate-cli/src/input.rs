//! What users supply: files, confirmations, expiry times, and the server to use.

pub(crate) mod confirm;
pub(crate) mod connection;
pub(crate) mod expiry;
pub(crate) mod import_file;
pub(crate) mod import_set;
pub(crate) mod item_file;
pub(crate) mod rule_file;

//! One module per command. Each sends its requests and prints the response.

pub(crate) mod audit;
pub(crate) mod check;
mod client_name;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod doctor;
pub(crate) mod explain;
pub(crate) mod init;
pub(crate) mod inspect;
mod items;
pub(crate) mod keys;
pub(crate) mod limits;
mod list;
pub(crate) mod man;
pub(crate) mod migrate;
pub(crate) mod penalties;
pub(crate) mod quotas;
pub(crate) mod reload;
pub(crate) mod request_args;
pub(crate) mod reset;
pub(crate) mod rules;
pub(crate) mod serve;
pub(crate) mod status;
pub(crate) mod tiers;
pub(crate) mod top;
pub(crate) mod users;

//! `/v1/admin`: the API of operators.
//!
//! Rules, tiers, quotas, keys and blocks share one handler per verb (`crud.rs`).

pub(crate) mod audit;
pub(crate) mod blocks;
pub(crate) mod body;
mod change;
pub(crate) mod counters;
pub(crate) mod crud;
mod definition;
pub(crate) mod dry_run;
pub(crate) mod export;
pub(crate) mod import;
pub(crate) mod key_rotation;
pub(crate) mod keys;
pub(crate) mod limits;
pub(crate) mod list_query;
pub(crate) mod page;
mod parse;
pub(crate) mod penalties;
mod preconditions;
pub(crate) mod quotas;
pub(crate) mod records;
pub(crate) mod reload;
pub(crate) mod rules;
mod schema;
pub(crate) mod tiers;
pub(crate) mod top;
pub(crate) mod upstreams;
pub(crate) mod view;
mod warnings;

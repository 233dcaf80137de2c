//! The commands for operators against canned answers: what is asked, what is made of the answer, and what is said when
//! it is no.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod apply;
mod audit;
mod canned;
#[path = "../common/mod.rs"]
mod common;
mod confirmation;
mod connection;
mod help;
mod keys;
mod quotas;
mod rules;
mod tiers;
mod users;

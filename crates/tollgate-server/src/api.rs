//! REST handlers for callers.

pub(crate) mod batch_check;
pub(crate) mod check;
pub(crate) mod config;
pub(crate) mod explain;
pub(crate) mod reset;
pub(crate) mod status;

//! REST handlers for callers. Each parses its request, asks a `Checker` or changes an override, and renders the result.

pub(crate) mod batch_check;
pub(crate) mod check;
pub(crate) mod config;
pub(crate) mod decision;
pub(crate) mod explain;
pub(crate) mod reset;
pub(crate) mod status;

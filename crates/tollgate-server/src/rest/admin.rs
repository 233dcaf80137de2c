//! `/v1/admin`: for operators.

pub(super) mod rules;

//! Which limits apply to a request.

pub mod pattern;

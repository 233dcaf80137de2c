//! One check, whatever the protocol.

pub(crate) mod idempotency;
pub(crate) mod request;

//! Requests of clients as gateways see them: who sends them, and whether they may pass.
//!
//! 1. `original_request` finds the request that a gateway asks about.
//! 2. `identify` names its client by token, API key, login name and address; `login` reads the name from the body.
//! 3. `forward_auth` and `proxy` decide with the same [`Checker`](crate::check::Checker) as a check: the one answers in the gateway's terms, the
//!    other forwards the request.

pub(crate) mod forward_auth;
mod identify;
pub(crate) mod login;
mod original_request;
pub(crate) mod proxy;
pub(crate) mod untrusted_log;

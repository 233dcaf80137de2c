//! Requests of clients as gateways see them: who sends them, and whether they may pass.
//!
//! 1. `original_request` finds the request that a gateway asks about.
//! 2. `identify` names its client by token, API key, login name and address; `login` reads the name from the body.
//! 3. `forward_auth` decides with the same [`Checker`](crate::check::Checker) as a check and answers in the gateway's terms.

pub(crate) mod forward_auth;
mod identify;
mod login;
mod original_request;

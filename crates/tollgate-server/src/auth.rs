//! Authentication of callers: API keys, scopes, backoff after failures, and limits on callers. Tokens of clients.

pub(crate) mod alerts;
pub(crate) mod api_keys;
mod authenticator;
pub(crate) mod caller_limits;
pub(crate) mod client_certificate;
mod error;
pub(crate) mod jwt;
pub(crate) mod scope;
pub(crate) mod throttle;

pub(crate) use self::authenticator::{Access, AuthParts, Authenticator, Caller, Presented};
pub(crate) use self::client_certificate::ClientCertificate;
pub(crate) use self::error::AuthError;

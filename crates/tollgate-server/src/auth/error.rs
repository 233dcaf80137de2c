//! Why a caller is refused. Each protocol maps these to its own codes: REST in `http/error.rs`.

use std::net::IpAddr;

use thiserror::Error;
use tollgate::Span;

use super::api_keys::KeyRefusal;
use super::scope::Scope;

/// Why a caller is refused. Nothing was charged to its clients.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum AuthError {
    /// The route requires a key.
    #[error(
        "API key required: send Authorization: Bearer … (the admin key is in admin.key of the data directory)"
    )]
    KeyMissing,
    /// The route requires a caller, and no caller of the settings has this certificate.
    #[error(
        "no caller of [[auth.callers]] has the client certificate {0}; name it there, or send an API key"
    )]
    CertificateUnknown(Box<str>),
    /// The certificate has expired since the connection was opened.
    #[error("the client certificate {0} has expired: connect again with a new one")]
    CertificateExpired(Box<str>),
    /// The key was sent in another form.
    #[error("send the key as Authorization: Bearer …")]
    NotBearer,
    /// The key is unknown, expired or revoked.
    #[error("{}", match .0 {
        KeyRefusal::Unknown => "unknown API key",
        KeyRefusal::Expired => "the API key has expired",
        KeyRefusal::Revoked => "the API key was revoked",
    })]
    KeyRefused(KeyRefusal),
    /// Keys of the database are unknown until it has been read; retry.
    #[error("API keys are not loaded yet: the database has not been read; see /readyz for the cause")]
    KeysNotLoaded,
    /// The key belongs to a limited client.
    #[error("the API key has no scopes: it identifies a limited client and cannot call the API")]
    NoScopes,
    /// The key lacks the scope of the route.
    #[error("the API key lacks the scope {0}")]
    ScopeMissing(Scope),
    /// The operation concerns all tenants.
    #[error("the key is bound to tenant {0:?}; this operation concerns all tenants and needs an unbound key")]
    TenantBound(Box<str>),
    /// Only a trusted proxy may speak for clients.
    #[error(
        "forward-auth is only for gateways that are trusted to name clients: add {0} to identity.trusted_proxies"
    )]
    UntrustedProxy(IpAddr),
    /// The address is in backoff after invalid keys.
    #[error("too many invalid API keys from this address; retry after Retry-After")]
    Throttled { wait: Span },
    /// The caller exceeded its own limit.
    #[error(
        "the caller exceeded its own limit ([callers]), not a limit of its clients; nothing was charged, \
         retry after Retry-After"
    )]
    CallerLimited { wait: Span },
    /// The batch is larger than the caller's own limit ever admits.
    #[error("must have at most {most} checks (limit of the caller, [callers]), not {checks}")]
    BatchTooLarge { checks: u32, most: u32 },
}

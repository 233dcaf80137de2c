//! Why a check gets no decision. Each protocol maps these to its own codes: REST in `http/error.rs`.

use std::borrow::Cow;

use thiserror::Error;
use tollgate::Decision;
use tollgate::counters::StoreError;

use crate::auth::api_keys::KeyRefusal;

/// Why a check gets no decision. Nothing was charged.
#[derive(Debug, Error)]
pub(crate) enum CheckError {
    /// A field is missing or invalid; the caller must correct it.
    #[error("{field}: {reason}")]
    InvalidField { field: &'static str, reason: Cow<'static, str> },
    /// The client's API key is unknown, expired or revoked; the client must be refused.
    #[error("{}", .0.as_str())]
    ApiKeyRefused(KeyRefusal),
    /// The caller is bound to one tenant and asked about another.
    #[error("this key is bound to tenant {bound_to:?}; the request names another tenant")]
    TenantMismatch { bound_to: Box<str> },
    /// A client has a token of one tenant and an API key of another; it must send only one of them.
    #[error("the client's token and its API key belong to different tenants")]
    KeyOfOtherTenant,
    /// An anonymous caller sent a limit with its check; it needs a key.
    #[error(
        "limit, window_seconds and strategy require a key with scope override: send Authorization: Bearer <key>"
    )]
    OverrideNeedsKey,
    /// The caller sent a limit with its check and its key lacks the scope.
    #[error("the key does not have scope override")]
    OverrideForbidden,
    /// The counters are unreachable, or reject the service.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A rule refuses while the counters are unreachable or reject the service.
    #[error("the counters are unreachable")]
    Unavailable(Box<Decision>),
    /// The configured database was never read, so blocks, API keys and rules are unknown; retry later.
    #[error(
        "this node has never read its configuration from the database, and decides nothing before; /readyz shows the reason"
    )]
    ConfigurationUnread,
    /// The idempotency key was used with another body.
    #[error("already used with a different body in the last five minutes")]
    IdempotencyKeyReused,
    /// The first batch with this idempotency key is not finished; retry later.
    #[error("the first batch with this key is still in progress")]
    IdempotencyInProgress,
}

impl CheckError {
    /// The field is invalid for this reason.
    pub(crate) fn invalid(field: &'static str, reason: impl Into<Cow<'static, str>>) -> Self {
        CheckError::InvalidField { field, reason: reason.into() }
    }
}

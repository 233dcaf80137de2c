//! One check: as a protocol delivers it, and resolved for the limiter.

use std::borrow::Cow;
use std::net::IpAddr;

use tollgate::{Id, Limit, Request};

/// One check as text, not yet validated. At least one of `user_id`, `api_key`, `ip`, `tenant` and `login` must be present.
#[derive(Clone, Debug, Default)]
pub(crate) struct CheckRequest<'a> {
    pub(crate) endpoint: &'a str,
    pub(crate) method: Option<&'a str>,
    pub(crate) user_id: Option<&'a str>,
    /// The API key of the limited client.
    pub(crate) api_key: Option<&'a str>,
    pub(crate) ip: Option<SentIp<'a>>,
    pub(crate) tenant: Option<&'a str>,
    pub(crate) tier: Option<&'a str>,
    pub(crate) login: Option<&'a str>,
    /// Whether the client itself sent the API key: then one that is not known is unverified.
    pub(crate) from_client: bool,
    /// 1 if absent.
    pub(crate) cost: Option<u32>,
    pub(crate) descriptors: &'a [(Cow<'a, str>, Cow<'a, str>)],
    /// Overrides the algorithm, limit or window of the limit in force, for this check only.
    pub(crate) strategy: Option<&'a str>,
    pub(crate) limit: Option<u32>,
    pub(crate) window_seconds: Option<u32>,
}

/// The address of a client.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum SentIp<'a> {
    /// As a caller wrote it.
    Text(&'a str),
    /// That of a connection.
    Address(IpAddr),
}

/// A request with valid fields, a verified API key and a complete override.
pub(crate) struct ResolvedRequest<'r> {
    pub(super) request: Request<'r>,
    pub(super) descriptors: Vec<(Id<'r>, Id<'r>)>,
    pub(super) limit: Option<Limit>,
}

impl ResolvedRequest<'_> {
    /// The request as the limiter takes it.
    pub(crate) fn request(&self) -> Request<'_> {
        Request {
            descriptors: &self.descriptors,
            limit_override: self.limit.as_ref(),
            ..self.request.clone()
        }
    }
}

//! The facts of one check as a protocol delivers them: text, not yet validated.

use std::borrow::Cow;

/// One check. At least one of `user_id`, `api_key`, `ip`, `tenant` and `login` must be present.
#[derive(Clone, Debug, Default)]
pub(crate) struct CheckRequest<'a> {
    pub(crate) endpoint: &'a str,
    pub(crate) method: Option<&'a str>,
    pub(crate) user_id: Option<&'a str>,
    /// The API key of the limited client.
    pub(crate) api_key: Option<&'a str>,
    pub(crate) ip: Option<&'a str>,
    pub(crate) tenant: Option<&'a str>,
    pub(crate) tier: Option<&'a str>,
    pub(crate) login: Option<&'a str>,
    /// 1 if absent.
    pub(crate) cost: Option<u32>,
    pub(crate) descriptors: &'a [(Cow<'a, str>, Cow<'a, str>)],
    /// Overrides the algorithm, limit or window of the limit in force, for this check only.
    pub(crate) strategy: Option<&'a str>,
    pub(crate) limit: Option<u32>,
    pub(crate) window_seconds: Option<u32>,
}

//! Limits set for one user on one endpoint, in place of those of the matching rule.

use std::sync::Arc;

use hashbrown::{Equivalent, HashMap};
use serde::{Deserialize, Serialize};

use super::rule::{RuleLimit, counter_id};
use crate::counters::CounterId;
use crate::endpoint::Endpoint;
use crate::identity::{Id, InTenant, Request};
use crate::limit::{Algorithm, Limit, Window};
use crate::time::{Span, Timestamp};

// The names that overrides are counted under. Rule names cannot start with `@`.

/// Limits set for a user and an endpoint.
pub(crate) const CONFIG_NAMESPACE: &str = "@config";
/// A limit sent with a check.
pub(crate) const CHECK_NAMESPACE: &str = "@check";
/// Limits set for an API key.
pub(crate) const KEY_NAMESPACE: &str = "@key";
/// Limits set for a user.
pub(crate) const QUOTA_NAMESPACE: &str = "@quota";

/// The override of one endpoint that applies to a request.
#[derive(Copy, Clone)]
pub(super) struct EndpointOverride<'a> {
    pub(super) namespace: &'static str,
    pub(super) counter: CounterId,
    pub(super) limit: &'a Limit,
}

impl<'a> EndpointOverride<'a> {
    /// A limit sent with a check.
    pub(super) fn of_check(limit: &'a Limit) -> Self {
        EndpointOverride { namespace: CHECK_NAMESPACE, counter: counter_id(CHECK_NAMESPACE, limit), limit }
    }
}

/// A limit for one user on one endpoint. Both must be normalized as the rule set normalizes requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "TimedLimit", into = "TimedLimit")]
pub struct Override {
    /// The tenant of the user.
    pub tenant: Option<Box<str>>,
    /// The user.
    pub user: Box<str>,
    /// The endpoint, in its normal form.
    pub endpoint: Box<str>,
    /// The limit.
    pub limit: RuleLimit,
    /// When it was set.
    pub updated_at: Timestamp,
}

impl Override {
    /// A limit for `user` on `endpoint`.
    pub fn new<'a>(
        user: impl Into<InTenant<'a, Id<'a>>>,
        endpoint: &Endpoint<'_>,
        limit: Limit,
        updated_at: Timestamp,
    ) -> Self {
        let InTenant { tenant, id } = user.into();
        Override {
            tenant: tenant.map(Into::into),
            user: id.as_str().into(),
            endpoint: endpoint.as_str().into(),
            limit: RuleLimit::new(CONFIG_NAMESPACE, limit),
            updated_at,
        }
    }

    /// The user inside its tenant.
    pub fn user(&self) -> InTenant<'_, &str> {
        InTenant::new(self.tenant.as_deref(), &self.user)
    }
}

/// A request to which the override of this user on this endpoint applies. `None` if either is not valid.
pub fn request_of<'a>(user: InTenant<'a, &'a str>, endpoint: &'a str) -> Option<Request<'a>> {
    let tenant = user.tenant.map(Id::parse).transpose().ok()?;
    let endpoint = Endpoint::parse(endpoint).ok()?;
    Some(Request { user: Some(Id::parse(user.id).ok()?), tenant, ..Request::new(endpoint) })
}

/// The stored form of an [`Override`], not yet validated: a database row, or part of a JSON document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserEndpointLimit {
    /// The tenant of the user: 1 to 256 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// The user: 1 to 256 bytes.
    pub user: String,
    /// The endpoint in its normal form: 1 to 2048 bytes.
    pub endpoint: String,
    /// Requests per window.
    pub requests: u32,
    /// The window in microseconds.
    pub window_micros: u64,
    /// The name of the algorithm.
    pub algorithm: String,
    /// The bucket size, if it is not `requests`.
    pub burst: Option<u32>,
}

impl UserEndpointLimit {
    /// Validates the limit; `None` if a field is invalid.
    pub fn to_override(&self, updated_at: Timestamp) -> Option<Override> {
        let window = Window::Length(Span::from_micros(self.window_micros));
        let algorithm = Algorithm::parse(&self.algorithm)?;
        let limit = Limit::with_options(algorithm, self.requests, window, self.burst, None).ok()?;
        let (user, endpoint) = (Id::parse(&self.user).ok()?, Endpoint::parse(&self.endpoint).ok()?);
        let tenant = self.tenant.as_deref().map(Id::parse).transpose().ok()?;
        let user = InTenant::new(tenant.map(Id::as_str), user);
        Some(Override::new(user, &endpoint, limit, updated_at))
    }
}

impl From<&Override> for UserEndpointLimit {
    fn from(set: &Override) -> Self {
        let limit = &set.limit.limit;
        UserEndpointLimit {
            tenant: set.tenant.as_deref().map(str::to_owned),
            user: set.user.to_string(),
            endpoint: set.endpoint.to_string(),
            requests: limit.requests(),
            window_micros: limit.window_length().as_micros(),
            algorithm: limit.algorithm().as_str().to_owned(),
            burst: limit.burst(),
        }
    }
}

/// The JSON form of an [`Override`].
#[derive(Serialize, Deserialize)]
struct TimedLimit {
    #[serde(flatten)]
    limit: UserEndpointLimit,
    updated_at_micros: u64,
}

impl From<Override> for TimedLimit {
    fn from(set: Override) -> Self {
        TimedLimit { limit: (&set).into(), updated_at_micros: set.updated_at.as_micros() }
    }
}

impl TryFrom<TimedLimit> for Override {
    type Error = &'static str;

    fn try_from(stored: TimedLimit) -> Result<Self, Self::Error> {
        let updated_at = Timestamp::from_micros(stored.updated_at_micros);
        stored.limit.to_override(updated_at).ok_or("not a valid limit of a user on an endpoint")
    }
}

/// All overrides, by user and endpoint. Immutable: a change returns the next generation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides(HashMap<OverrideKey, Arc<Override>>);

/// Tenant, user and endpoint.
type OverrideKey = (Option<Box<str>>, Box<str>, Box<str>);

/// A user and an endpoint, to look up an override without copying them.
#[derive(Hash)]
struct UserEndpoint<'a>(Option<&'a str>, &'a str, &'a str);

impl Equivalent<OverrideKey> for UserEndpoint<'_> {
    fn equivalent(&self, (tenant, user, endpoint): &OverrideKey) -> bool {
        self.0 == tenant.as_deref() && *self.1 == **user && *self.2 == **endpoint
    }
}

impl Overrides {
    /// The number of overrides.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The override of a user on an endpoint.
    pub fn get<'a>(
        &self,
        user: impl Into<InTenant<'a, &'a str>>,
        endpoint: &'a str,
    ) -> Option<&Arc<Override>> {
        let InTenant { tenant, id } = user.into();
        self.0.get(&UserEndpoint(tenant, id, endpoint))
    }

    /// The override for a normalized request.
    pub(super) fn find(&self, request: &Request<'_>) -> Option<&Override> {
        // Without overrides, which is usual, the user is not hashed.
        if self.0.is_empty() {
            return None;
        }
        let user = InTenant::new(request.tenant.map(Id::as_str), request.user?.as_str());
        self.get(user, request.endpoint.as_str()).map(|found| &**found)
    }

    /// Adds or replaces one override.
    #[must_use]
    pub fn with(&self, new: Override) -> Self {
        let mut next = self.clone();
        next.insert(new);
        next
    }

    /// Removes one override; `None` if it does not exist.
    pub fn without<'a>(&self, user: impl Into<InTenant<'a, &'a str>>, endpoint: &'a str) -> Option<Self> {
        let user = user.into();
        self.get(user, endpoint)?;
        let mut next = self.clone();
        next.remove(user, endpoint);
        Some(next)
    }

    /// Removes and adds many overrides with a single copy.
    #[must_use]
    pub fn changed(&self, new: &[Override], removed: &[(InTenant<'_, &str>, &str)]) -> Self {
        let mut next = self.clone();
        for (user, endpoint) in removed {
            next.remove(*user, endpoint);
        }
        for each in new {
            next.insert(each.clone());
        }
        next
    }

    /// All overrides, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = &Override> {
        self.0.values().map(|each| &**each)
    }

    fn insert(&mut self, new: Override) {
        let key = (new.tenant.clone(), new.user.clone(), new.endpoint.clone());
        self.0.insert(key, Arc::new(new));
    }

    fn remove(&mut self, user: InTenant<'_, &str>, endpoint: &str) {
        self.0.remove(&UserEndpoint(user.tenant, user.id, endpoint));
    }
}

/// Of two overrides for the same user and endpoint, the one set later is kept.
impl FromIterator<Override> for Overrides {
    fn from_iter<I: IntoIterator<Item = Override>>(all: I) -> Self {
        let mut made = Overrides::default();
        for each in all {
            let known = made.get(each.user(), &each.endpoint);
            if known.is_none_or(|known| known.updated_at <= each.updated_at) {
                made.insert(each);
            }
        }
        made
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::{Algorithm, Window};
    use crate::time::Span;

    fn limit_for(user: &str, endpoint: &str, requests: u32) -> Override {
        let limit = Limit::new(Algorithm::TokenBucket, requests, Window::Length(Span::from_secs(60)));
        let (user, endpoint) = (Id::parse(user).unwrap(), Endpoint::parse(endpoint).unwrap());
        Override::new(user, &endpoint, limit.unwrap(), Timestamp::from_secs(1))
    }

    #[test]
    fn bulk_change_equals_single_changes() {
        let all = [limit_for("a", "/x", 1), limit_for("a", "/y", 2), limit_for("b", "/x", 3)];
        let before: Overrides = all.into_iter().collect();
        let (new, other) = (limit_for("a", "/y", 4), limit_for("c", "/z", 5));
        let expected = before.without("a", "/x").unwrap().without("b", "/x").unwrap();
        let expected = expected.with(new.clone()).with(other.clone());
        let removed =
            [("a", "/x"), ("b", "/x"), ("b", "/x"), ("d", "/")].map(|(user, at)| (InTenant::from(user), at));
        let changed = before.changed(&[new, other], &removed);
        assert_eq!(changed, expected);
        assert_eq!((changed.len(), before.len()), (2, 3));
    }
}

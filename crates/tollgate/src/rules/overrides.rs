//! Numbers set for one user on one endpoint, in place of those of the rule in force.

use std::sync::Arc;

use hashbrown::HashMap;

use super::rule::RuleLimit;
use crate::endpoint::Endpoint;
use crate::identity::{Id, Request};
use crate::limit::Limit;
use crate::time::Timestamp;

/// The name under which configured numbers are counted; no rule can have it.
pub(crate) const CONFIG_NAMESPACE: &str = "@config";
/// The name under which numbers of a single check are counted; no rule can have it.
pub(crate) const CHECK_NAMESPACE: &str = "@check";

/// The name under which a key's own numbers are counted; no rule can have it.
pub(crate) const KEY_NAMESPACE: &str = "@key";
/// The name under which a user's own numbers are counted; no rule can have it.
pub(crate) const QUOTA_NAMESPACE: &str = "@quota";

/// Numbers for one user on one endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    /// The user.
    pub user: Box<str>,
    /// The endpoint, in its normal form.
    pub endpoint: Box<str>,
    /// The numbers.
    pub limit: RuleLimit,
    /// When they were set.
    pub updated_at: Timestamp,
}

impl Override {
    /// Numbers for `user` on `endpoint`.
    pub fn new(user: Id<'_>, endpoint: &Endpoint<'_>, limit: Limit, updated_at: Timestamp) -> Self {
        Override {
            user: user.as_str().into(),
            endpoint: endpoint.as_str().into(),
            limit: RuleLimit::new(CONFIG_NAMESPACE, limit),
            updated_at,
        }
    }
}

/// All overrides, by user and then endpoint. Immutable: a change makes the next one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    by_user: HashMap<Box<str>, HashMap<Box<str>, Arc<Override>>>,
    count: usize,
}

impl Overrides {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The one for this user and endpoint.
    pub fn get(&self, user: &str, endpoint: &str) -> Option<&Arc<Override>> {
        self.by_user.get(user)?.get(endpoint)
    }

    /// The one for this request.
    pub(super) fn find(&self, request: &Request<'_>) -> Option<&Override> {
        // Usually there are none, and then no user is hashed.
        if self.count == 0 {
            return None;
        }
        self.get(request.user?.as_str(), request.endpoint.as_str()).map(|found| &**found)
    }

    /// The next set, with this one added or replaced.
    #[must_use]
    pub fn with(&self, new: Override) -> Self {
        let mut next = self.clone();
        next.add(new);
        next
    }

    /// The next set, with all of these added or replaced, and without those of these users and endpoints. Made at once:
    /// one by one each would copy all there are.
    #[must_use]
    pub fn changed(&self, new: &[Override], gone: &[(&str, &str)]) -> Self {
        let mut next = self.clone();
        for (user, endpoint) in gone {
            next.take_away(user, endpoint);
        }
        for each in new {
            next.add(each.clone());
        }
        next
    }

    fn add(&mut self, new: Override) {
        let endpoints = self.by_user.entry(new.user.clone()).or_default();
        if endpoints.insert(new.endpoint.clone(), Arc::new(new)).is_none() {
            self.count += 1;
        }
    }

    /// All of them, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &Override> {
        self.by_user.values().flat_map(HashMap::values).map(|each| &**each)
    }

    /// The next set, without the one for this user and endpoint; nothing if there is none.
    pub fn without(&self, user: &str, endpoint: &str) -> Option<Self> {
        self.get(user, endpoint)?;
        let mut next = self.clone();
        next.take_away(user, endpoint);
        Some(next)
    }

    fn take_away(&mut self, user: &str, endpoint: &str) {
        let Some(endpoints) = self.by_user.get_mut(user) else { return };
        if endpoints.remove(endpoint).is_some() {
            self.count -= 1;
        }
        if endpoints.is_empty() {
            self.by_user.remove(user);
        }
    }
}

/// Of two for the same user and endpoint the later counts. Made at once: [`Overrides::with`] copies all there are.
impl FromIterator<Override> for Overrides {
    fn from_iter<I: IntoIterator<Item = Override>>(all: I) -> Self {
        let mut made = Overrides::default();
        all.into_iter().for_each(|each| made.add(each));
        made
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::{Algorithm, Window};
    use crate::time::Span;

    fn numbers(user: &str, endpoint: &str, requests: u32) -> Override {
        let limit = Limit::new(Algorithm::TokenBucket, requests, Window::Length(Span::from_secs(60)));
        let (user, endpoint) = (Id::parse(user).unwrap(), Endpoint::parse(endpoint).unwrap());
        Override::new(user, &endpoint, limit.unwrap(), Timestamp::from_secs(1))
    }

    #[test]
    fn many_changed_at_once_are_the_same_as_one_by_one() {
        let all = [numbers("a", "/x", 1), numbers("a", "/y", 2), numbers("b", "/x", 3)];
        let before: Overrides = all.into_iter().collect();
        let (new, other) = (numbers("a", "/y", 4), numbers("c", "/z", 5));
        let expected = before.without("a", "/x").unwrap().without("b", "/x").unwrap();
        let expected = expected.with(new.clone()).with(other.clone());
        let changed = before.changed(&[new, other], &[("a", "/x"), ("b", "/x"), ("b", "/x"), ("d", "/")]);
        assert_eq!(changed, expected);
        assert_eq!((changed.len(), before.len()), (2, 3));
    }
}

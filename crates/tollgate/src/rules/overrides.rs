//! Numbers set for one user on one endpoint, in place of those of the rule in force.

use std::borrow::Cow;
use std::sync::Arc;

use hashbrown::HashMap;

use super::rule::RuleLimit;
use crate::endpoint::{Endpoint, casefold};
use crate::identity::{Id, NormalForm, Normalization, Request};
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
    /// The user, as written.
    pub user: Box<str>,
    /// The endpoint, as written, in its normal form.
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
///
/// Those of a [`RuleSet`](super::RuleSet) are known by user and endpoint as its [`Normalization`] reads them, and each remembers
/// how it was written. Of two that read the same one is known: the later one.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    by_user: HashMap<Box<str>, HashMap<Box<str>, Arc<Override>>>,
    count: usize,
    normalization: Option<Arc<Normalization>>,
}

impl PartialEq for Overrides {
    fn eq(&self, other: &Self) -> bool {
        self.by_user == other.by_user
    }
}

impl Eq for Overrides {}

impl Overrides {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The one for this user and endpoint, however they are spelled.
    pub fn get(&self, user: &str, endpoint: &str) -> Option<&Arc<Override>> {
        self.by_user.get(&*self.user(user))?.get(&*self.endpoint(endpoint))
    }

    /// The one for this request, which is read already.
    pub(super) fn find(&self, request: &Request<'_>) -> Option<&Override> {
        // Usually there are none, and then no user is hashed.
        if self.count == 0 {
            return None;
        }
        let endpoints = self.by_user.get(request.user?.as_str())?;
        endpoints.get(request.endpoint.as_str()).map(|found| &**found)
    }

    /// The same, known by what this spelling reads.
    pub(super) fn spelled(overrides: Arc<Self>, normalization: Option<&Arc<Normalization>>) -> Arc<Self> {
        if overrides.normalization.as_deref() == normalization.map(|normalization| &**normalization) {
            return overrides;
        }
        Arc::new(Overrides::of(normalization.cloned(), overrides.iter().cloned()))
    }

    /// All of these in place of those there are.
    #[must_use]
    pub fn replaced(&self, all: impl IntoIterator<Item = Override>) -> Self {
        Overrides::of(self.normalization.clone(), all)
    }

    fn of(normalization: Option<Arc<Normalization>>, all: impl IntoIterator<Item = Override>) -> Self {
        let mut made = Overrides { normalization, ..Overrides::default() };
        for each in all {
            // They come in no order: what was set last counts.
            let known = made.get(&each.user, &each.endpoint);
            if known.is_none_or(|known| known.updated_at <= each.updated_at) {
                made.add(each);
            }
        }
        made
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
        let (user, endpoint) = (self.user(&new.user).into(), self.endpoint(&new.endpoint).into());
        let endpoints = self.by_user.entry(user).or_default();
        if endpoints.insert(endpoint, Arc::new(new)).is_none() {
            self.count += 1;
        }
    }

    fn user<'a>(&self, user: &'a str) -> Cow<'a, str> {
        self.normalization
            .as_ref()
            .map_or(NormalForm::Exact, |normalization| normalization.ids.user)
            .normalize(user)
    }

    fn endpoint<'a>(&self, endpoint: &'a str) -> Cow<'a, str> {
        let ignores_case =
            self.normalization.as_ref().is_some_and(|normalization| normalization.ignore_path_case);
        let folded = if ignores_case { casefold(endpoint) } else { None };
        folded.map_or(Cow::Borrowed(endpoint), Cow::Owned)
    }

    /// All of them, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &Override> {
        self.by_user.values().flat_map(HashMap::values).map(|each| &**each)
    }

    /// All of them, in no order, each with user and endpoint as they are read.
    pub(super) fn as_read(&self) -> impl Iterator<Item = (&str, &str, &Override)> {
        self.by_user.iter().flat_map(|(user, endpoints)| {
            endpoints.iter().map(move |(endpoint, each)| (&**user, &**endpoint, &**each))
        })
    }

    /// The next set, without the one for this user and endpoint; nothing if there is none.
    pub fn without(&self, user: &str, endpoint: &str) -> Option<Self> {
        self.get(user, endpoint)?;
        let mut next = self.clone();
        next.take_away(user, endpoint);
        Some(next)
    }

    fn take_away(&mut self, user: &str, endpoint: &str) {
        let (user, endpoint) = (self.user(user), self.endpoint(endpoint));
        let Some(endpoints) = self.by_user.get_mut(&*user) else { return };
        if endpoints.remove(&*endpoint).is_some() {
            self.count -= 1;
        }
        if endpoints.is_empty() {
            self.by_user.remove(&*user);
        }
    }
}

/// Of two for the same user and endpoint the one that was set later counts. Made at once: [`Overrides::with`] copies all
/// there are.
impl FromIterator<Override> for Overrides {
    fn from_iter<I: IntoIterator<Item = Override>>(all: I) -> Self {
        Overrides::default().replaced(all)
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

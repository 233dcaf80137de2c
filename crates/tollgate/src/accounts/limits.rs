//! Numbers of somebody's own, in place of those of the rule in force.

use std::hash::{Hash, Hasher};

use super::AccountError;
use crate::limit::{Algorithm, Limit, LimitError, Window};
use crate::rules::RuleLimit;
use crate::time::Span;

/// How much one key or one user may do, where that is not what the rules say. Absent is unlimited in that window.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct AccountLimits {
    /// Requests per second.
    pub requests_per_second: Option<u32>,
    /// Requests per hour.
    pub requests_per_hour: Option<u32>,
    /// Requests per day of 24 hours.
    pub requests_per_day: Option<u32>,
    /// What the bucket of each window holds, if not as much as its requests.
    pub burst: Option<u32>,
}

impl AccountLimits {
    /// Whether none is given.
    pub fn is_empty(&self) -> bool {
        *self == AccountLimits::default()
    }

    /// Whether they can be counted, for those who want to say no before they store them.
    ///
    /// # Errors
    /// The field, as people write it, and what is wrong with it.
    pub fn check(self) -> Result<(), AccountError> {
        self.limits().map(|_| ())
    }

    /// One token bucket for each window that is given, each with the burst.
    fn limits(self) -> Result<Vec<Limit>, AccountError> {
        let windows = [
            ("requests_per_second", self.requests_per_second, 1),
            ("requests_per_hour", self.requests_per_hour, 3_600),
            ("requests_per_day", self.requests_per_day, 86_400),
        ];
        let mut limits = Vec::new();
        for (field, requests, secs) in windows {
            let Some(requests) = requests else { continue };
            let window = Window::Length(Span::from_secs(secs));
            let limit = Limit::with_options(Algorithm::TokenBucket, requests, window, self.burst, None);
            limits.push(limit.map_err(|reason| {
                let field = if reason == LimitError::BurstZero { "burst" } else { field };
                AccountError::Limit { field, reason }
            })?);
        }
        if limits.is_empty() && self.burst.is_some() { Err(AccountError::BurstAlone) } else { Ok(limits) }
    }
}

/// Numbers as they are charged: compiled once, for all who have the same.
#[derive(Debug)]
pub(crate) struct CompiledLimits {
    pub(super) written: AccountLimits,
    pub(crate) limits: Box<[RuleLimit]>,
}

impl CompiledLimits {
    pub(super) fn new(namespace: &str, written: AccountLimits) -> Result<Self, AccountError> {
        let limits = written.limits()?.into_iter().map(|limit| RuleLimit::new(namespace, limit)).collect();
        Ok(CompiledLimits { written, limits })
    }

    pub(super) fn are(&self, written: AccountLimits) -> bool {
        self.written == written
    }

    pub(super) fn heap_bytes(&self) -> usize {
        size_of_val(&*self.limits)
    }
}

/// The limits follow from the numbers.
impl PartialEq for CompiledLimits {
    fn eq(&self, other: &Self) -> bool {
        self.written == other.written
    }
}

impl Eq for CompiledLimits {}

impl Hash for CompiledLimits {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.written.hash(state);
    }
}

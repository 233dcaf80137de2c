//! Limits set for one user or one API key, in place of those of the matching rule.

use super::AccountError;
use crate::limit::{Algorithm, Limit, LimitError, Window};
use crate::rules::RuleLimit;
use crate::time::Span;

/// Limits set for one user or one API key. A window without a value is unlimited.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct AccountLimits {
    /// Requests per second.
    pub requests_per_second: Option<u32>,
    /// Requests per hour.
    pub requests_per_hour: Option<u32>,
    /// Requests per day of 24 hours.
    pub requests_per_day: Option<u32>,
    /// The bucket size of the shortest window, if it is not its number of requests.
    pub burst: Option<u32>,
}

impl AccountLimits {
    /// Whether no limit is set.
    pub fn is_empty(&self) -> bool {
        *self == AccountLimits::default()
    }

    /// Validates the limits.
    ///
    /// # Errors
    /// The first invalid field and what is wrong with it.
    pub fn check(self) -> Result<(), AccountError> {
        self.limits().map(|_| ())
    }

    /// One token bucket per window. The burst belongs to the shortest one: on longer windows it would be used up for long.
    pub(crate) fn limits(self) -> Result<Vec<Limit>, AccountError> {
        let windows = [
            ("requests_per_second", self.requests_per_second, 1),
            ("requests_per_hour", self.requests_per_hour, 3_600),
            ("requests_per_day", self.requests_per_day, 86_400),
        ];
        let mut limits = Vec::new();
        for (field, requests, secs) in windows {
            let Some(requests) = requests else { continue };
            let window = Window::Length(Span::from_secs(secs));
            let burst = self.burst.filter(|_| limits.is_empty());
            let limit = Limit::with_options(Algorithm::TokenBucket, requests, window, burst, None);
            limits.push(limit.map_err(|reason| {
                let field = if reason == LimitError::BurstZero { "burst" } else { field };
                AccountError::Limit { field, reason }
            })?);
        }
        if limits.is_empty() && self.burst.is_some() { Err(AccountError::BurstAlone) } else { Ok(limits) }
    }
}

/// Limits as they are charged, shared by all accounts with equal limits.
#[derive(Clone, Debug, Default)]
pub(crate) struct CompiledLimits {
    pub(super) written: AccountLimits,
    pub(crate) limits: Box<[RuleLimit]>,
}

impl CompiledLimits {
    pub(super) fn new(namespace: &str, written: AccountLimits) -> Result<Self, AccountError> {
        let limits = written.limits()?.into_iter().map(|limit| RuleLimit::new(namespace, limit)).collect();
        Ok(CompiledLimits { written, limits })
    }
}

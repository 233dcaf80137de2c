//! Numbers of somebody's own, in place of those of the rule in force.

use std::hash::{Hash, Hasher};

use super::AccountError;
use crate::limit::{Algorithm, Limit, LimitError, Window};
use crate::rules::RuleLimit;
use crate::time::Span;

/// How much one key or one user may do, where that is not what the rules say. Absent is unlimited in that window.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Numbers {
    /// Requests per second.
    pub per_second: Option<u32>,
    /// Requests per hour.
    pub per_hour: Option<u32>,
    /// Requests per day of 24 hours.
    pub per_day: Option<u32>,
    /// What the bucket of each window holds, if not as much as its requests.
    pub burst: Option<u32>,
}

impl Numbers {
    /// Whether none is given.
    pub fn is_empty(&self) -> bool {
        *self == Numbers::default()
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
            ("requests_per_second", self.per_second, 1),
            ("requests_per_hour", self.per_hour, 3_600),
            ("requests_per_day", self.per_day, 86_400),
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
pub(crate) struct OwnNumbers {
    pub(super) numbers: Numbers,
    pub(crate) limits: Box<[RuleLimit]>,
}

impl OwnNumbers {
    pub(super) fn new(namespace: &str, numbers: Numbers) -> Result<Self, AccountError> {
        let limits = numbers.limits()?.into_iter().map(|limit| RuleLimit::new(namespace, limit)).collect();
        Ok(OwnNumbers { numbers, limits })
    }

    pub(super) fn are(&self, numbers: Numbers) -> bool {
        self.numbers == numbers
    }

    pub(super) fn heap_bytes(&self) -> usize {
        size_of_val(&*self.limits)
    }
}

/// The limits follow from the numbers.
impl PartialEq for OwnNumbers {
    fn eq(&self, other: &Self) -> bool {
        self.numbers == other.numbers
    }
}

impl Eq for OwnNumbers {}

impl Hash for OwnNumbers {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.numbers.hash(state);
    }
}

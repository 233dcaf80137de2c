//! Limits sent with a check.

use super::{Algorithm, Limit, LimitError, Window};
use crate::time::Span;

/// Limits sent with a check. Absent fields are taken from the limit in force.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct LimitOverride {
    /// The algorithm (`strategy`).
    pub algorithm: Option<Algorithm>,
    /// Requests per window (`limit`).
    pub requests: Option<u32>,
    /// The window (`window_seconds`).
    pub window: Option<Span>,
}

impl LimitOverride {
    /// Whether no field is set.
    pub fn is_empty(&self) -> bool {
        *self == LimitOverride::default()
    }

    /// Whether only the algorithm is set.
    pub fn is_only_algorithm(&self) -> bool {
        self.algorithm.is_some() && self.requests.is_none() && self.window.is_none()
    }

    /// Whether every field that is set has the value of this limit.
    pub fn equals(&self, limit: &Limit) -> bool {
        self.algorithm.is_none_or(|algorithm| algorithm == limit.algorithm())
            && self.requests.is_none_or(|requests| requests == limit.requests())
            && self.window.is_none_or(|length| *limit.window() == Window::Length(length))
    }

    /// Completes the override from the limit in force, or from 100 requests per minute if no limit is in force.
    ///
    /// A burst is not inherited. Only a fixed window keeps a calendar window; other algorithms use its nominal length.
    ///
    /// # Errors
    /// When the combined values are not a valid limit.
    pub fn complete(&self, in_force: Option<&Limit>) -> Result<Limit, LimitError> {
        let (algorithm, requests, window) = in_force.map_or_else(
            || (Algorithm::TokenBucket, 100, Window::Length(Span::from_secs(60))),
            |limit| (limit.algorithm(), limit.requests(), limit.window().clone()),
        );
        let algorithm = self.algorithm.unwrap_or(algorithm);
        let window = match (self.window, window) {
            (Some(length), _) => Window::Length(length),
            (None, Window::Calendar(calendar)) if algorithm != Algorithm::FixedWindow => {
                Window::Length(calendar.nominal())
            }
            (None, window) => window,
        };
        Limit::new(algorithm, self.requests.unwrap_or(requests), window)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::calendar::{Calendar, CalendarUnit};

    #[test]
    fn absent_window_is_the_window_in_force() {
        let day = Window::Calendar(Arc::new(Calendar::new(CalendarUnit::Day, "Europe/Berlin").unwrap()));
        let daily = Limit::new(Algorithm::FixedWindow, 9, day.clone()).unwrap();
        let window = |sent: LimitOverride| sent.complete(Some(&daily)).unwrap().window().clone();
        let (none, span) = (LimitOverride::default, Span::from_secs);
        assert_eq!(window(LimitOverride { requests: Some(5), ..none() }), day);
        assert_eq!(window(LimitOverride { window: Some(span(60)), ..none() }), Window::Length(span(60)));
        let bucket = LimitOverride { algorithm: Some(Algorithm::TokenBucket), ..none() };
        assert_eq!(window(bucket), Window::Length(span(86_400)), "only a fixed window counts calendar days");
    }
}

//! Rules that are gone, and whose series are told for a while longer.
//!
//! Rules come and go for as long as a process runs, and each has a series for every way a decision can end: kept for ever,
//! they would grow without a bound. Dropped at once, what was counted since the last scrape would never be seen. A rule that
//! comes back later starts at zero, which Prometheus takes for a restart.

use std::collections::VecDeque;

use tollgate::{Span, Timestamp};

/// Long enough for a last scrape, at any interval that is in use.
const TOLD_FOR: Span = Span::from_secs(300);
/// As many are kept. Whoever makes and removes rules by the hundred loses the last counts of some, not memory.
const FORMER_MAX: usize = 32;

/// Rules that are gone, those first that are so for longest.
#[derive(Debug, Default)]
pub(super) struct Former(VecDeque<(Box<str>, Timestamp)>);

impl Former {
    /// Notes a rule that is not in force any more.
    pub(super) fn note(&mut self, rule: &str, now: Timestamp) {
        if !self.0.iter().any(|(known, _)| **known == *rule) {
            self.0.push_back((rule.into(), now));
        }
    }

    /// Keeps those that are not in force again.
    pub(super) fn retain(&mut self, is_gone: impl Fn(&str) -> bool) {
        self.0.retain(|(rule, _)| is_gone(rule));
    }

    /// One whose series are to be dropped now, if there is one. It is forgotten here.
    pub(super) fn take_due(&mut self, now: Timestamp) -> Option<Box<str>> {
        let (_, since) = self.0.front()?;
        let due = self.0.len() > FORMER_MAX || now.since(*since) >= TOLD_FOR;
        if due { self.0.pop_front().map(|(rule, _)| rule) } else { None }
    }
}

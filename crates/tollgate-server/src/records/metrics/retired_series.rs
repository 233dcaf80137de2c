//! Series of removed rules, exported for a while longer.
//!
//! Each rule has a series per outcome, so series of removed rules must be dropped or they would grow without bound. Dropping them at
//! once would lose what was counted since the last scrape. A rule that returns later starts at zero, like after a restart.

use std::collections::VecDeque;

use tollgate::{Span, Timestamp};

/// Long enough for one more scrape.
const RETAIN_FOR: Span = Span::from_secs(300);
/// Past this bound the oldest are dropped early.
const RETIRED_MAX: usize = 32;

/// Removed rules, oldest first.
#[derive(Debug, Default)]
pub(super) struct RetiredRules(VecDeque<(Box<str>, Timestamp)>);

impl RetiredRules {
    /// Adds a removed rule.
    pub(super) fn add(&mut self, rule: &str, now: Timestamp) {
        if !self.0.iter().any(|(known, _)| **known == *rule) {
            self.0.push_back((rule.into(), now));
        }
    }

    /// Keeps only rules that are still removed.
    pub(super) fn retain(&mut self, is_retired: impl Fn(&str) -> bool) {
        self.0.retain(|(rule, _)| is_retired(rule));
    }

    /// Removes and returns a rule whose series are due to be dropped.
    pub(super) fn pop_due(&mut self, now: Timestamp) -> Option<Box<str>> {
        let (_, since) = self.0.front()?;
        let due = self.0.len() > RETIRED_MAX || now.since(*since) >= RETAIN_FOR;
        if due { self.0.pop_front().map(|(rule, _)| rule) } else { None }
    }
}

//! Sliding window log: every admitted charge is remembered until it is a window old.
//!
//! Never more than `requests` in any half-open span `(t - window, t]`: the other algorithms are measured by it.
//! It pays with memory, sixteen bytes per remembered charge, so its limits are bounded.

use std::collections::VecDeque;

use super::{Outcome, Verdict};
use crate::limit::Limit;
use crate::time::{Span, Timestamp};

/// The charges of one counter that may still count, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log {
    entries: VecDeque<(Timestamp, u32)>,
    /// Sum of the costs of all entries.
    total: u64,
}

impl Log {
    /// A log from its entries, oldest first; the way a stored log comes back.
    pub fn from_entries(entries: impl IntoIterator<Item = (Timestamp, u32)>) -> Self {
        let entries: VecDeque<_> = entries.into_iter().collect();
        let total = entries.iter().map(|(_, cost)| u64::from(*cost)).sum();
        Log { entries, total }
    }

    /// The charges that may still count, oldest first.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = (Timestamp, u32)> {
        self.entries.iter().copied()
    }

    /// When the last charge was admitted.
    pub fn last(&self) -> Option<Timestamp> {
        self.entries.back().map(|(at, _)| *at)
    }

    /// What one charge would be told. Changes nothing.
    pub fn evaluate(&self, limit: &Limit, cost: u32, now: Timestamp) -> Verdict {
        let window = limit.window_length();
        let moment = self.moment(now);
        let requests = u64::from(limit.requests());
        let used = self.used(window, moment);
        let left = requests.saturating_sub(used);
        let wanted = u64::from(cost.max(1));
        let remaining = narrow(left);

        if wanted > requests {
            return Verdict {
                outcome: Outcome::Never,
                remaining,
                reset_after: self.reset_after(window, now),
            };
        }
        if wanted > left {
            let retry_after = self.freed_at(window, moment, used + wanted - requests).since(now);
            let reset_after = self.reset_after(window, now);
            return Verdict { outcome: Outcome::Refuse { retry_after }, remaining, reset_after };
        }
        let reset_after = if cost > 0 { (moment + window).since(now) } else { self.reset_after(window, now) };
        Verdict { outcome: Outcome::Admit { delay: Span::ZERO }, remaining: remaining - cost, reset_after }
    }

    /// Remembers an admitted charge and forgets what is a window old.
    pub fn record(&mut self, limit: &Limit, cost: u32, now: Timestamp) {
        let moment = self.moment(now);
        let window = limit.window_length();
        while let Some((at, cost)) = self.entries.front().copied()
            && at + window <= moment
        {
            self.total -= u64::from(cost);
            self.entries.pop_front();
        }
        self.total += u64::from(cost);
        match self.entries.back_mut() {
            // Charges of one instant leave together: one entry serves them all.
            Some((at, sum)) if *at == moment => *sum = sum.saturating_add(cost),
            _ => {
                self.grow(limit);
                self.entries.push_back((moment, cost));
            }
        }
    }

    /// Makes room for one more entry: twice as much as there is, but no more than the limit can fill. A store sets aside
    /// that much and no more.
    fn grow(&mut self, limit: &Limit) {
        let length = self.entries.len();
        if length == self.entries.capacity() {
            let left = (limit.requests() as usize).saturating_sub(length);
            self.entries.reserve_exact(length.max(4).min(left).max(1));
        }
    }

    /// The same log with every entry at `now`, if it lies impossibly far ahead of it.
    pub fn rewind_future(&self, limit: &Limit, now: Timestamp) -> Option<Log> {
        let ahead = self.last()? > now + super::tolerance(limit);
        ahead.then(|| Log::from_entries([(now, narrow(self.total))]))
    }

    /// A clock behind the last admission counts as standing at it.
    fn moment(&self, now: Timestamp) -> Timestamp {
        self.last().map_or(now, |last| last.max(now))
    }

    fn used(&self, window: Span, moment: Timestamp) -> u64 {
        let gone = self.entries.iter().take_while(|(at, _)| *at + window <= moment);
        self.total - gone.map(|(_, cost)| u64::from(*cost)).sum::<u64>()
    }

    /// The instant at which `need` of what still counts will have left.
    fn freed_at(&self, window: Span, moment: Timestamp, need: u64) -> Timestamp {
        let mut freed = 0;
        for (at, cost) in self.entries.iter().filter(|(at, _)| *at + window > moment) {
            freed += u64::from(*cost);
            if freed >= need {
                return *at + window;
            }
        }
        moment
    }

    fn reset_after(&self, window: Span, now: Timestamp) -> Span {
        self.last().map_or(Span::ZERO, |last| (last + window).since(now))
    }
}

fn narrow(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::{Algorithm, Window};

    #[test]
    fn a_log_takes_no_more_room_than_its_limit_can_fill() {
        let limit = Limit::new(Algorithm::SlidingWindowLog, 100, Window::Length(Span::from_secs(1))).unwrap();
        let mut log = Log::default();
        for micros in 0..100 {
            log.record(&limit, 1, Timestamp::from_micros(micros));
        }
        assert_eq!(log.entries.capacity(), 100);
    }

    #[test]
    fn a_charge_counts_for_exactly_one_window() {
        let limit = Limit::new(Algorithm::SlidingWindowLog, 1, Window::Length(Span::from_secs(1))).unwrap();
        let mut log = Log::default();
        log.record(&limit, 1, Timestamp::from_secs(5));
        let almost = Timestamp::from_micros(5_999_999);
        assert_eq!(
            log.evaluate(&limit, 1, almost).outcome,
            Outcome::Refuse { retry_after: Span::from_micros(1) }
        );
        assert!(log.evaluate(&limit, 1, Timestamp::from_secs(6)).admits());
    }
}

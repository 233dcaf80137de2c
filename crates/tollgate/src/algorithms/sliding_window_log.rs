//! Sliding window log: every admitted charge is stored until it is one window old.
//!
//! It never admits more than `requests` in any half-open span `(t - window, t]`. It needs sixteen bytes per stored
//! charge, so its limits are bounded.

use std::collections::VecDeque;

use super::{AdmittedCharge, Outcome, Verdict, narrow};
use crate::limit::Limit;
use crate::time::{Span, Timestamp};

/// The charges of one counter, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log {
    entries: VecDeque<(Timestamp, u32)>,
    /// Sum of the costs of all entries.
    total: u64,
}

impl Log {
    /// Restores a log from its entries, oldest first.
    pub fn from_entries(entries: impl IntoIterator<Item = (Timestamp, u32)>) -> Self {
        let entries: VecDeque<_> = entries.into_iter().collect();
        let total = entries.iter().map(|(_, cost)| u64::from(*cost)).sum();
        Log { entries, total }
    }

    /// The stored charges, oldest first.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = (Timestamp, u32)> {
        self.entries.iter().copied()
    }

    /// The time of the last charge.
    pub fn last(&self) -> Option<Timestamp> {
        self.entries.back().map(|(at, _)| *at)
    }

    /// Evaluates one charge. Changes nothing.
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

    /// Adds an admitted charge and drops those that are a window old.
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
            // Charges of one instant expire together and share one entry.
            Some((at, sum)) if *at == moment => *sum = sum.saturating_add(cost),
            _ => {
                self.grow(limit);
                self.entries.push_back((moment, cost));
            }
        }
    }

    /// Takes back a charge, unless it is a window old. Returns whether it was there.
    pub fn refund(&mut self, limit: &Limit, charge: AdmittedCharge, now: Timestamp) -> bool {
        let (cost, window) = (charge.cost, limit.window_length());
        let at = charge.restored_at - window;
        if at + window <= self.moment(now) {
            return false;
        }
        let Ok(position) = self.entries.binary_search_by_key(&at, |(at, _)| *at) else { return false };
        let Some((_, sum)) = self.entries.get_mut(position).filter(|(_, sum)| *sum >= cost) else {
            return false;
        };
        *sum -= cost;
        self.total -= u64::from(cost);
        if *sum == 0 {
            self.entries.remove(position);
        }
        true
    }

    /// Reserves space for one more entry: doubles the capacity, but not beyond what the limit can fill, which is what a
    /// store accounts for.
    fn grow(&mut self, limit: &Limit) {
        let length = self.entries.len();
        if length == self.entries.capacity() {
            let left = (limit.requests() as usize).saturating_sub(length);
            self.entries.reserve_exact(length.max(4).min(left).max(1));
        }
    }

    /// The same log moved to `now`, if a wrong clock wrote it from the future. See [`rewind_future`](super::rewind_future).
    pub fn rewind_future(&self, limit: &Limit, now: Timestamp) -> Option<Log> {
        let ahead = self.last()? > now + super::tolerance(limit);
        ahead.then(|| Log::from_entries([(now, narrow(self.total))]))
    }

    /// The clock, but not before the last charge.
    fn moment(&self, now: Timestamp) -> Timestamp {
        self.last().map_or(now, |last| last.max(now))
    }

    fn used(&self, window: Span, moment: Timestamp) -> u64 {
        let gone = self.entries.iter().take_while(|(at, _)| *at + window <= moment);
        self.total - gone.map(|(_, cost)| u64::from(*cost)).sum::<u64>()
    }

    /// When `need` units of the charges that still count will have expired.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::{Algorithm, Window};

    #[test]
    fn log_capacity_is_bounded_by_the_limit() {
        let limit = Limit::new(Algorithm::SlidingWindowLog, 100, Window::Length(Span::from_secs(1))).unwrap();
        let mut log = Log::default();
        for micros in 0..100 {
            log.record(&limit, 1, Timestamp::from_micros(micros));
        }
        assert_eq!(log.entries.capacity(), 100);
    }

    #[test]
    fn charge_counts_for_exactly_one_window() {
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

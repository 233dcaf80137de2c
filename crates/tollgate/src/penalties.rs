//! Progressive penalties: a client that keeps running into its limits is kept out for longer each time.
//!
//! One violation is counted per episode, not per refused request: retries of an impatient client, or of many
//! behind one address, do not escalate. Violations older than the detection window no longer count, so a client
//! that behaves works its way back down. A client remembers at most as many violations as levels can use.

use crate::time::{Span, Timestamp};

/// The most violations that are told apart: threshold and levels together stay below it.
pub const VIOLATIONS_MAX: usize = 32;

/// When clients are penalised, and for how long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PenaltyPolicy {
    /// Violations count for this long.
    pub detection_window: Span,
    /// The violation with this number is the first to be penalised.
    pub violation_threshold: u32,
    /// The length of the first penalty.
    pub base_cooldown: Span,
    /// Factors for one penalty after another; the last one stays.
    pub multipliers: Vec<u32>,
    /// No penalty is longer.
    pub cooldown_max: Span,
}

impl Default for PenaltyPolicy {
    fn default() -> Self {
        PenaltyPolicy {
            detection_window: Span::from_secs(3_600),
            violation_threshold: 3,
            base_cooldown: Span::from_secs(60),
            multipliers: vec![1, 2, 4, 8],
            cooldown_max: Span::from_secs(3_600),
        }
    }
}

impl PenaltyPolicy {
    /// How long the client is kept out after its `violations`-th violation.
    pub fn cooldown(&self, violations: usize) -> Option<Span> {
        let over = violations.checked_sub(self.violation_threshold as usize)?;
        let last = self.multipliers.len().checked_sub(1)?;
        let factor = u64::from(self.multipliers[over.min(last)]);
        let length = self.base_cooldown.as_micros().saturating_mul(factor);
        Some(Span::from_micros(length).min(self.cooldown_max))
    }

    /// A penalty further ahead than this was written by a clock that was wrong.
    pub fn cooldown_plausible_max(&self) -> Span {
        (self.cooldown_max + self.cooldown_max).max(Span::from_secs(60))
    }

    /// How many violations can make a difference.
    pub fn violations_max(&self) -> usize {
        (self.violation_threshold as usize + self.multipliers.len()).min(VIOLATIONS_MAX)
    }
}

/// What is remembered of one client's conduct.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PenaltyState {
    /// The latest violations, oldest first.
    pub violations: Vec<Timestamp>,
    /// Refusals before this instant belong to the violation already counted.
    pub episode_until: Timestamp,
    /// The client is kept out until then.
    pub cooldown_until: Timestamp,
}

impl PenaltyState {
    /// How much longer the client is kept out.
    ///
    /// A penalty further ahead than any can be, by more than twice the longest and more than a minute, was written by a
    /// clock that was wrong: it is over.
    pub fn cooldown_remaining(&self, policy: &PenaltyPolicy, now: Timestamp) -> Option<Span> {
        let left = self.cooldown_until.since(now);
        (!left.is_zero() && left <= policy.cooldown_plausible_max()).then_some(left)
    }

    /// Violations that still count at `now`.
    pub fn active_violations(&self, policy: &PenaltyPolicy, now: Timestamp) -> usize {
        self.violations.iter().filter(|at| **at + policy.detection_window > now).count()
    }

    /// Notes a refusal by a limit of that window. Returns whether it was a new violation.
    pub fn refused(&mut self, policy: &PenaltyPolicy, window: Span, now: Timestamp) -> bool {
        if now < self.episode_until {
            return false;
        }
        self.violations.retain(|at| *at + policy.detection_window > now);
        if self.violations.len() >= policy.violations_max() {
            self.violations.remove(0);
        }
        self.violations.push(now);
        self.episode_until = now + window;
        if let Some(cooldown) = policy.cooldown(self.violations.len()) {
            self.cooldown_until = now + cooldown;
            // The penalty answers the episode; what follows it is a new one.
            self.episode_until = self.episode_until.max(self.cooldown_until);
        }
        true
    }

    /// From this instant on nothing is held against the client.
    pub fn expires_at(&self, policy: &PenaltyPolicy) -> Timestamp {
        let last = self.violations.last().copied().unwrap_or_default();
        (last + policy.detection_window).max(self.cooldown_until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Span = Span::from_secs(60);

    #[test]
    fn t66_a_burst_of_refusals_is_one_violation() {
        let policy = PenaltyPolicy::default();
        let mut conduct = PenaltyState::default();
        let counted =
            (0..1_000).filter(|n| conduct.refused(&policy, MINUTE, Timestamp::from_micros(*n))).count();
        assert_eq!((counted, conduct.cooldown_until), (1, Timestamp::default()));
    }

    #[test]
    fn t66_penalties_climb_to_the_last_multiplier_and_stay_below_the_cap() {
        let policy = PenaltyPolicy { cooldown_max: Span::from_secs(400), ..PenaltyPolicy::default() };
        let mut conduct = PenaltyState::default();
        let mut now = Timestamp::from_secs(1_000);
        let mut cooldowns = Vec::new();
        for _ in 0..8 {
            assert!(conduct.refused(&policy, MINUTE, now));
            cooldowns.push(conduct.cooldown_remaining(&policy, now).map_or(0, Span::as_secs_ceil));
            now = conduct.episode_until;
        }
        assert_eq!(cooldowns, [0, 0, 60, 120, 240, 400, 400, 400]);
        assert!(conduct.violations.len() <= VIOLATIONS_MAX);
    }

    #[test]
    fn t65_a_penalty_from_a_clock_that_was_a_year_ahead_is_over() {
        let policy = PenaltyPolicy { violation_threshold: 1, ..PenaltyPolicy::default() };
        let mut conduct = PenaltyState::default();
        let now = Timestamp::from_secs(1_000_000);
        conduct.refused(&policy, MINUTE, now + Span::from_secs(365 * 86_400));
        assert_eq!(conduct.cooldown_remaining(&policy, now), None);
        let a_little_ahead =
            PenaltyState { cooldown_until: now + Span::from_secs(61), ..PenaltyState::default() };
        assert_eq!(a_little_ahead.cooldown_remaining(&policy, now), Some(Span::from_secs(61)));
    }

    #[test]
    fn t66_good_conduct_for_a_detection_window_clears_the_record() {
        let policy = PenaltyPolicy::default();
        let mut conduct = PenaltyState::default();
        for minute in 0..3 {
            conduct.refused(&policy, MINUTE, Timestamp::from_secs(minute * 60));
        }
        assert!(conduct.cooldown_remaining(&policy, Timestamp::from_secs(130)).is_some());
        let later = conduct.expires_at(&policy);
        assert_eq!(
            (conduct.active_violations(&policy, later), conduct.cooldown_remaining(&policy, later)),
            (0, None)
        );
    }
}

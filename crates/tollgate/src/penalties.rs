//! Progressive penalties: a client that keeps exceeding its limits is put in cooldown, longer each time.
//!
//! One violation is counted per episode, not per refused request, so that retries do not escalate. Violations older than
//! the detection window no longer count. At most as many violations are stored per client as there are levels.

use crate::time::{Span, Timestamp};

/// The most violations stored per client: the upper bound of threshold plus levels.
pub const VIOLATIONS_MAX: usize = 32;

/// When clients are put in cooldown, and for how long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PenaltyPolicy {
    /// Violations count for this long.
    pub detection_window: Span,
    /// The number of violations from which a client is penalized.
    pub violation_threshold: u32,
    /// The length of the first cooldown.
    pub base_cooldown: Span,
    /// The factors of successive cooldowns; the last one repeats.
    pub multipliers: Vec<u32>,
    /// The longest cooldown.
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
    /// The cooldown after the `violations`-th violation, if any.
    pub fn cooldown(&self, violations: usize) -> Option<Span> {
        let over = violations.checked_sub(self.violation_threshold as usize)?;
        let last = self.multipliers.len().checked_sub(1)?;
        let factor = u64::from(self.multipliers[over.min(last)]);
        let length = self.base_cooldown.as_micros().saturating_mul(factor);
        Some(Span::from_micros(length).min(self.cooldown_max))
    }

    /// The longest remaining cooldown that is believed: a longer one was written by a wrong clock.
    pub fn cooldown_plausible_max(&self) -> Span {
        (self.cooldown_max + self.cooldown_max).max(Span::from_secs(60))
    }

    /// The number of violations from which the cooldown no longer grows.
    pub fn violations_max(&self) -> usize {
        (self.violation_threshold as usize + self.multipliers.len()).min(VIOLATIONS_MAX)
    }
}

/// The penalty record of one client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PenaltyState {
    /// The latest violations, oldest first.
    pub violations: Vec<Timestamp>,
    /// Refusals before this instant belong to the last violation.
    pub episode_until: Timestamp,
    /// The end of the cooldown.
    pub cooldown_until: Timestamp,
}

impl PenaltyState {
    /// The remaining cooldown, if the client is in one. A cooldown beyond
    /// [`cooldown_plausible_max`](PenaltyPolicy::cooldown_plausible_max) is ignored.
    pub fn cooldown_remaining(&self, policy: &PenaltyPolicy, now: Timestamp) -> Option<Span> {
        let left = self.cooldown_until.since(now);
        (!left.is_zero() && left <= policy.cooldown_plausible_max()).then_some(left)
    }

    /// Records a refusal by a limit of that window. Returns whether it was a new violation.
    pub fn record_refusal(&mut self, policy: &PenaltyPolicy, window: Span, now: Timestamp) -> bool {
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
            // The episode ends with the cooldown at the earliest.
            self.episode_until = self.episode_until.max(self.cooldown_until);
        }
        true
    }

    /// When the record no longer has an effect.
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
    fn burst_of_refusals_is_one_violation() {
        let policy = PenaltyPolicy::default();
        let mut state = PenaltyState::default();
        let counted =
            (0..1_000).filter(|n| state.record_refusal(&policy, MINUTE, Timestamp::from_micros(*n))).count();
        assert_eq!((counted, state.cooldown_until), (1, Timestamp::default()));
    }

    #[test]
    fn cooldowns_grow_up_to_the_maximum() {
        let policy = PenaltyPolicy { cooldown_max: Span::from_secs(400), ..PenaltyPolicy::default() };
        let mut state = PenaltyState::default();
        let mut now = Timestamp::from_secs(1_000);
        let mut cooldowns = Vec::new();
        for _ in 0..8 {
            assert!(state.record_refusal(&policy, MINUTE, now));
            cooldowns.push(state.cooldown_remaining(&policy, now).map_or(0, Span::as_secs_ceil));
            now = state.episode_until;
        }
        assert_eq!(cooldowns, [0, 0, 60, 120, 240, 400, 400, 400]);
        assert!(state.violations.len() <= VIOLATIONS_MAX);
    }

    #[test]
    fn cooldown_from_a_clock_a_year_ahead_is_ignored() {
        let policy = PenaltyPolicy { violation_threshold: 1, ..PenaltyPolicy::default() };
        let mut state = PenaltyState::default();
        let now = Timestamp::from_secs(1_000_000);
        state.record_refusal(&policy, MINUTE, now + Span::from_secs(365 * 86_400));
        assert_eq!(state.cooldown_remaining(&policy, now), None);
        let a_little_ahead =
            PenaltyState { cooldown_until: now + Span::from_secs(61), ..PenaltyState::default() };
        assert_eq!(a_little_ahead.cooldown_remaining(&policy, now), Some(Span::from_secs(61)));
    }

    #[test]
    fn violations_expire_after_the_detection_window() {
        let policy = PenaltyPolicy::default();
        let mut state = PenaltyState::default();
        for minute in 0..3 {
            state.record_refusal(&policy, MINUTE, Timestamp::from_secs(minute * 60));
        }
        assert!(state.cooldown_remaining(&policy, Timestamp::from_secs(130)).is_some());
        let later = state.expires_at(&policy);
        assert_eq!(state.cooldown_remaining(&policy, later), None);
        assert!(state.record_refusal(&policy, MINUTE, later));
        assert_eq!(state.violations, [later]);
    }
}

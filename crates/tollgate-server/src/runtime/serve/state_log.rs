//! Logs when the shared counters become degraded and when they recover, whatever the traffic.

use std::time::{Duration, Instant};

use tollgate_stores::counters::{Counters, StoreState};
use tracing::{error, info, warn};

/// A state must have ended for this long before its end is logged: one that comes and goes is one line.
const SETTLED_AFTER: Duration = Duration::from_secs(10);

/// The state that was last logged.
pub(super) struct StateLog {
    logged: Level,
    /// Since when the state has been better than the logged one.
    better_since: Option<Instant>,
}

/// How bad a state is.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Up,
    Impaired,
    Unavailable,
    Rejected,
}

impl Level {
    fn of(state: &StoreState) -> Self {
        match state {
            StoreState::Up => Level::Up,
            StoreState::Impaired(_) => Level::Impaired,
            StoreState::Unreachable(_) => Level::Unavailable,
            StoreState::Rejected(_) => Level::Rejected,
        }
    }
}

/// What is to be logged.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
struct Transition {
    left: Option<Level>,
    entered: Option<Level>,
}

impl StateLog {
    /// Logs the state at the start.
    pub(super) fn start(counters: &Counters) -> Self {
        let state = counters.state();
        let level = Level::of(&state);
        if level > Level::Up {
            log_entered(&state);
        } else if counters.redis().is_some() {
            info!("connected to the counter store");
        }
        StateLog { logged: level, better_since: None }
    }

    /// Logs a change of the state.
    pub(super) fn observe(&mut self, state: &StoreState, now: Instant) {
        let Some(Transition { left, entered }) = self.transition(Level::of(state), now) else { return };
        match left {
            Some(Level::Rejected) => info!("the counter store accepts this node again"),
            Some(_) => info!("the counter store recovered"),
            None => {}
        }
        if entered.is_some() {
            log_entered(state);
        }
    }

    fn transition(&mut self, level: Level, now: Instant) -> Option<Transition> {
        if level >= self.logged {
            self.better_since = None;
            let is_worse = level > self.logged;
            self.logged = level;
            return is_worse.then_some(Transition { left: None, entered: Some(level) });
        }
        let since = *self.better_since.get_or_insert(now);
        if now.duration_since(since) < SETTLED_AFTER {
            return None;
        }
        self.better_since = None;
        let left = std::mem::replace(&mut self.logged, level);
        Some(Transition { left: Some(left), entered: (level > Level::Up).then_some(level) })
    }
}

fn log_entered(state: &StoreState) {
    match state {
        StoreState::Up => {}
        StoreState::Impaired(reason) => warn!(reason, "the counter store needs attention"),
        StoreState::Unreachable(reason) => {
            warn!(reason, "counter store unavailable: using the local fallback until it recovers");
        }
        StoreState::Rejected(reason) => {
            error!(reason, "the counter store rejects this node: no request is admitted until this is fixed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_state_is_logged_when_entered_and_left() {
        let start = Instant::now();
        let mut log = StateLog { logged: Level::Up, better_since: None };
        let mut after = |millis: u64, level| log.transition(level, start + Duration::from_millis(millis));
        let entered = |level| Some(Transition { left: None, entered: Some(level) });
        assert_eq!(after(0, Level::Up), None);
        assert_eq!(after(1, Level::Unavailable), entered(Level::Unavailable));
        // It comes and goes: no further line.
        for millis in (250..9_000).step_by(500) {
            assert_eq!(after(millis, Level::Up), None);
            assert_eq!(after(millis + 250, Level::Unavailable), None);
        }
        assert_eq!(after(9_500, Level::Rejected), entered(Level::Rejected), "worse: at once");
        assert_eq!(after(10_000, Level::Unavailable), None);
        let left = Transition { left: Some(Level::Rejected), entered: Some(Level::Unavailable) };
        assert_eq!(after(20_000, Level::Unavailable), Some(left));
        assert_eq!(after(21_000, Level::Up), None);
        let recovered = Transition { left: Some(Level::Unavailable), entered: None };
        assert_eq!(after(31_000, Level::Up), Some(recovered));
        assert_eq!(after(99_000, Level::Up), None, "once");
    }
}

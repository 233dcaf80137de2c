//! Polling instead of fixed sleeps.

use std::thread;
use std::time::{Duration, Instant};

const PAUSE: Duration = Duration::from_millis(3);

/// Polls until `ask` returns `Some` or `timeout` has passed; returns the last answer.
pub fn eventually<T>(timeout: Duration, mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + timeout;
    loop {
        let answer = ask();
        if answer.is_some() || Instant::now() >= deadline {
            return answer;
        }
        thread::sleep(PAUSE);
    }
}

/// Polls until `ask` returns true; returns whether it did within `timeout`.
#[must_use]
pub fn wait_until(timeout: Duration, mut ask: impl FnMut() -> bool) -> bool {
    eventually(timeout, || ask().then_some(())).is_some()
}

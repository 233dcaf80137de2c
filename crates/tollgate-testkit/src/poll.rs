//! Waiting for something to become true, without a fixed sleep.

use std::thread;
use std::time::{Duration, Instant};

const PAUSE: Duration = Duration::from_millis(3);

/// Asks until the answer is `Some`, at most for `timeout`.
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

/// Asks until the answer is yes; whether it came within `timeout`.
#[must_use]
pub fn wait_until(timeout: Duration, mut ask: impl FnMut() -> bool) -> bool {
    eventually(timeout, || ask().then_some(())).is_some()
}

//! Rules with `action = "throttle"`: the answer to the gateway is held for the delay.

use std::time::{Duration, Instant};

use crate::harness::{Service, wait_for};
use crate::setup::{Setup, settings};

/// One request per `interval` of each address; others wait for at most `max_delay`.
fn throttled(interval: &str, max_delay: &str) -> String {
    let rule = format!(
        "[[rules]]\nname = \"slow\"\nper = [\"ip\"]\nalgorithm = \"leaky_bucket\"\naction = \"throttle\"\n\
         max_delay = \"{max_delay}\"\nlimits = [{{ requests = 1, window = \"{interval}\", burst = 100 }}]\n"
    );
    settings(1_000, &rule)
}

/// The status and the duration of a request.
fn timed(ask: impl Fn() -> u16) -> (u16, Duration) {
    let started = Instant::now();
    (ask(), started.elapsed())
}

#[test]
fn answer_is_held_for_the_delay() {
    let service = Service::with_config(&throttled("1s", "1s"));
    let ask = || {
        let request =
            b"GET /v1/forward-auth HTTP/1.1\r\nhost: a\r\nconnection: close\r\nx-forwarded-uri: /a\r\n\
                        x-forwarded-for: 203.0.113.1\r\n\r\n";
        service.raw(request).status
    };
    let mut answers: Vec<(u16, Duration)> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..8).map(|_| scope.spawn(|| timed(ask))).collect();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    answers.sort_unstable();
    let count = |status| answers.iter().filter(|(got, _)| *got == status).count();
    assert_eq!(count(200) + count(429), 8, "{answers:?}");
    assert!(count(200) >= 2 && count(429) >= 1, "beyond max_delay they are refused: {answers:?}");
    // The second place in the queue is reached a second after the first.
    let longest = answers.iter().filter(|(status, _)| *status == 200).map(|(_, took)| *took).max();
    assert!(longest.unwrap() >= Duration::from_millis(400), "{answers:?}");
}

#[test]
fn nginx_forwards_after_the_delay() {
    let setup = Setup::nginx(&throttled("1s", "1s"));
    let ask = || setup.get("/api/items", &[]).status;
    assert_eq!(ask(), 200);
    wait_for("a request that is held", || {
        let (status, took) = timed(ask);
        (status == 200 && took >= Duration::from_millis(300)).then_some(())
    });
    assert!(setup.served() >= 2);
}

#[test]
fn nginx_answers_500_to_a_delay_beyond_its_timeout() {
    let setup = Setup::nginx(&throttled("60s", "120s"));
    assert_eq!(setup.get("/api/items", &[]).status, 200);
    assert_eq!(setup.get("/api/items", &[]).status, 500);
    assert_eq!(setup.served(), 1, "what was not admitted in time is not forwarded");
}

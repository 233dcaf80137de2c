//! Changes of a user's own limit count no request twice and forgive none.

use std::cell::Cell;

use proptest::prelude::*;
use tollgate::counters::conformance::block_on;
use tollgate::rules::overrides::Override;
use tollgate::{Algorithm, Endpoint, Id, Limit, Limiter, MemoryCounters, Request, Span, Window};

use crate::{NOW, limiter, look, request};

const PATH: &str = "/search";
const DAY: u64 = 86_400;
const RULE: &str = "default_limit = 1000\ndefault_window = \"7d\"";

/// A user whose requests all count: nothing is restored.
struct User {
    limiter: Limiter<MemoryCounters>,
    admitted: Cell<u32>,
}

impl User {
    fn new() -> Self {
        User { limiter: limiter(RULE), admitted: Cell::new(0) }
    }

    fn send(&self, count: u32) {
        for _ in 0..count {
            let admitted = self.limiter.check_now(&request(PATH, "alice"), NOW).admits();
            self.admitted.set(self.admitted.get() + u32::from(admitted));
        }
    }

    fn put(&self, algorithm: Algorithm, requests: u32, days: u64) {
        let limit = Limit::new(algorithm, requests, Window::Length(Span::from_secs(days * DAY))).unwrap();
        let (user, endpoint) = (Id::parse("alice").unwrap(), Endpoint::parse(PATH).unwrap());
        let new = Override::new(user, &endpoint, limit, NOW);
        let published = std::future::ready(Ok::<(), ()>(()));
        let request = request(PATH, "alice");
        block_on(self.limiter.change_override(&request, NOW, published, |all| all.with(new.clone())))
            .unwrap();
    }

    fn delete(&self) {
        let published = std::future::ready(Ok::<(), ()>(()));
        let request: Request<'_> = request(PATH, "alice");
        let without = |all: &tollgate::rules::overrides::Overrides| {
            all.without("alice", PATH).unwrap_or_else(|| all.clone())
        };
        block_on(self.limiter.change_override(&request, NOW, published, without)).unwrap();
    }

    fn used(&self) -> u32 {
        let decision = look(&self.limiter, &request(PATH, "alice"));
        let binding = decision.binding().unwrap();
        binding.capacity - binding.verdict.remaining
    }
}

#[test]
fn window_changed_and_back_counts_once() {
    let user = User::new();
    user.put(Algorithm::FixedWindow, 100, 10);
    user.send(9);
    user.put(Algorithm::FixedWindow, 100, 5);
    assert_eq!(user.used(), 9);
    user.put(Algorithm::FixedWindow, 100, 10);
    assert_eq!(user.used(), 9);
    user.send(1);
    user.put(Algorithm::FixedWindow, 100, 5);
    assert_eq!(user.used(), 10);
}

#[test]
fn override_deleted_and_set_again_counts_once() {
    let user = User::new();
    user.send(8);
    user.put(Algorithm::TokenBucket, 100, 10);
    user.send(18);
    user.delete();
    assert_eq!(user.used(), 26, "the rule counts what the override admitted");
    user.put(Algorithm::TokenBucket, 100, 10);
    assert_eq!(user.used(), 26);
}

#[test]
fn algorithm_changed_and_back_counts_once() {
    let user = User::new();
    user.put(Algorithm::TokenBucket, 100, 10);
    user.send(34);
    for algorithm in Algorithm::ALL.into_iter().chain([Algorithm::TokenBucket]) {
        user.put(algorithm, 100, 10);
        assert_eq!(user.used(), 34, "{algorithm}");
    }
}

#[test]
fn consumption_that_does_not_fit_is_carried_up_to_the_capacity() {
    let user = User::new();
    user.put(Algorithm::FixedWindow, 20, 5);
    user.send(15);
    user.put(Algorithm::FixedWindow, 100, 10);
    user.send(45);
    user.put(Algorithm::FixedWindow, 20, 5);
    assert_eq!(user.used(), 20);
    user.put(Algorithm::FixedWindow, 100, 10);
    assert_eq!(user.used(), 60);
}

#[test]
fn requests_during_the_change_are_carried_over() {
    let user = User::new();
    user.put(Algorithm::FixedWindow, 100, 10);
    user.send(9);
    let week = Limit::new(Algorithm::FixedWindow, 100, Window::Length(Span::from_secs(7 * DAY))).unwrap();
    let endpoint = Endpoint::parse(PATH).unwrap();
    let new = Override::new(Id::parse("alice").unwrap(), &endpoint, week, NOW);
    let published = async {
        user.send(30);
        Ok::<(), ()>(())
    };
    let request = request(PATH, "alice");
    block_on(user.limiter.change_override(&request, NOW, published, |all| all.with(new.clone()))).unwrap();
    assert_eq!(user.used(), 39);
}

#[derive(Clone, Debug)]
enum Step {
    Send(u32),
    Put(Algorithm, u32, u64),
    Delete,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let algorithm = (0..Algorithm::ALL.len()).prop_map(|index| Algorithm::ALL[index]);
    // More than what is sent, so that every request is admitted.
    let put = (algorithm, 200..900_u32, 20..23_u64)
        .prop_map(|(algorithm, requests, days)| Step::Put(algorithm, requests, days));
    prop::collection::vec(
        prop_oneof![2 => (0..12_u32).prop_map(Step::Send), 2 => put, 1 => Just(Step::Delete)],
        1..16,
    )
}

proptest! {
    #[test]
    fn used_is_what_was_admitted(steps in steps()) {
        let user = User::new();
        for step in steps {
            match step {
                Step::Send(count) => user.send(count),
                Step::Put(algorithm, requests, days) => user.put(algorithm, requests, days),
                Step::Delete => user.delete(),
            }
            prop_assert_eq!(user.used(), user.admitted.get());
        }
    }
}

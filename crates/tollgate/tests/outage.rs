//! Counters that cannot be reached for a while: shares, and what was counted meanwhile.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::num::NonZeroU32;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use tollgate::counters::{Charges, CounterStore, StoreError, Verdicts};
use tollgate::{Answer, Decision, Endpoint, Id, Limiter, MemoryCounters, Request, RuleSet, Timestamp};

/// Shared counters with a switch.
#[derive(Default)]
struct Shared {
    counters: MemoryCounters,
    down: AtomicBool,
    refuses_to_carry: AtomicBool,
    carried: AtomicUsize,
}

impl CounterStore for &Shared {
    async fn charge_all(&self, charges: &Charges<'_>, now: Timestamp) -> Result<Verdicts, StoreError> {
        if self.down.load(Ordering::Relaxed) {
            return Err(StoreError::Unreachable);
        }
        Ok(self.counters.charge_all_now(charges, now))
    }

    fn nodes(&self) -> NonZeroU32 {
        NonZeroU32::new(4).unwrap()
    }

    fn reaches(&self, _: &Charges<'_>) -> bool {
        !self.down.load(Ordering::Relaxed)
    }

    async fn carry(&self, charges: &Charges<'_>, now: Timestamp) -> Result<(), StoreError> {
        if self.refuses_to_carry.load(Ordering::Relaxed) {
            return Err(StoreError::Unreachable);
        }
        self.carried.fetch_add(1, Ordering::Relaxed);
        self.counters.charge_all_now(charges, now);
        Ok(())
    }
}

/// Nothing here ever waits.
fn now_or_never<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("it waits"),
    }
}

fn rules(more: &str) -> RuleSet {
    let rule = format!(
        "[[rules]]\nname = \"r\"\nper = [\"user\"]\nalgorithm = \"fixed_window\"\n\
         limits = [{{ requests = 100, window = \"1h\" }}]\n{more}"
    );
    RuleSet::from_toml(&rule).unwrap()
}

fn check(limiter: &Limiter<&Shared>, cost: u32, secs: u64) -> Decision {
    let user = Some(Id::parse("alice").unwrap());
    let request = Request { user, cost, ..Request::new(Endpoint::parse("/x").unwrap()) };
    now_or_never(limiter.check(&request, Timestamp::from_secs(secs)))
}

fn admitted(limiter: &Limiter<&Shared>, secs: u64) -> usize {
    (0..1_000).filter(|_| check(limiter, 1, secs).admits()).count()
}

#[test]
fn what_a_node_admitted_alone_is_no_second_allowance_when_the_counters_are_back() {
    let shared = Shared::default();
    let limiter = Limiter::new(rules(""), &shared);
    assert!((0..30).all(|_| check(&limiter, 1, 7_200).admits()));
    shared.down.store(true, Ordering::Relaxed);
    let alone = check(&limiter, 1, 7_200);
    assert!(alone.degraded && alone.admits());
    assert_eq!(alone.binding().unwrap().requests, 100, "the limit that is told stays the limit");
    assert_eq!(1 + admitted(&limiter, 7_200), 25, "a quarter of the limit");
    shared.down.store(false, Ordering::Relaxed);
    let back = check(&limiter, 1, 7_200);
    assert!(!back.degraded && back.admits());
    assert_eq!(1 + admitted(&limiter, 7_200), 100 - 30 - 25);
    assert_eq!(shared.carried.load(Ordering::Relaxed), 1, "once");
}

#[test]
fn what_a_node_admitted_alone_is_dropped_when_its_window_is_over() {
    let shared = Shared::default();
    let limiter = Limiter::new(rules(""), &shared);
    shared.down.store(true, Ordering::Relaxed);
    assert_eq!(admitted(&limiter, 7_200), 25);
    shared.down.store(false, Ordering::Relaxed);
    assert_eq!(admitted(&limiter, 10_800), 100);
    assert_eq!(shared.carried.load(Ordering::Relaxed), 0);
}

#[test]
fn what_cannot_be_brought_back_stays_counted_here() {
    let shared = Shared::default();
    let limiter = Limiter::new(rules(""), &shared);
    shared.down.store(true, Ordering::Relaxed);
    assert_eq!(admitted(&limiter, 7_200), 25);
    shared.down.store(false, Ordering::Relaxed);
    shared.refuses_to_carry.store(true, Ordering::Relaxed);
    assert!(!check(&limiter, 1, 7_200).admits(), "still alone, and its share is used");
    shared.refuses_to_carry.store(false, Ordering::Relaxed);
    assert_eq!(admitted(&limiter, 7_200), 75);
}

#[test]
fn a_look_at_a_client_brings_nothing_back() {
    let shared = Shared::default();
    let limiter = Limiter::new(rules(""), &shared);
    shared.down.store(true, Ordering::Relaxed);
    check(&limiter, 5, 7_200);
    shared.down.store(false, Ordering::Relaxed);
    let user = Some(Id::parse("alice").unwrap());
    let request = Request { user, ..Request::new(Endpoint::parse("/x").unwrap()) };
    now_or_never(limiter.peek(&request, Timestamp::from_secs(7_200)));
    assert_eq!(shared.carried.load(Ordering::Relaxed), 0);
}

#[test]
fn a_cost_that_fits_the_limit_is_never_told_that_it_does_not() {
    let shared = Shared::default();
    let limiter = Limiter::new(rules(""), &shared);
    shared.down.store(true, Ordering::Relaxed);
    assert!(check(&limiter, 60, 7_200).admits());
    let second = check(&limiter, 60, 7_200);
    assert!(second.retry_after().is_some(), "{:?}", second.answer);
}

#[test]
fn each_rule_says_what_an_outage_means() {
    for (mode, refuses) in [("open", false), ("closed", true)] {
        let shared = Shared::default();
        let limiter = Limiter::new(rules(&format!("on_store_failure = \"{mode}\"")), &shared);
        shared.down.store(true, Ordering::Relaxed);
        let answers: Vec<Answer> = (0..50).map(|_| check(&limiter, 1, 7_200).answer).collect();
        assert_eq!(answers.iter().all(|answer| *answer == Answer::Unavailable), refuses, "{mode}");
        assert_eq!(answers.iter().all(|answer| matches!(answer, Answer::Admit { .. })), !refuses, "{mode}");
    }
}

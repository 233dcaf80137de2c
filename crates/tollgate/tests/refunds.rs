//! Receipts: charges that are refunded once the response is known.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "support/shared_counters.rs"]
mod shared_counters;

use std::num::NonZeroU32;
use std::sync::Mutex;
use std::sync::atomic::Ordering;

use tollgate::counters::RefundOutcome;
use tollgate::record::{Record, RecordSink, RefundRecord};
use tollgate::{
    Decision, Endpoint, Id, Limiter, MemoryCounters, Receipt, Request, RuleSet, Seed, Settlement, Span,
    Timestamp,
};

use self::shared_counters::{Shared, now_or_never};

const NOW: Timestamp = Timestamp::from_secs(1_700_000_000);
const REFUNDED: Settlement = Settlement { refunded: 1, dropped: 0, lost: 0 };
const DROPPED: Settlement = Settlement { refunded: 0, dropped: 1, lost: 0 };

fn rules(more: &str) -> RuleSet {
    let rule = format!(
        "[[rules]]\nname = \"r\"\nper = [\"user\"]\nalgorithm = \"fixed_window\"\n\
         limits = [{{ requests = 4, window = \"1h\" }}]\n{more}"
    );
    RuleSet::from_toml(&rule).unwrap()
}

fn alice() -> Request<'static> {
    Request { user: Some(Id::parse("alice").unwrap()), ..Request::new(Endpoint::parse("/login").unwrap()) }
}

fn receipt(decision: Decision) -> Receipt {
    let mut decision = decision;
    decision.take_receipt().unwrap()
}

fn left<R: RecordSink>(limiter: &Limiter<MemoryCounters, R>) -> u32 {
    limiter.check_now(&Request { cost: 0, ..alice() }, NOW).reports[0].remaining()
}

#[test]
fn only_failures_count_on_failure() {
    let limiter = Limiter::new(rules("count = \"on_failure\""), MemoryCounters::default());
    for _ in 0..20 {
        let receipt = receipt(limiter.check_now(&alice(), NOW));
        assert!(receipt.refunds(200) && !receipt.refunds(401));
        assert_eq!(limiter.settle_now(receipt, 200, NOW), REFUNDED);
    }
    for failures in 1..=4 {
        let receipt = receipt(limiter.check_now(&alice(), NOW));
        assert_eq!(limiter.settle_now(receipt, 401, NOW), Settlement::default());
        assert_eq!(left(&limiter), 4 - failures);
    }
    let mut refused = limiter.check_now(&alice(), NOW);
    assert!(!refused.admits() && refused.take_receipt().is_none());
}

#[test]
fn listed_statuses_are_refunded() {
    let limiter = Limiter::new(rules("refund_statuses = [\"5xx\", 404]"), MemoryCounters::default());
    for (status, expected) in [(503, 4), (404, 4), (200, 3), (499, 2)] {
        let receipt = receipt(limiter.check_now(&alice(), NOW));
        limiter.settle_now(receipt, status, NOW);
        assert_eq!(left(&limiter), expected, "{status}");
    }
}

#[test]
fn receipt_is_taken_once_and_counts_if_dropped() {
    let limiter = Limiter::new(rules("count = \"on_failure\""), MemoryCounters::default());
    let mut decision = limiter.check_now(&alice(), NOW);
    drop(decision.take_receipt().unwrap());
    assert!(decision.take_receipt().is_none());
    assert_eq!(left(&limiter), 3);
}

#[test]
fn rule_without_refunds_has_no_receipt() {
    let limiter = Limiter::new(rules("count = \"always\""), MemoryCounters::default());
    assert!(limiter.check_now(&alice(), NOW).take_receipt().is_none());
}

#[test]
fn each_rule_refunds_its_own_statuses() {
    let other = "count = \"on_failure\"\n[[rules]]\nname = \"all\"\nper = [\"global\"]\n\
                 limits = [{ requests = 9, window = \"1h\" }]\nrefund_statuses = [\"5xx\"]\n\
                 [[rules]]\nname = \"plain\"\nlayer = \"plain\"\nper = [\"user\"]\n\
                 limits = [{ requests = 9, window = \"1h\" }]";
    let limiter = Limiter::new(rules(other), MemoryCounters::default());
    let remaining = |name: &str| {
        let decision = limiter.check_now(&Request { cost: 0, ..alice() }, NOW);
        let report = decision.reports.iter().find(|report| decision.rule_name_of(report) == name);
        report.unwrap().remaining()
    };
    let mut expected = (4, 9, 9);
    for (status, counted) in [(200, (0, 1, 1)), (502, (1, 0, 1)), (404, (1, 1, 1))] {
        let receipt = receipt(limiter.check_now(&alice(), NOW));
        limiter.settle_now(receipt, status, NOW);
        expected = (expected.0 - counted.0, expected.1 - counted.1, expected.2 - counted.2);
        assert_eq!((remaining("r"), remaining("all"), remaining("plain")), expected, "{status}");
    }
}

#[test]
fn refund_after_a_limit_change_is_dropped() {
    let limiter = Limiter::new(rules("count = \"on_failure\""), MemoryCounters::default());
    let [first, second] = [(); 2].map(|()| receipt(limiter.check_now(&alice(), NOW)));
    limiter.replace_rules(rules("count = \"on_failure\"\npriority = 7"));
    assert_eq!(limiter.settle_now(first, 200, NOW), REFUNDED, "the limit is the same");
    limiter.replace_rules(
        RuleSet::from_toml(
            "[[rules]]\nname = \"r\"\nper = [\"user\"]\nalgorithm = \"fixed_window\"\n\
             limits = [{ requests = 8, window = \"1h\" }]\ncount = \"on_failure\"",
        )
        .unwrap(),
    );
    assert_eq!(limiter.settle_now(second, 200, NOW), DROPPED);
}

#[test]
fn refund_after_reset_or_window_is_dropped() {
    let limiter = Limiter::new(rules("count = \"on_failure\""), MemoryCounters::default());
    let [first, second] = [(); 2].map(|()| receipt(limiter.check_now(&alice(), NOW)));
    assert_eq!(limiter.settle_now(first, 200, NOW + Span::from_secs(3_600)), DROPPED);
    now_or_never(limiter.snapshot().reset(&alice())).unwrap();
    limiter.check_now(&alice(), NOW);
    assert_eq!(limiter.settle_now(second, 200, NOW), DROPPED);
    assert_eq!(left(&limiter), 3);
}

/// Keeps what became of refunds.
#[derive(Default)]
struct Refunds(Mutex<Vec<(String, RefundOutcome)>>);

impl RecordSink for Refunds {
    fn offer(&self, _: &Record<'_>) {}

    fn refunded(&self, refund: &RefundRecord<'_>) {
        self.0.lock().unwrap().push((refund.rule.to_owned(), refund.outcome));
    }
}

#[test]
fn refund_is_recorded_once_per_rule() {
    let rules = RuleSet::from_toml(
        "[[rules]]\nname = \"r\"\nper = [\"user\"]\ncount = \"on_failure\"\n\
         limits = [{ requests = 5, window = \"1m\" }, { requests = 9, window = \"1h\" }]",
    );
    let limiter =
        Limiter::with_records(rules.unwrap(), MemoryCounters::default(), Refunds::default(), Seed([1; 16]));
    let receipt = receipt(limiter.check_now(&alice(), NOW));
    assert_eq!(limiter.settle_now(receipt, 204, NOW).refunded, 2);
    assert_eq!(*limiter.records().0.lock().unwrap(), [("r".to_owned(), RefundOutcome::Refunded)]);
}

/// Counters shared by two nodes.
fn shared() -> Shared {
    Shared { nodes: NonZeroU32::new(2), ..Shared::default() }
}

fn check(limiter: &Limiter<&Shared>) -> Decision {
    now_or_never(limiter.check(&alice(), NOW))
}

fn settle(limiter: &Limiter<&Shared>, receipt: Receipt) -> Settlement {
    now_or_never(limiter.settle(receipt, 200, NOW))
}

const BUCKET: &str = "[[rules]]\nname = \"r\"\nper = [\"user\"]\ncount = \"on_failure\"\n\
                      limits = [{ requests = 4, window = \"1h\" }]";

#[test]
fn charge_of_the_fallback_is_refunded_there() {
    for rules in [rules("count = \"on_failure\""), RuleSet::from_toml(BUCKET).unwrap()] {
        let shared = shared();
        let limiter = Limiter::new(rules, &shared);
        shared.down.store(true, Ordering::Relaxed);
        for _ in 0..10 {
            let decision = check(&limiter);
            assert!(decision.admits() && decision.degraded);
            assert_eq!(settle(&limiter, receipt(decision)), REFUNDED);
        }
        let kept = check(&limiter);
        assert!(kept.admits());
        shared.down.store(false, Ordering::Relaxed);
        // Of eleven only the one that was not refunded is reconciled, before the next is charged.
        assert_eq!(check(&limiter).reports[0].remaining(), 2);
    }
}

#[test]
fn reconciled_charge_stays_in_the_store() {
    let shared = shared();
    let limiter = Limiter::new(rules("count = \"on_failure\""), &shared);
    shared.down.store(true, Ordering::Relaxed);
    let receipt = receipt(check(&limiter));
    shared.down.store(false, Ordering::Relaxed);
    assert_eq!(now_or_never(limiter.reconcile(10, NOW)), 1);
    assert_eq!(settle(&limiter, receipt), REFUNDED, "to the share of this node");
    assert_eq!(check(&limiter).reports[0].remaining(), 2, "the store still counts it");
}

#[test]
fn lost_refund_is_reported_and_counts() {
    let shared = shared();
    let limiter = Limiter::new(rules("count = \"on_failure\""), &shared);
    let receipt = receipt(check(&limiter));
    shared.down.store(true, Ordering::Relaxed);
    assert_eq!(settle(&limiter, receipt), Settlement { lost: 1, ..Settlement::default() });
    shared.down.store(false, Ordering::Relaxed);
    assert_eq!(check(&limiter).reports[0].remaining(), 2);
}

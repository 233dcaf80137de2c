//! Refunding charges once the response to a request is known.

use smallvec::SmallVec;

use super::Limiter;
use crate::counters::memory::MemoryCounters;
use crate::counters::{CounterStore, Refund, RefundOutcome, RefundOutcomes};
use crate::receipt::{Receipt, ReceiptCharge, ReceiptMark};
use crate::record::{RecordSink, RefundRecord};
use crate::rules::RuleSet;
use crate::time::Timestamp;

/// What [`Limiter::settle`] did, in charges: one per limit of each rule that refunds the status.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Settlement {
    /// Charges taken back.
    pub refunded: usize,
    /// Charges that no longer count, or not certainly: their window ended, the counter was reset or the limit changed.
    pub dropped: usize,
    /// Charges whose store did not reply in time. They still count.
    pub lost: usize,
}

/// The refunds of a receipt, by where they go.
struct Sorted<'a> {
    charges: SmallVec<[&'a ReceiptCharge; 2]>,
    /// What is known of each; `None` if the store is asked.
    outcomes: SmallVec<[Option<RefundOutcome>; 2]>,
    to_store: SmallVec<[Refund<'a>; 2]>,
}

impl<S: CounterStore, R: RecordSink> Limiter<S, R> {
    /// Takes back the charges of rules that refund this status (`count = "on_failure"`, `refund_statuses`).
    ///
    /// Call it once the status of the response is known; for an upstream without a response, with the status that the client
    /// is answered. It waits at most as long as a decision, and never fails: a charge that cannot be taken back stays
    /// counted. The response need not wait for it.
    pub async fn settle(&self, receipt: Receipt, status: u16, now: Timestamp) -> Settlement {
        let sorted = self.sort_refunds(&receipt, status, now);
        let outcomes = if sorted.to_store.is_empty() {
            RefundOutcomes::new()
        } else {
            self.counters.refund(&sorted.to_store, now).await
        };
        self.record_refunds(&receipt, &sorted, outcomes)
    }
}

impl<R: RecordSink> Limiter<MemoryCounters, R> {
    /// [`Limiter::settle`] without a future: memory counters never wait.
    #[expect(clippy::needless_pass_by_value, reason = "a receipt is settled once")]
    pub fn settle_now(&self, receipt: Receipt, status: u16, now: Timestamp) -> Settlement {
        let sorted = self.sort_refunds(&receipt, status, now);
        let outcomes = self.counters.refund_now(&sorted.to_store, now);
        self.record_refunds(&receipt, &sorted, outcomes)
    }
}

impl<S, R: RecordSink> Limiter<S, R> {
    /// Selects the charges to refund, and refunds those of the fallback.
    fn sort_refunds<'a>(&self, receipt: &'a Receipt, status: u16, now: Timestamp) -> Sorted<'a> {
        let in_force = self.rules.load();
        let refunded = receipt.charges.iter().filter(|charge| receipt.refunds_charge(charge, status));
        let charges: SmallVec<[&ReceiptCharge; 2]> = refunded.collect();
        let mut to_store = SmallVec::new();
        let outcomes = charges.iter().map(|charge| {
            if !is_unchanged(charge, &receipt.rules, &in_force) {
                return Some(RefundOutcome::Dropped);
            }
            match charge.mark {
                ReceiptMark::Fallback(mark) => Some(self.fallback.refund(&charge.charge(), mark, now)),
                ReceiptMark::Store(mark) => {
                    to_store.push(Refund { charge: charge.charge(), mark });
                    None
                }
            }
        });
        Sorted { outcomes: outcomes.collect(), charges, to_store }
    }

    /// Counts the outcomes and records them by rule.
    fn record_refunds(&self, receipt: &Receipt, sorted: &Sorted<'_>, of_store: RefundOutcomes) -> Settlement {
        let mut of_store = of_store.into_iter();
        let mut settlement = Settlement::default();
        let mut by_rule: SmallVec<[(u32, RefundOutcome); 2]> = SmallVec::new();
        for (charge, known) in sorted.charges.iter().zip(&sorted.outcomes) {
            let outcome = known.or_else(|| of_store.next()).unwrap_or(RefundOutcome::Lost);
            match outcome {
                RefundOutcome::Refunded => settlement.refunded += 1,
                RefundOutcome::Dropped => settlement.dropped += 1,
                RefundOutcome::Lost => settlement.lost += 1,
            }
            match by_rule.last_mut().filter(|(rule, _)| *rule == charge.rule) {
                Some((_, worst)) => *worst = outcome.max(*worst),
                None => by_rule.push((charge.rule, outcome)),
            }
        }
        for (rule, outcome) in by_rule {
            let position = Some(rule as usize).filter(|position| *position < receipt.rules.rules().len());
            self.records.refunded(&RefundRecord { rule: receipt.rule_name(rule), position, outcome });
        }
        settlement
    }
}

/// Whether the counter is still charged by the same limit. Under another one the charge weighs differently.
fn is_unchanged(charge: &ReceiptCharge, charged_by: &RuleSet, in_force: &RuleSet) -> bool {
    std::ptr::eq(charged_by, in_force) || in_force.limit_of(charge.counter) == Some(&charge.limit)
}

//! Receipts of admitted requests, by which charges are refunded once the response is known.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::counters::fallback::FallbackMark;
use crate::counters::{Charge, ChargeMark, ChargeMarks, CounterId, Effect};
use crate::identity::Subject;
use crate::limit::Limit;
use crate::rules::{ChargePlan, RuleSet, namespace};

/// The refundable charges of one admitted request, from [`Decision::take_receipt`](crate::Decision::take_receipt).
///
/// [`Limiter::settle`](crate::Limiter::settle) consumes it once the response is known. A receipt that is dropped refunds
/// nothing.
#[derive(Debug)]
#[must_use = "charges are refunded only by Limiter::settle"]
pub struct Receipt {
    pub(crate) rules: Arc<RuleSet>,
    pub(crate) charges: ReceiptCharges,
}

/// The refundable charges of one request, those of each rule together.
pub(crate) type ReceiptCharges = SmallVec<[ReceiptCharge; 1]>;

/// One refundable charge.
#[derive(Debug)]
pub(crate) struct ReceiptCharge {
    subject: Subject,
    pub(crate) counter: CounterId,
    /// The name under which the store counts: that of the rule, or of the override in its place.
    name: Box<str>,
    pub(crate) limit: Limit,
    cost: u32,
    /// The position of the rule in its set.
    pub(crate) rule: u32,
    pub(crate) mark: ReceiptMark,
}

/// Where a charge was taken.
#[derive(Copy, Clone, Debug)]
pub(crate) enum ReceiptMark {
    Store(ChargeMark),
    /// By this node while the store was unreachable.
    Fallback(FallbackMark),
}

impl Receipt {
    /// Whether a response with this status refunds anything. If not, the receipt can be dropped.
    pub fn refunds(&self, status: u16) -> bool {
        self.charges.iter().any(|charge| self.refunds_charge(charge, status))
    }

    pub(crate) fn refunds_charge(&self, charge: &ReceiptCharge, status: u16) -> bool {
        let rule = self.rules.rules().get(charge.rule as usize);
        rule.is_some_and(|rule| rule.refund_policy.refunds(status))
    }

    /// The name of the rule of a charge.
    pub(crate) fn rule_name(&self, rule: u32) -> &str {
        self.rules.rules().get(rule as usize).map_or_else(|| namespace(rule), |rule| &rule.name)
    }
}

impl ReceiptCharge {
    /// The charge as it was admitted.
    pub(crate) fn charge(&self) -> Charge<'_> {
        Charge {
            subject: self.subject,
            counter: self.counter,
            rule: &self.name,
            limit: &self.limit,
            cost: self.cost,
            effect: Effect::Enforce,
            leases: false,
            refundable: true,
        }
    }
}

/// The charges of a plan that have a mark.
pub(crate) fn collect(
    plan: &ChargePlan<'_>,
    marks: impl Iterator<Item = Option<ReceiptMark>>,
) -> Option<Box<ReceiptCharges>> {
    let charges = plan.charges.charges.iter().zip(&plan.sources).zip(marks);
    let marked = charges.filter_map(|((charge, source), mark)| Some((charge, *source, mark?)));
    let charges: ReceiptCharges = marked
        .map(|(charge, rule, mark)| ReceiptCharge {
            subject: charge.subject,
            counter: charge.counter,
            name: charge.rule.into(),
            limit: charge.limit.clone(),
            cost: charge.cost,
            rule,
            mark,
        })
        .collect();
    (!charges.is_empty()).then(|| Box::new(charges))
}

/// The charges of a plan that the store has marked.
pub(crate) fn of_store(plan: &ChargePlan<'_>, marks: &ChargeMarks) -> Option<Box<ReceiptCharges>> {
    collect(plan, marks.iter().map(|mark| mark.map(ReceiptMark::Store)))
}

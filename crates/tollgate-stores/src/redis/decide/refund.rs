//! Refunds of charges whose response is known.
//!
//! The script takes a charge back by its mark, if its counter is still of the same generation and in the same window. A refund
//! is sent once, within the time of a decision; without a reply it is lost, and the charge stays counted.

use std::sync::atomic::Ordering;
use std::time::Instant;

use futures_util::future::join_all;
use smallvec::{SmallVec, smallvec};
use tollgate::Timestamp;
use tollgate::algorithms::Verdict;
use tollgate::counters::{Charge, ChargeMark, ChargeMarks, Charges, Refund, RefundOutcome, RefundOutcomes};
use tollgate::limit::Algorithm;

use super::{Decider, Replies, ShardCharges, add_to_shard};
use crate::redis::connection::error::Fault;
use crate::redis::script::call::{Extra, LaterRefund, Mode, ScriptCall};
use crate::redis::script::reply::{Grant, Reply};

/// A number in a bucket takes 32 bits; the number of failovers is above it.
const ORDER_BITS: u32 = 32;

impl Decider {
    /// Takes back charges, with one script call per shard.
    pub(crate) async fn refund(
        &self,
        refunds: &[Refund<'_>],
        now: Timestamp,
        started: Instant,
    ) -> RefundOutcomes {
        let failovers = self.failovers.load(Ordering::Relaxed);
        let mut outcomes: RefundOutcomes = smallvec![RefundOutcome::Dropped; refunds.len()];
        let mut groups = SmallVec::new();
        for (position, refund) in refunds.iter().enumerate() {
            // A replica that took over may not have the charge.
            if refund.mark.order >> ORDER_BITS == u64::from(failovers) {
                add_to_shard(&mut groups, self.shards.shard_of(refund.charge.subject), position);
            }
        }
        let deadline = started + self.timeout;
        let calls = groups.iter().map(|group| self.refund_shard(group, refunds, now, deadline));
        for (group, reply) in groups.iter().zip(join_all(calls).await) {
            for (index, position) in group.positions.iter().enumerate() {
                outcomes[*position] = match &reply {
                    Ok(reply) if reply.charges.get(index).is_some_and(|charge| charge.refunded) => {
                        RefundOutcome::Refunded
                    }
                    Ok(_) => RefundOutcome::Dropped,
                    Err(_) => RefundOutcome::Lost,
                };
            }
        }
        // Also if a reply was lost: the charge may have been taken back.
        if let Some(refusals) = &self.refusals {
            for refund in refunds {
                refusals.invalidate_counter(&refund.charge);
            }
        }
        outcomes
    }

    async fn refund_shard(
        &self,
        group: &ShardCharges,
        refunds: &[Refund<'_>],
        now: Timestamp,
        deadline: Instant,
    ) -> Result<Reply, Fault> {
        self.join_state.check()?;
        let mut call = ScriptCall::new(Mode::Forced, None);
        let mut extras: SmallVec<[Extra; 4]> = SmallVec::new();
        for position in &group.positions {
            let Refund { charge, mark } = &refunds[*position];
            let extra = refund_of(charge.cost, *mark);
            call.push(&Charge { cost: 0, ..*charge }, false, extra, now);
            extras.push(extra);
        }
        let value = self.shards.call(group.shard, call.command(), deadline).await?;
        Ok(Reply::read(&value, extras.into_iter())?)
    }
}

fn refund_of(cost: u32, mark: ChargeMark) -> Extra {
    let ChargeMark { position, generation, order, refunded } = mark;
    let order = u32::try_from(order & u64::from(u32::MAX)).unwrap_or(u32::MAX);
    Extra::Refund { mark: position, cost, later: Some(LaterRefund { born: generation, order, refunded }) }
}

/// The marks of the refundable charges of an admitted decision.
pub(super) fn marks(
    groups: &[ShardCharges],
    charges: &Charges<'_>,
    replies: &Replies,
    failovers: u32,
) -> Option<Box<ChargeMarks>> {
    charges.charges.iter().find(|charge| charge.refundable).filter(|_| !charges.dry_run)?;
    let mut marks: ChargeMarks = smallvec![None; charges.charges.len()];
    for (group, reply) in groups.iter().zip(replies) {
        let Ok(reply) = reply else { continue };
        for (position, charged) in group.positions.iter().zip(&reply.charges) {
            let charge = &charges.charges[*position];
            let is_taken = charge.refundable && charge.cost > 0 && charged.verdict.admits();
            marks[*position] = charged.grant.filter(|_| is_taken).map(|grant| ChargeMark {
                position: charge_mark(charge, &charged.verdict, grant, reply.now),
                generation: grant.born,
                order: u64::from(failovers) << ORDER_BITS | grant.order,
                refunded: grant.refunded_before,
            });
        }
    }
    Some(Box::new(marks))
}

/// What identifies a charge for the script: its window or log entry, or the instant at which a bucket has paid it back.
pub(super) fn charge_mark(
    charge: &Charge<'_>,
    verdict: &Verdict,
    grant: Grant,
    decided_at: Timestamp,
) -> u64 {
    match charge.limit.algorithm() {
        Algorithm::TokenBucket | Algorithm::Gcra | Algorithm::LeakyBucket => {
            (decided_at + verdict.reset_after).as_micros()
        }
        _ => grant.mark,
    }
}

//! Decisions whose counters are on several shards: charged on all of them, or refunded.
//!
//! If a shard refuses or does not reply, the others refund what they charged. A refund takes back only what is certainly
//! still counted: not from a window that has ended, nor from a bucket that may have been empty since.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use smallvec::SmallVec;
use tokio::sync::oneshot;
use tokio::time::timeout_at;
use tollgate::algorithms::Verdict;
use tollgate::counters::{Charge, Charges, Effect, PenaltyCharge, Verdicts};
use tollgate::{Span, Timestamp};

use super::ShardCharges;
use super::penalty_list;
use super::refund::charge_mark;
use crate::redis::connection::error::Fault;
use crate::redis::lease::ServedBy;
use crate::redis::script::call::{Extra, Mode, ScriptCall};
use crate::redis::script::reply::{ChargeReply, Reply};
use crate::redis::topology::ShardMap;
use crate::redis::topology::background::BackgroundCalls;

/// Completes decisions that span shards.
pub(crate) struct MultiShard {
    shards: Arc<ShardMap>,
    background: BackgroundCalls,
    refunds: AtomicU64,
}

/// Refunds in flight on one shard.
pub(crate) struct Refund {
    /// Positions of the charges, and the units leased along with each, which stay here.
    refunded: SmallVec<[(usize, u32); 4]>,
    replies: oneshot::Receiver<SmallVec<[ChargeReply; 4]>>,
}

impl MultiShard {
    pub(crate) fn new(shards: Arc<ShardMap>, background: BackgroundCalls) -> Self {
        MultiShard { shards, background, refunds: AtomicU64::new(0) }
    }

    /// Charges refunded.
    pub(crate) fn refunds(&self) -> u64 {
        self.refunds.load(Ordering::Relaxed)
    }

    /// Starts refunds unless the decision admits. A lost refund only counts too much.
    pub(crate) fn refund(
        &self,
        groups: &[ShardCharges],
        charges: &Charges<'_>,
        replies: &[Result<Reply, Fault>],
        verdicts: &Result<Verdicts, Fault>,
        now: Timestamp,
    ) -> SmallVec<[Refund; 4]> {
        if charges.dry_run || verdicts.as_ref().is_ok_and(|verdicts| verdicts.admitted(charges)) {
            return SmallVec::new();
        }
        let answered =
            groups.iter().zip(replies).filter_map(|(group, reply)| Some((group, reply.as_ref().ok()?)));
        answered.filter_map(|(group, reply)| self.refund_shard(group, charges, reply, now)).collect()
    }

    /// Refunds what one shard charged, if anything.
    fn refund_shard(
        &self,
        group: &ShardCharges,
        charges: &Charges<'_>,
        reply: &Reply,
        now: Timestamp,
    ) -> Option<Refund> {
        let judged: SmallVec<[(usize, &Charge<'_>, &ChargeReply); 4]> = (group.positions.iter())
            .zip(&reply.charges)
            .map(|(position, reply)| (*position, &charges.charges[*position], reply))
            .collect();
        let refused = judged
            .iter()
            .any(|(_, charge, reply)| !reply.verdict.admits() && charge.effect == Effect::Enforce);
        // A shard that refused, or has the client in cooldown, charged nothing.
        if reply.in_cooldown || refused {
            return None;
        }
        let mut call = ScriptCall::new(Mode::Forced, None);
        let mut refunded: SmallVec<[(usize, u32); 4]> = SmallVec::new();
        for (position, charge, charged) in judged {
            let Some(grant) = charged.grant.filter(|_| charged.verdict.admits() && charge.cost > 0) else {
                continue;
            };
            let free = Charge { cost: 0, ..*charge };
            let mark = charge_mark(charge, &charged.verdict, grant, reply.now);
            call.push(&free, false, Extra::Refund { mark, cost: charge.cost, later: None }, now);
            refunded.push((position, grant.granted));
        }
        if refunded.is_empty() {
            return None;
        }
        let (send, replies) = oneshot::channel();
        let (background, shard) = (self.background.clone(), group.shard);
        let (command, count) = (call.command(), refunded.len());
        let started = self.background.run(async move {
            let extras = std::iter::repeat_n(Extra::Refund { mark: 0, cost: 0, later: None }, count);
            let reply = background.call(shard, command).await;
            let reply = reply.and_then(|value| Ok(Reply::read(&value, extras)?));
            let _ = send.send(reply.map(|reply| reply.charges).unwrap_or_default());
        });
        if started {
            self.refunds.fetch_add(count as u64, Ordering::Relaxed);
        }
        Some(Refund { refunded, replies })
    }

    /// Records a refusal in the client's penalty record, which may be on another shard than the counter that refused.
    pub(crate) async fn record_refusal(
        &self,
        charges: &Charges<'_>,
        verdicts: Result<Verdicts, Fault>,
        decided_at: Timestamp,
        deadline: Instant,
    ) -> Result<Verdicts, Fault> {
        let mut verdicts = verdicts?;
        if let Some(penalty) = &charges.penalty
            && verdicts.cooldown.is_none()
            && !charges.dry_run
            && !verdicts.admitted(charges)
            && let Some(episode) = verdicts.episode(charges)
        {
            verdicts.cooldown = self.record_violation(penalty, episode, decided_at, deadline).await;
        }
        Ok(verdicts)
    }

    /// Returns the cooldown if the reply comes in time; the violation is recorded in any case.
    async fn record_violation(
        &self,
        penalty: &PenaltyCharge<'_>,
        episode: Span,
        decided_at: Timestamp,
        deadline: Instant,
    ) -> Option<Span> {
        let command = ScriptCall::record_refusal(penalty, episode).command();
        let (shard, home) = (self.shards.shard_of(penalty.subject), self.shards.home());
        let listing = penalty_list::add_commands(penalty, decided_at);
        let (send, cooldown) = oneshot::channel();
        let background = self.background.clone();
        self.background.run(async move {
            let Ok(value) = background.call(shard, command).await else { return };
            let Ok(reply) = Reply::read(&value, std::iter::empty()) else { return };
            if reply.violation_added {
                for command in listing {
                    background.send(home, command);
                }
            }
            let _ = send.send(reply.cooldown);
        });
        timeout_at(deadline.into(), cooldown).await.ok()?.ok()?
    }
}

/// The verdicts with counters as they stand after the refunds, where those are known in time.
pub(crate) async fn subtract_refunds(
    refunds: SmallVec<[Refund; 4]>,
    verdicts: Result<Verdicts, Fault>,
    deadline: Instant,
) -> Result<Verdicts, Fault> {
    let mut verdicts = verdicts?;
    for Refund { refunded, replies } in refunds {
        let Ok(Ok(replies)) = timeout_at(deadline.into(), replies).await else { continue };
        for ((position, granted), reply) in refunded.into_iter().zip(replies) {
            if let Some(verdict) = verdicts.verdicts.get_mut(position) {
                verdict.remaining = reply.verdict.remaining.saturating_add(granted);
                verdict.reset_after = reply.verdict.reset_after;
            }
        }
    }
    Ok(verdicts)
}

/// The verdicts of all shards in the order of the charges. A refusal by one shard stands even if another does not reply:
/// otherwise clients with a counter on an unreachable shard would have no limit at all.
pub(crate) fn merge(
    groups: &[ShardCharges],
    replies: &[Result<Reply, Fault>],
    charges: &Charges<'_>,
    served_by: &[ServedBy],
) -> Result<Verdicts, Fault> {
    let leased = served_by.iter().map(|served_by| match served_by {
        ServedBy::Lease(verdict, _) => Some(*verdict),
        _ => None,
    });
    let mut verdicts: SmallVec<[Option<Verdict>; 4]> = leased.collect();
    let (mut cooldown, mut in_cooldown, mut fault) = (None, false, None);
    for (group, reply) in groups.iter().zip(replies) {
        match reply {
            Err(error) => fault = fault.or(Some(error)),
            Ok(reply) => {
                cooldown = cooldown.or(reply.cooldown);
                in_cooldown |= reply.in_cooldown;
                for (position, reply) in group.positions.iter().zip(&reply.charges) {
                    verdicts[*position] = Some(reply.with_granted());
                }
            }
        }
    }
    debug_assert_eq!(verdicts.len(), charges.charges.len());
    let verdicts = charges.charges.iter().zip(verdicts);
    let verdicts = verdicts.map(|(charge, verdict)| verdict.unwrap_or_else(|| Verdict::unused(charge.limit)));
    let shared = fault.is_none();
    let verdicts = Verdicts { verdicts: verdicts.collect(), cooldown, in_cooldown, shared, marks: None };
    match fault {
        Some(fault) if verdicts.admitted(charges) => Err(fault.clone()),
        _ => Ok(verdicts),
    }
}

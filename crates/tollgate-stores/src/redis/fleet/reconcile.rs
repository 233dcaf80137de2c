//! Reconciliation: adds what the fallback counted during an outage to Redis.
//!
//! The reset log is read first, so that reconciliation does not undo a reset. A request waits for that only if messages may
//! have been missed. Charges may still arrive after a reset, so the log is read again afterwards and such resets are
//! repeated.

use std::slice;
use std::sync::Arc;
use std::time::Instant;

use futures_util::future::join_all;
use hashbrown::HashSet;
use smallvec::SmallVec;
use tollgate::Timestamp;
use tollgate::counters::{Charge, Charges};

use super::resets::Resets;
use crate::redis::connection::error::{Cause, Fault};
use crate::redis::decide::join_state::JoinState;
use crate::redis::decide::{ShardCharges, add_to_shard};
use crate::redis::lease::counter_key;
use crate::redis::script::call::{Extra, Mode, ScriptCall};
use crate::redis::topology::{ShardId, ShardMap};

/// Adds charges that the fallback counted.
pub(crate) struct Reconciler {
    shards: Arc<ShardMap>,
    join_state: Arc<JoinState>,
    resets: Arc<Resets>,
}

impl Reconciler {
    pub(crate) fn new(shards: Arc<ShardMap>, join_state: Arc<JoinState>, resets: Arc<Resets>) -> Self {
        Reconciler { shards, join_state, resets }
    }

    /// Adds pending charges, except of counters that were reset. Charges whose log could not be read, or that were certainly
    /// not added, stay pending.
    pub(crate) async fn reconcile(&self, pending: &mut Charges<'_>, now: Timestamp) -> Result<(), Fault> {
        let unread = self.resets.drop_reset(pending, |_| true, self.shards.admin_deadline()).await;
        let is_read = |charge: &Charge<'_>| self.blocking_fault(charge, &unread).is_none();
        let (read, unread): (Vec<_>, Vec<_>) = pending.charges.iter().copied().partition(is_read);
        let mut left = Charges { charges: read.iter().copied().collect(), ..Charges::default() };
        let started = Instant::now();
        let added = self.add(&mut left, now, started + self.shards.admin_timeout()).await;
        let kept: HashSet<u128> = left.charges.iter().chain(&unread).map(counter_key).collect();
        pending.charges.retain(|charge| kept.contains(&counter_key(charge)));
        let sent: Vec<_> = read.into_iter().filter(|charge| !kept.contains(&counter_key(charge))).collect();
        self.resets.repeat_resets(&sent, started).await;
        added.and(if unread.is_empty() { Ok(()) } else { Err(Fault::NotSent) })
    }

    /// Drops pending charges of counters that were reset, before a request adds them. Reads the log only where messages may
    /// have been missed.
    ///
    /// # Errors
    /// When a reachable log cannot be read, or the deadline has passed: then nothing should be added now.
    pub(crate) async fn drop_reset(&self, pending: &mut Charges<'_>, deadline: Instant) -> Result<(), Fault> {
        let may_have_missed = |shard| self.resets.may_have_missed(shard);
        let unread = self.resets.drop_reset(pending, may_have_missed, deadline).await;
        match pending.charges.iter().find_map(|charge| self.blocking_fault(charge, &unread)) {
            Some(fault) => Err(fault.clone()),
            None if unread.is_empty() || Instant::now() < deadline => Ok(()),
            None => Err(Fault::NotSent),
        }
    }

    /// Why a charge must wait until its log can be read. In a cluster, the server of the log may be down while the server of
    /// the counter is not; such charges do not wait.
    fn blocking_fault<'a>(&self, charge: &Charge<'_>, unread: &'a [(ShardId, Fault)]) -> Option<&'a Fault> {
        let log = self.resets.log_shard(charge.subject);
        let must_wait = log == self.shards.shard_of(charge.subject) || self.shards.is_reachable(log);
        unread.iter().find(|(shard, _)| must_wait && *shard == log).map(|(_, fault)| fault)
    }

    /// Adds charges, one call per shard, and keeps in `pending` those that were certainly not added. A call that may have
    /// been executed is not repeated.
    pub(crate) async fn add(
        &self,
        pending: &mut Charges<'_>,
        now: Timestamp,
        deadline: Instant,
    ) -> Result<(), Fault> {
        let mut groups = SmallVec::new();
        for (position, charge) in pending.charges.iter().enumerate() {
            add_to_shard(&mut groups, self.shards.shard_of(charge.subject), position);
        }
        let calls = groups.iter().map(|group| self.add_to_shard(group, pending, now, deadline));
        let failed: SmallVec<[(usize, Fault); 4]> = join_all(calls).await.into_iter().flatten().collect();
        let mut position = 0;
        pending.charges.retain(|_| {
            position += 1;
            failed.iter().any(|(failed, fault)| *failed == position - 1 && fault.charged_nothing())
        });
        failed.into_iter().next().map_or(Ok(()), |(_, fault)| Err(fault))
    }

    /// Adds the charges of one shard. Returns those that failed.
    async fn add_to_shard(
        &self,
        group: &ShardCharges,
        pending: &Charges<'_>,
        now: Timestamp,
        deadline: Instant,
    ) -> SmallVec<[(usize, Fault); 4]> {
        let positions = &group.positions;
        let add = |positions| self.add_positions(group.shard, positions, pending, now, deadline);
        match add(positions).await {
            Ok(()) => SmallVec::new(),
            // One key has the wrong type: the others are added one by one, and it is given up.
            Err(fault) if fault.cause() == Some(Cause::Counter) => {
                let outcomes =
                    join_all(positions.iter().map(|position| add(slice::from_ref(position)))).await;
                let faults = positions.iter().zip(outcomes);
                let faults = faults.filter_map(|(position, outcome)| Some((*position, outcome.err()?)));
                faults.filter(|(_, fault)| fault.cause() != Some(Cause::Counter)).collect()
            }
            Err(fault) => positions.iter().map(|position| (*position, fault.clone())).collect(),
        }
    }

    async fn add_positions(
        &self,
        shard: ShardId,
        positions: &[usize],
        pending: &Charges<'_>,
        now: Timestamp,
        deadline: Instant,
    ) -> Result<(), Fault> {
        self.join_state.check()?;
        let mut call = ScriptCall::new(Mode::Forced, None);
        for charge in positions.iter().map(|position| &pending.charges[*position]) {
            call.push(charge, false, Extra::None, now);
        }
        self.shards.call(shard, call.command(), deadline).await.map(drop)
    }
}

//! What a node counted by itself in an outage, brought to where it belongs.

use std::slice;
use std::time::Instant;

use futures_util::future::join_all;
use smallvec::SmallVec;
use tollgate::Timestamp;
use tollgate::counters::Charges;

use crate::redis::Store;
use crate::redis::connection::error::Fault;
use crate::redis::decide::Group;
use crate::redis::lease::Serving;
use crate::redis::script::{Arguments, Extra, Mode};
use crate::redis::topology::ShardId;

impl Store {
    /// Adds what was counted elsewhere, one call per shard, and removes from `held` what was added, or may have been: as any
    /// call that may have been executed it is not sent again.
    pub(crate) async fn reconcile(
        &self,
        held: &mut Charges<'_>,
        now: Timestamp,
        deadline: Instant,
    ) -> Result<(), Fault> {
        let asked: SmallVec<[Serving; 4]> = SmallVec::from_elem(Serving::Ask, held.charges.len());
        let groups = self.groups(held, &asked);
        let carried = join_all(groups.iter().map(|group| self.carry_group(group, held, now, deadline))).await;
        // Each shard for itself: what one has added must not be brought again because another is away.
        let left: SmallVec<[(usize, Fault); 4]> = carried.into_iter().flatten().collect();
        let mut position = 0;
        held.charges.retain(|_| {
            position += 1;
            left.iter().any(|(left, fault)| *left == position - 1 && fault.did_nothing())
        });
        left.into_iter().next().map_or(Ok(()), |(_, fault)| Err(fault))
    }

    /// Adds what belongs to one shard. Which of it may not have been added, and why.
    async fn carry_group(
        &self,
        group: &Group,
        held: &Charges<'_>,
        now: Timestamp,
        deadline: Instant,
    ) -> SmallVec<[(usize, Fault); 4]> {
        let positions = &group.positions;
        let carry = |positions| self.carry_to(group.shard, positions, held, now, deadline);
        match carry(positions).await {
            Ok(()) => SmallVec::new(),
            // One of them is no counter: that holds up no other, and has nowhere to go itself.
            Err(fault) if fault.is_of_counter() => {
                let alone = join_all(positions.iter().map(|position| carry(slice::from_ref(position))));
                let faults = positions.iter().zip(alone.await);
                let faults = faults.filter_map(|(position, outcome)| Some((*position, outcome.err()?)));
                faults.filter(|(_, fault)| !fault.is_of_counter()).collect()
            }
            Err(fault) => positions.iter().map(|position| (*position, fault.clone())).collect(),
        }
    }

    async fn carry_to(
        &self,
        shard: ShardId,
        positions: &[usize],
        held: &Charges<'_>,
        now: Timestamp,
        deadline: Instant,
    ) -> Result<(), Fault> {
        let mut arguments = Arguments::new(Mode { forced: true, dry_run: false }, None);
        let mut keys: SmallVec<[String; 4]> = SmallVec::new();
        for charge in positions.iter().map(|position| &held.charges[*position]) {
            self.add(charge, false, Extra::None, now, &mut keys, &mut arguments)?;
        }
        self.shards.call(shard, self.script.call(&keys, &arguments), deadline).await.map(drop)
    }
}

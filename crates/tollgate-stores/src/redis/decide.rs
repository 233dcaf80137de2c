//! One decision: its charges grouped by shard, and one call for each.

pub(crate) mod lease_use;
pub(crate) mod multi_shard;
mod reconcile;
pub(crate) mod refusal_cache;

use std::sync::atomic::Ordering;
use std::time::Instant;

use futures_util::future::join_all;
use smallvec::{SmallVec, smallvec};
use tollgate::algorithms::Outcome;
use tollgate::counters::{Charge, Charges, Verdicts};
use tollgate::identity::Subject;
use tollgate::{Span, Timestamp};

use crate::redis::Store;
use crate::redis::connection::error::Fault;
use crate::redis::decide::lease_use::Taken;
use crate::redis::decide::multi_shard::{merge, without_refunded};
use crate::redis::lease::Serving;
use crate::redis::script::keys::{self, Tag};
use crate::redis::script::{Answer, Arguments, Bits, Extra, Mode};
use crate::redis::topology::ShardId;

/// The charges of one decision that share a shard.
pub(crate) struct Group {
    pub(crate) shard: ShardId,
    /// Which charges.
    pub(crate) positions: SmallVec<[usize; 4]>,
    /// Whether the client's record is here too.
    pub(crate) watched: bool,
    /// Whether other charges are elsewhere: then a refusal is noted when all are known, by the longest of the windows.
    apart: bool,
}

impl Store {
    /// Decides, at whatever shards_seen the counters are; and by which instant of a server. Whoever waits has waited since
    /// `started`.
    pub(crate) async fn decide(
        &self,
        charges: &Charges<'_>,
        now: Timestamp,
        started: Instant,
    ) -> Result<(Verdicts, Option<Timestamp>), Fault> {
        self.charges.fetch_add(charges.charges.len() as u64, Ordering::Relaxed);
        let refusals = self.refusals.as_ref().filter(|_| !charges.dry_run);
        if let Some(verdicts) = refusals.and_then(|refusals| refusals.answer(charges, started)) {
            return Ok((verdicts, None));
        }
        let asked = refusals.map(|refusals| refusals.asking(started));
        // Given back when this returns, or is no longer waited for, unless it is used.
        let mut taken = Taken::new(self, charges, started);
        if let Some(verdicts) = taken.verdicts() {
            return Ok((verdicts, None));
        }
        let (mut verdicts, decided_at) = self.ask_servers(charges, &taken.servings, now, started).await?;
        if let Some(penalty) = &charges.penalty {
            self.note_cooldown(penalty.subject, verdicts.cooldown);
        }
        let admitted = verdicts.admitted(charges);
        if admitted {
            taken.use_up();
        } else {
            taken.tell_as_put_back(&mut verdicts);
        }
        self.add_leased(charges, &mut verdicts, started);
        match refusals.zip(asked) {
            Some((refusals, _)) if admitted => refusals.outdate(charges),
            Some((refusals, asked)) => refusals.remember(charges, &verdicts, asked),
            None => {}
        }
        Ok((verdicts, Some(decided_at)))
    }

    /// To whoever only looks, what this node holds of a counter is as good as there.
    fn add_leased(&self, charges: &Charges<'_>, verdicts: &mut Verdicts, now: Instant) {
        let told = charges.charges.iter().zip(&mut verdicts.verdicts);
        for (charge, verdict) in told.filter(|(charge, _)| charges.dry_run || charge.cost == 0) {
            let left = self.leases.left(charge, now);
            verdict.remaining = verdict.remaining.saturating_add(left);
            if left >= charge.cost.max(1) && matches!(verdict.outcome, Outcome::Refuse { .. }) {
                verdict.outcome = Outcome::Admit { delay: Span::ZERO };
            }
        }
    }

    /// Asks for everything that is not leased.
    async fn ask_servers(
        &self,
        charges: &Charges<'_>,
        servings: &[Serving],
        now: Timestamp,
        started: Instant,
    ) -> Result<(Verdicts, Timestamp), Fault> {
        let deadline = started + self.timeout;
        let groups = self.groups(charges, servings);
        let plain = if groups.len() > 1 { Extra::Refundable } else { Extra::None };
        let extras: SmallVec<[Extra; 4]> = servings
            .iter()
            .map(|serving| match serving {
                Serving::AskFor(request, _) => Extra::Lease(*request),
                _ => plain,
            })
            .collect();
        let calls = groups.iter().map(|group| self.ask(group, charges, &extras, now, deadline));
        let answers: SmallVec<[Result<Answer, Fault>; 2]> = match groups.as_slice() {
            [group] => smallvec![self.ask(group, charges, &extras, now, deadline).await],
            _ => join_all(calls).await.into(),
        };
        self.take_grants(&groups, charges, servings, &answers, started);
        let mut verdicts = merge(&groups, &answers, charges, servings);
        let decided_at = answers.iter().flatten().map(|answer| answer.now).max().unwrap_or(now);
        if groups.len() > 1 {
            let refunds = self.refund_unless_admitted(&groups, charges, &answers, &verdicts, now);
            verdicts = self.note_refusal_elsewhere(charges, verdicts, decided_at, deadline).await;
            verdicts = without_refunded(refunds, verdicts, deadline).await;
        }
        if let Some(penalty) = &charges.penalty
            && answers.iter().flatten().any(|answer| answer.noted)
        {
            self.list_record(penalty, decided_at);
        }
        Ok((verdicts?, decided_at))
    }

    /// The charges that are not leased, by shard.
    pub(crate) fn groups(&self, charges: &Charges<'_>, servings: &[Serving]) -> SmallVec<[Group; 2]> {
        let mut groups: SmallVec<[Group; 2]> = SmallVec::new();
        let mut group_at = |shard: ShardId| -> usize {
            groups.iter().position(|group| group.shard == shard).unwrap_or_else(|| {
                groups.push(Group { shard, positions: SmallVec::new(), watched: false, apart: false });
                groups.len() - 1
            })
        };
        let record = charges.penalty.as_ref().map(|penalty| group_at(self.shard(penalty.subject)));
        let asked = charges.charges.iter().zip(servings).enumerate();
        let asked = asked.filter(|(_, (_, serving))| !matches!(serving, Serving::Leased(..)));
        let shards_seen: SmallVec<[(usize, usize); 4]> =
            asked.map(|(position, (charge, _))| (position, group_at(self.shard(charge.subject)))).collect();
        for (position, group) in shards_seen {
            groups[group].positions.push(position);
        }
        if let Some(record) = record {
            groups[record].watched = true;
        }
        let apart = groups.len() > 1;
        groups.iter_mut().for_each(|group| group.apart = apart);
        groups
    }

    pub(crate) fn shard(&self, subject: Subject) -> ShardId {
        self.shards.shard(&Tag::new(subject))
    }

    /// One call for one group. `extras` are those of all charges of the decision.
    async fn ask(
        &self,
        group: &Group,
        charges: &Charges<'_>,
        extras: &[Extra],
        now: Timestamp,
        deadline: Instant,
    ) -> Result<Answer, Fault> {
        let penalty = charges.penalty.as_ref().filter(|_| group.watched);
        let mode = Mode { dry_run: charges.dry_run, ..Mode::default() };
        let mut arguments = Arguments::new(mode, penalty);
        let mut keys: SmallVec<[String; 4]> = SmallVec::new();
        keys.extend(penalty.map(|penalty| keys::record(&Tag::new(penalty.subject))));
        for position in &group.positions {
            let charge = &charges.charges[*position];
            let blamed = !group.apart && penalty.is_some_and(|penalty| penalty.is_violation(*position));
            self.add(charge, blamed, extras[*position], now, &mut keys, &mut arguments)?;
        }
        let command = self.script.call(&keys, &arguments);
        let value = self.shards.call(group.shard, command, deadline).await?;
        let answer = Answer::read(&value, group.positions.iter().map(|position| extras[*position]))?;
        self.note_clock(answer.now, now);
        Ok(answer)
    }

    /// Adds a charge to a call, with every key its counter may be under.
    pub(crate) fn add(
        &self,
        charge: &Charge<'_>,
        blamed: bool,
        extra: Extra,
        now: Timestamp,
        keys: &mut SmallVec<[String; 4]>,
        arguments: &mut Arguments,
    ) -> Result<(), Fault> {
        let (counter, before) = self.counter(charge, now)?;
        keys.push(counter.key);
        let renamed = before.map(|(before, at)| {
            keys.push(before.key);
            at
        });
        arguments.push(charge, Bits { blamed, renamed }, extra, now);
        Ok(())
    }

    fn note_clock(&self, theirs: Timestamp, ours: Timestamp) {
        let offset =
            i64::try_from(theirs.as_micros()).unwrap_or(0) - i64::try_from(ours.as_micros()).unwrap_or(0);
        self.clock_offset.store(offset, Ordering::Relaxed);
    }

    /// Whether every shard of the charges can be asked.
    pub(crate) fn is_reachable(&self, charges: &Charges<'_>) -> bool {
        charges.charges.iter().all(|charge| self.shards.reaches(self.shard(charge.subject)))
    }
}

//! One decision on shared counters, from the known refusal to the remembered verdict.

pub(crate) mod join_state;
pub(crate) mod lease_use;
pub(crate) mod multi_shard;
pub(crate) mod penalty_list;
pub(crate) mod refund;
pub(crate) mod refusal_cache;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use futures_util::future::join_all;
use futures_util::stream::{self, StreamExt};
use smallvec::{SmallVec, smallvec};
use tokio::time::{sleep, timeout};
use tollgate::algorithms::Outcome;
use tollgate::counters::{Charge, Charges, Effect, Verdicts};
use tollgate::{Span, Timestamp};

use self::join_state::JoinState;
use self::lease_use::LeaseUse;
use self::multi_shard::MultiShard;
use self::penalty_list::PenaltyList;
use self::refusal_cache::RefusalCache;
use super::connection::error::Fault;
use super::lease::cooldowns::Cooldowns;
use super::lease::returns::LeaseReturn;
use super::lease::{LeaseTable, LeasedCounter, ServedBy};
use super::script::call::{Extra, LeaseRequest, Mode, ScriptCall, Settlement};
use super::script::reply::Reply;
use super::settings::RedisSettings;
use super::topology::background::BackgroundCalls;
use super::topology::{ShardId, ShardMap};

/// Leases returned concurrently.
const RETURNS_MAX: usize = 64;
const LEASE_EXPIRY_INTERVAL: Duration = Duration::from_millis(250);
/// How long returning all leases may take before the process ends.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Decides requests on shared counters.
pub(crate) struct Decider {
    shards: Arc<ShardMap>,
    join_state: Arc<JoinState>,
    background: BackgroundCalls,
    /// None if the cache is disabled.
    pub(super) refusals: Option<RefusalCache>,
    leasing: bool,
    pub(super) leases: LeaseTable,
    cooldowns: Cooldowns,
    pub(super) multi_shard: MultiShard,
    penalties: Arc<PenaltyList>,
    timeout: Duration,
    /// The server's clock minus ours in microseconds, as of the last reply.
    pub(super) clock_offset: AtomicI64,
    /// Charges decided, by whatever means.
    pub(super) charges: AtomicU64,
    /// How often replicas took over, which may not know of earlier charges.
    failovers: AtomicU32,
}

/// The charges of one decision that go to one shard.
pub(crate) struct ShardCharges {
    pub(crate) shard: ShardId,
    /// Positions in the decision's charges.
    pub(crate) positions: SmallVec<[usize; 4]>,
    /// Whether the shard holds the client's penalty record.
    has_record: bool,
}

/// The replies of all shards of a decision.
pub(crate) type Replies = SmallVec<[Result<Reply, Fault>; 2]>;

impl Decider {
    pub(crate) fn new(
        settings: &RedisSettings,
        shards: Arc<ShardMap>,
        join_state: Arc<JoinState>,
        background: BackgroundCalls,
        penalties: Arc<PenaltyList>,
    ) -> Self {
        let now = Instant::now();
        Decider {
            refusals: settings.refusal_cache.then(RefusalCache::default),
            leasing: settings.leases,
            leases: LeaseTable::new(settings.lease_capacity_min, now),
            cooldowns: Cooldowns::new(now),
            multi_shard: MultiShard::new(Arc::clone(&shards), background.clone()),
            penalties,
            timeout: settings.timeout,
            clock_offset: AtomicI64::new(0),
            charges: AtomicU64::new(0),
            failovers: AtomicU32::new(0),
            shards,
            join_state,
            background,
        }
    }

    /// Decides a request that arrived at `started`. Also returns the server's clock, if a server decided.
    pub(crate) async fn decide(
        &self,
        charges: &Charges<'_>,
        now: Timestamp,
        started: Instant,
    ) -> Result<(Verdicts, Option<Timestamp>), Fault> {
        self.charges.fetch_add(charges.charges.len() as u64, Ordering::Relaxed);

        // A refusal that is known to last needs no call.
        let refusals = self.refusals.as_ref().filter(|_| !charges.dry_run);
        if let Some(verdicts) = refusals.and_then(|refusals| refusals.lookup(charges, started)) {
            return Ok((verdicts, None));
        }
        let query = refusals.map(|refusals| refusals.query(started));

        // Units are taken from leases, and put back when `lease_use` is dropped unconfirmed.
        let leasing = self.leasing && !charges.dry_run && !self.cooldowns.contains(charges, started);
        let mut lease_use = LeaseUse::take(&self.leases, charges, leasing, started);
        if let Some(verdicts) = lease_use.verdicts() {
            return Ok((verdicts, None));
        }

        // The rest is charged by one script call per shard.
        let deadline = started + self.timeout;
        let groups = self.route(charges, &lease_use.served_by);
        let failovers = self.failovers.load(Ordering::Relaxed);
        let replies = self.call_shards(&groups, charges, &lease_use.served_by, now, deadline).await;
        lease_use.apply_grants(&groups, &replies, started);
        let decided_at = replies.iter().flatten().map(|reply| reply.now).max().unwrap_or(now);

        // A refusal by one shard is refunded on the others.
        let mut verdicts = multi_shard::merge(&groups, &replies, charges, &lease_use.served_by);
        if groups.len() > 1 {
            let refunds = self.multi_shard.refund(&groups, charges, &replies, &verdicts, now);
            verdicts = self.multi_shard.record_refusal(charges, verdicts, decided_at, deadline).await;
            verdicts = multi_shard::subtract_refunds(refunds, verdicts, deadline).await;
        }
        if let Some(penalty) = &charges.penalty
            && replies.iter().flatten().any(|reply| reply.violation_added)
        {
            self.penalties.add(penalty, decided_at);
        }
        let mut verdicts = verdicts?;

        // The verdict is remembered: cooldown, leases, refusal.
        if let Some(penalty) = &charges.penalty
            && let Some(message) = self.cooldowns.update(penalty.subject, verdicts.cooldown)
        {
            self.background.publish(&message);
        }
        let admitted = verdicts.admitted(charges);
        if admitted {
            lease_use.confirm();
            verdicts.marks = refund::marks(&groups, charges, &replies, failovers);
        } else {
            lease_use.add_put_back(&mut verdicts);
        }
        self.add_leased(charges, &mut verdicts, started);
        match refusals.zip(query) {
            Some((refusals, _)) if admitted => refusals.invalidate(charges),
            Some((refusals, query)) => refusals.insert(charges, &verdicts, query, self.leases.nodes()),
            None => {}
        }
        Ok((verdicts, Some(decided_at)))
    }

    /// Groups the charges that are not leased by shard.
    fn route(&self, charges: &Charges<'_>, served_by: &[ServedBy]) -> SmallVec<[ShardCharges; 2]> {
        let mut groups = SmallVec::new();
        if let Some(penalty) = &charges.penalty {
            let shard = self.shards.shard_of(penalty.subject);
            groups.push(ShardCharges { shard, positions: SmallVec::new(), has_record: true });
        }
        let charges = charges.charges.iter().zip(served_by).enumerate();
        for (position, (charge, served_by)) in charges {
            if !matches!(served_by, ServedBy::Lease(..)) {
                add_to_shard(&mut groups, self.shards.shard_of(charge.subject), position);
            }
        }
        groups
    }

    async fn call_shards(
        &self,
        groups: &[ShardCharges],
        charges: &Charges<'_>,
        served_by: &[ServedBy],
        now: Timestamp,
        deadline: Instant,
    ) -> Replies {
        let plain = if groups.len() > 1 { Extra::Refundable } else { Extra::None };
        let extra = |(served_by, charge): (&ServedBy, &Charge<'_>)| match served_by {
            ServedBy::NewLease(request, _) => Extra::Lease(*request),
            _ if charge.refundable && !charges.dry_run => Extra::RefundableLater,
            _ => plain,
        };
        let extras: SmallVec<[Extra; 4]> = served_by.iter().zip(&charges.charges).map(extra).collect();
        if let [group] = groups {
            return smallvec![self.call_shard(group, false, charges, &extras, now, deadline).await];
        }
        let calls = groups.iter().map(|group| self.call_shard(group, true, charges, &extras, now, deadline));
        join_all(calls).await.into()
    }

    /// One script call. In a decision that spans shards, violations are recorded after all replies are known.
    async fn call_shard(
        &self,
        group: &ShardCharges,
        spans_shards: bool,
        charges: &Charges<'_>,
        extras: &[Extra],
        now: Timestamp,
        deadline: Instant,
    ) -> Result<Reply, Fault> {
        self.join_state.check()?;
        let penalty = charges.penalty.as_ref().filter(|_| group.has_record);
        let mode = if charges.dry_run { Mode::DryRun } else { Mode::Charge };
        let mut call = ScriptCall::new(mode, penalty);
        for position in &group.positions {
            let charge = &charges.charges[*position];
            let violation = !spans_shards && penalty.is_some_and(|penalty| penalty.is_violation(*position));
            call.push(charge, violation, extras[*position], now);
        }
        let value = self.shards.call(group.shard, call.command(), deadline).await?;
        let reply = Reply::read(&value, group.positions.iter().map(|position| extras[*position]))?;
        self.note_clock(reply.now, now);
        Ok(reply)
    }

    /// Adds the units leased to this node to verdicts that only look: they can still be used.
    fn add_leased(&self, charges: &Charges<'_>, verdicts: &mut Verdicts, now: Instant) {
        let verdicts = charges.charges.iter().zip(&mut verdicts.verdicts);
        for (charge, verdict) in verdicts.filter(|(charge, _)| charges.dry_run || charge.cost == 0) {
            let left = self.leases.units_left(charge, now);
            verdict.remaining = verdict.remaining.saturating_add(left);
            if left >= charge.cost.max(1) && matches!(verdict.outcome, Outcome::Refuse { .. }) {
                verdict.outcome = Outcome::Admit { delay: Span::ZERO };
            }
        }
    }

    fn note_clock(&self, theirs: Timestamp, ours: Timestamp) {
        let offset =
            i64::try_from(theirs.as_micros()).unwrap_or(0) - i64::try_from(ours.as_micros()).unwrap_or(0);
        self.clock_offset.store(offset, Ordering::Relaxed);
    }

    /// Whether all shards of the charges are reachable.
    pub(crate) fn is_reachable(&self, charges: &Charges<'_>) -> bool {
        charges.charges.iter().all(|charge| self.shards.is_reachable(self.shards.shard_of(charge.subject)))
    }

    /// Drops what this node remembers of counters and clients that were reset.
    pub(crate) fn forget(&self, counters: &[u128]) {
        if let Some(refusals) = &self.refusals {
            refusals.forget(counters);
        }
        self.cooldowns.remove(counters);
        for counter in counters {
            self.leases.revoke(*counter);
        }
    }

    /// Applies a cooldown that another node published.
    pub(crate) fn receive_cooldown(&self, arguments: &str) {
        self.cooldowns.receive(arguments);
    }

    /// Returns expired leases, and leases whose server has changed, until stopped.
    pub(crate) async fn expire_leases(self: Arc<Self>) {
        loop {
            sleep(LEASE_EXPIRY_INTERVAL).await;
            if let Some(changes) = self.shards.take_changes() {
                if changes.lose_charges() {
                    self.failovers.fetch_add(1, Ordering::Relaxed);
                }
                let action = |subject| changes.action(self.shards.shard_of(subject));
                self.return_leases(self.leases.apply_changes(action)).await;
            }
            self.return_leases(self.leases.take_expired(Instant::now())).await;
        }
    }

    /// Returns all leases. Units not returned in time are lost until their window ends, as those of a crashed node.
    pub(crate) async fn close(&self) {
        self.background.drain().await;
        let _ = timeout(CLOSE_TIMEOUT, self.return_leases(self.leases.take_all())).await;
    }

    /// Returns unused units; what cannot be returned now is kept for later.
    async fn return_leases(&self, leases: Vec<LeaseReturn>) {
        stream::iter(leases.into_iter().filter(LeaseReturn::matters))
            .for_each_concurrent(RETURNS_MAX, async |lease| {
                let was_known = self.return_lease(&lease.counter, lease.settlement).await.ok();
                if let Some(lease) = lease.after(was_known) {
                    self.leases.return_later(lease);
                }
            })
            .await;
    }

    /// Settles a lease. Returns whether the server knew it.
    async fn return_lease(&self, counter: &LeasedCounter, settlement: Settlement) -> Result<bool, Fault> {
        let charge = Charge {
            subject: counter.subject,
            counter: counter.counter,
            rule: &counter.rule,
            limit: &counter.limit,
            cost: 0,
            effect: Effect::Enforce,
            leases: true,
            refundable: false,
        };
        let settle = LeaseRequest { want: 0, nodes: 1, settle: Some(settlement), ..LeaseRequest::default() };
        let now = Timestamp::from(SystemTime::now());
        let mut call = ScriptCall::new(Mode::Charge, None);
        call.push(&charge, false, Extra::Lease(settle), now);
        let shard = self.shards.shard_of(charge.subject);
        let value = self.shards.call(shard, call.command(), Instant::now() + self.timeout).await?;
        let reply = Reply::read(&value, std::iter::once(Extra::Lease(settle)))?;
        let grants = || reply.charges.iter().filter_map(|charge| charge.grant);
        self.leases.note_lost(grants().map(|grant| u64::from(grant.lost)).sum());
        Ok(grants().any(|grant| grant.valid > Span::ZERO))
    }
}

/// Adds a charge to the group of its shard.
pub(crate) fn add_to_shard(groups: &mut SmallVec<[ShardCharges; 2]>, shard: ShardId, position: usize) {
    match groups.iter_mut().find(|group| group.shard == shard) {
        Some(group) => group.positions.push(position),
        None => groups.push(ShardCharges { shard, positions: smallvec![position], has_record: false }),
    }
}

//! Resets of counters, and the log by which nodes learn of each other's.
//!
//! Each reset is written to a log (a sorted set) that every node reads every second, and at once after a message. On a ring, whose servers fail
//! independently, each server has the log of its own counters: a node that reaches a counter also reaches its log. The log
//! is bounded in size and expires after a day, so reconciliation after a longer outage may undo a reset.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use hashbrown::HashSet;
use redis::{Cmd, FromRedisValue, Value};
use tokio::sync::{Notify, broadcast};
use tokio::time::timeout;
use tollgate::counters::{Charge, Charges};
use tollgate::identity::Subject;

use super::seen_resets::SeenResets;
use crate::redis::connection::error::Fault;
use crate::redis::connection::random::jitter;
use crate::redis::decide::Decider;
use crate::redis::decide::join_state::JoinState;
use crate::redis::decide::penalty_list::{Member, PenaltyList};
use crate::redis::health::Health;
use crate::redis::lease::counter_key;
use crate::redis::script::keys;
use crate::redis::topology::{ShardId, ShardMap};

/// The message that a log has new entries.
pub(super) const MESSAGE: &str = "reset";
const LOG: &str = "resets";
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Entries in a log.
const LOG_MAX: isize = 10_000;
/// A log expires this long after its last entry.
const LOG_TTL_MILLIS: i64 = 86_400_000;
/// Resets that a slow subscriber may be behind; older ones are lost to it.
const SUBSCRIBER_BACKLOG: usize = 256;

/// Resets counters and follows the resets of other nodes.
pub(crate) struct Resets {
    shards: Arc<ShardMap>,
    join_state: Arc<JoinState>,
    decider: Arc<Decider>,
    health: Arc<Health>,
    penalties: Arc<PenaltyList>,
    seen: SeenResets,
    /// Notified when a log has new entries.
    written: Notify,
    subscribers: broadcast::Sender<Arc<[u128]>>,
}

impl Resets {
    pub(crate) fn new(
        shards: Arc<ShardMap>,
        join_state: Arc<JoinState>,
        decider: Arc<Decider>,
        health: Arc<Health>,
        penalties: Arc<PenaltyList>,
    ) -> Self {
        let (seen, subscribers) = (SeenResets::default(), broadcast::Sender::new(SUBSCRIBER_BACKLOG));
        Resets { shards, join_state, decider, health, penalties, seen, written: Notify::new(), subscribers }
    }

    /// Resets of other nodes from now on.
    pub(super) fn subscribe(&self) -> broadcast::Receiver<Arc<[u128]>> {
        self.subscribers.subscribe()
    }

    /// A decision failed: messages may have been missed.
    pub(crate) fn note_failure(&self) {
        self.seen.note_unread();
    }

    /// The pub/sub subscription started or ended.
    pub(super) fn toggle_subscription(&self) {
        self.seen.toggle_subscription();
    }

    /// Verifies that the servers with these counters accept writes, by deleting keys that do not exist.
    pub(crate) async fn verify(&self, charges: &Charges<'_>) -> Result<(), Fault> {
        self.join_state.check()?;
        let mut deletes: Vec<(ShardId, Cmd)> = Vec::new();
        let penalty = charges.penalty.as_ref().map(|penalty| penalty.subject);
        for subject in charges.charges.iter().map(|charge| charge.subject).chain(penalty) {
            let shard = self.shards.shard_of(subject);
            if deletes.iter().all(|(known, _)| *known != shard) {
                deletes.push((shard, Cmd::del(keys::unused(subject))));
            }
        }
        if penalty.is_some() {
            deletes.push((self.shards.home(), Cmd::del(keys::shared("unused"))));
        }
        let replies = deletes.into_iter().map(|(shard, delete)| self.shards.admin(shard, delete));
        join_all(replies).await.into_iter().try_for_each(|reply| reply.map(drop))
    }

    /// Resets the counters of the charges and the client's penalty record. Returns how many counters existed. A failure on
    /// one server does not keep the others from resetting.
    pub(crate) async fn reset(&self, charges: &Charges<'_>) -> Result<usize, Fault> {
        let counters = charges.charges.iter().map(|charge| (charge.subject, counter_key(charge)));
        let client = charges.penalty.as_ref().map(|penalty| (penalty.subject, penalty.subject.0));
        let counters: Vec<(Subject, u128)> = counters.chain(client).collect();
        // Logged first: a node that was cut off must not read the log and then reconcile what is about to be reset.
        self.write_logs(&counters).await;
        let (mut deleted, mut failed) = (0, None);
        for charge in &charges.charges {
            match self.delete_counter(charge).await {
                Ok(existed) => deleted += usize::from(existed),
                Err(fault) => failed = failed.or(Some(fault)),
            }
        }
        if let Some(penalty) = &charges.penalty
            && let Err(fault) = self.penalties.delete(&Member::new(penalty)).await
        {
            failed = failed.or(Some(fault));
        }
        self.forget_everywhere(&counters).await;
        failed.map_or(Ok(deleted), Err)
    }

    /// Deletes the penalty record of the client that prints as `client`. Returns whether there was one.
    pub(crate) async fn pardon(&self, client: &str) -> Result<bool, Fault> {
        let mut pardoned = false;
        for member in self.penalties.find(client).await? {
            let record = [(member.subject(), member.subject().0)];
            self.write_logs(&record).await;
            pardoned |= self.penalties.delete(&member).await?;
            self.forget_everywhere(&record).await;
        }
        Ok(pardoned)
    }

    /// Deletes a counter. Returns whether it existed.
    pub(super) async fn delete_counter(&self, charge: &Charge<'_>) -> Result<bool, Fault> {
        self.join_state.check()?;
        let key = keys::counter(charge);
        let delete = if key.is_hash {
            Cmd::hdel(key.name, keys::field(charge.subject).as_slice())
        } else {
            Cmd::del(key.name)
        };
        let reply = self.shards.admin(self.shards.shard_of(charge.subject), delete).await?;
        Ok(matches!(reply, Value::Int(count) if count > 0))
    }

    /// Writes counters that are about to be reset to the logs of their shards. Where that fails, other nodes drop what they
    /// remember of them within two seconds, and reconciliation may undo the reset.
    async fn write_logs(&self, counters: &[(Subject, u128)]) {
        let mut by_shard: Vec<(ShardId, Vec<u128>)> = Vec::new();
        for (subject, counter) in counters {
            let shard = self.log_shard(*subject);
            match by_shard.iter_mut().find(|(known, _)| *known == shard) {
                Some((_, counters)) => counters.push(*counter),
                None => by_shard.push((shard, vec![*counter])),
            }
        }
        let writes = by_shard.into_iter().map(|(shard, counters)| async move {
            if let Ok(score) = self.write_log(shard, &counters).await {
                self.seen.note_own(&counters, score);
            }
        });
        join_all(writes).await;
    }

    /// Appends to a log. The score is the server's time, but later than the latest entry even if the clock went back: readers
    /// look only for later entries.
    async fn write_log(&self, shard: ShardId, counters: &[u128]) -> Result<u64, Fault> {
        let log = keys::shared(LOG);
        let latest = entries(self.shards.admin(shard, Cmd::zrange_withscores(&log, -1, -1)).await?)?;
        let after = latest.last().map_or(0, |(_, score)| score.saturating_add(1));
        let score = self.shards.time(shard).await?.as_micros().max(after);
        let members: Vec<(u64, String)> = counters.iter().map(|counter| (score, hex(*counter))).collect();
        self.shards.admin(shard, Cmd::zadd_multiple(&log, &members)).await?;
        for command in [Cmd::zremrangebyrank(&log, 0, -LOG_MAX - 1), Cmd::pexpire(&log, LOG_TTL_MILLIS)] {
            let _ = self.shards.admin(shard, command).await;
        }
        Ok(score)
    }

    /// Forgets counters that this node reset, and publishes the reset.
    async fn forget_everywhere(&self, counters: &[(Subject, u128)]) {
        let counters: Vec<u128> = counters.iter().map(|(_, counter)| *counter).collect();
        self.decider.forget(&counters);
        self.shards.publish(MESSAGE).await;
    }

    /// Another node has written to a log.
    pub(super) fn receive(&self) {
        self.seen.note_unread();
        self.written.notify_one();
    }

    /// Reads the logs of all shards every second and after messages, until stopped.
    pub(crate) async fn follow_logs(self: Arc<Self>) {
        loop {
            let reachable =
                self.shards.log_shards().into_iter().filter(|shard| self.shards.is_reachable(*shard));
            // At once, so that a slow server does not delay the others.
            let deadline = self.shards.admin_deadline();
            let _ = join_all(reachable.map(|shard| self.read_log(shard, deadline))).await;
            let interval = POLL_INTERVAL.saturating_sub(jitter(POLL_INTERVAL / 10));
            let _ = timeout(interval, self.written.notified()).await;
        }
    }

    /// Applies new entries of a log.
    async fn read_log(&self, shard: ShardId, deadline: Instant) -> Result<(), Fault> {
        let subscription = self.seen.subscription();
        let mut range = redis::cmd("ZRANGE");
        range.arg(keys::shared(LOG)).arg(self.seen.read_from(shard));
        range.arg("+inf").arg("BYSCORE").arg("WITHSCORES");
        let log = self.shards.call(shard, range, deadline).await.and_then(entries);
        self.health.note_shared_key(LOG, shard, &log);
        let counter = |(name, score): &(String, u64)| Some((u128::from_str_radix(name, 16).ok()?, *score));
        let log: Vec<_> = log?.iter().filter_map(counter).collect();
        let counters = self.seen.note_log(shard, subscription, &log);
        if !counters.is_empty() {
            self.decider.forget(&counters);
            let _ = self.subscribers.send(counters.into());
        }
        Ok(())
    }

    /// Reads the logs of these charges that match, and drops charges whose counter was reset. Returns the logs that could
    /// not be read.
    pub(super) async fn drop_reset(
        &self,
        charges: &mut Charges<'_>,
        is_wanted: impl Fn(ShardId) -> bool,
        deadline: Instant,
    ) -> Vec<(ShardId, Fault)> {
        let started = Instant::now();
        let unread = self.read_logs_of(&charges.charges, is_wanted, deadline).await;
        let reset = self.seen.applied_around(started);
        charges.charges.retain(|charge| !reset.contains(&counter_key(charge)));
        unread
    }

    /// Resets counters again whose reset was logged since `since`: charges sent then may have arrived after it.
    pub(super) async fn repeat_resets(&self, charges: &[Charge<'_>], since: Instant) {
        self.read_logs_of(charges, |_| true, self.shards.admin_deadline()).await;
        let reset = self.seen.applied_since(since);
        for charge in charges.iter().filter(|charge| reset.contains(&counter_key(charge))) {
            let _ = self.delete_counter(charge).await;
        }
    }

    async fn read_logs_of(
        &self,
        charges: &[Charge<'_>],
        is_wanted: impl Fn(ShardId) -> bool,
        deadline: Instant,
    ) -> Vec<(ShardId, Fault)> {
        let logs: HashSet<ShardId> = charges.iter().map(|charge| self.log_shard(charge.subject)).collect();
        let reads = logs.into_iter().filter(|shard| is_wanted(*shard));
        let reads = reads.map(|shard| async move { (shard, self.read_log(shard, deadline).await) });
        let reads = join_all(reads).await;
        reads.into_iter().filter_map(|(shard, read)| Some((shard, read.err()?))).collect()
    }

    /// Whether messages may have been missed since the log was read.
    pub(super) fn may_have_missed(&self, shard: ShardId) -> bool {
        self.seen.may_have_missed(shard)
    }

    /// The shard with the log of a subject's counters.
    pub(super) fn log_shard(&self, subject: Subject) -> ShardId {
        if self.shards.is_ring() { self.shards.shard_of(subject) } else { self.shards.home() }
    }
}

fn hex(counter: u128) -> String {
    format!("{counter:032x}")
}

/// Members of a log with their scores.
fn entries(reply: Value) -> Result<Vec<(String, u64)>, Fault> {
    Vec::from_redis_value(reply).map_err(|_| Fault::invalid_key("reset log"))
}

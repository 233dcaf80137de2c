//! How many nodes there are: each registers in a sorted set every second.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::FromRedisValue;
use tollgate::Timestamp;

use crate::redis::connection::error::Fault;
use crate::redis::connection::random::bytes;
use crate::redis::script::keys;
use crate::redis::topology::ShardMap;

/// A node without heartbeat for this long is gone.
const GONE_AFTER: Duration = Duration::from_secs(5);

/// The registration of this node.
pub(super) struct Membership {
    shards: Arc<ShardMap>,
    /// Random, chosen at start.
    id: String,
}

impl Membership {
    pub(super) fn new(shards: Arc<ShardMap>) -> Self {
        Membership { shards, id: format!("{:016x}", u64::from_be_bytes(bytes())) }
    }

    /// Registers this node among those that support a schema version, and counts them.
    pub(super) async fn register(&self, schema: u8, now: Timestamp) -> Result<u32, Fault> {
        let expires = seconds(now).saturating_add(GONE_AFTER.as_secs());
        let mut add = redis::cmd("ZADD");
        add.arg(nodes_key(schema)).arg(expires).arg(&self.id);
        self.shards.admin(self.shards.home(), add).await?;
        Ok(self.count(schema, now).await?.max(1))
    }

    /// Counts the live nodes that support a schema version.
    pub(super) async fn count(&self, schema: u8, now: Timestamp) -> Result<u32, Fault> {
        let (nodes, seconds) = (nodes_key(schema), seconds(now));
        let mut remove_expired = redis::cmd("ZREMRANGEBYSCORE");
        remove_expired.arg(&nodes).arg("-inf").arg(seconds);
        // Written while the server's clock was ahead. A live node registers again within a second.
        let mut remove_future = redis::cmd("ZREMRANGEBYSCORE");
        remove_future.arg(&nodes).arg(seconds.saturating_add(2 * GONE_AFTER.as_secs())).arg("+inf");
        let mut count = redis::cmd("ZCARD");
        count.arg(&nodes);
        let home = self.shards.home();
        self.shards.admin(home, remove_expired).await?;
        self.shards.admin(home, remove_future).await?;
        Ok(u32::from_redis_value(self.shards.admin(home, count).await?).unwrap_or(0))
    }

    pub(super) async fn leave(&self, schema: u8) {
        let mut remove = redis::cmd("ZREM");
        remove.arg(nodes_key(schema)).arg(&self.id);
        let _ = self.shards.admin(self.shards.home(), remove).await;
    }
}

/// The time that other nodes get to register after an outage, during which the set is incomplete.
pub(super) struct MembershipGrace {
    until: Instant,
}

impl MembershipGrace {
    pub(super) fn new() -> Self {
        MembershipGrace { until: Instant::now() + GONE_AFTER }
    }

    /// The least number of nodes to assume, given the number known before.
    pub(super) fn nodes_min(&self, known: u32) -> u32 {
        if Instant::now() < self.until { known } else { 1 }
    }

    /// Starts again after a failed heartbeat.
    pub(super) fn note(&mut self, outcome: &Result<(), Fault>) {
        if outcome.is_err() {
            *self = MembershipGrace::new();
        }
    }
}

fn seconds(now: Timestamp) -> u64 {
    now.as_micros() / 1_000_000
}

/// The set of live nodes that support a schema version.
fn nodes_key(schema: u8) -> String {
    keys::shared(&format!("nodes:{schema}"))
}

//! How many nodes there are: each registers in a sorted set every second.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{Cmd, FromRedisValue};
use tollgate::Timestamp;

use crate::redis::connection::error::Fault;
use crate::redis::connection::random::bytes;
use crate::redis::script::keys::{self, SCHEMA};
use crate::redis::topology::ShardMap;

/// A node without heartbeat for this long is gone.
const GONE_AFTER: Duration = Duration::from_secs(5);

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The registration of this node.
pub(super) struct Membership {
    shards: Arc<ShardMap>,
    /// Random, chosen at start; followed by the version of tollgate.
    id: String,
}

impl Membership {
    pub(super) fn new(shards: Arc<ShardMap>) -> Self {
        Membership { shards, id: format!("{:016x} {VERSION}", u64::from_be_bytes(bytes())) }
    }

    /// This node as it is listed.
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// Registers this node and counts the live ones.
    pub(super) async fn register(&self, now: Timestamp) -> Result<u32, Fault> {
        let (nodes, now, gone_after) = (nodes_key(), now.as_micros() / 1_000_000, GONE_AFTER.as_secs());
        let commands = [
            Cmd::zadd(&nodes, &self.id, now.saturating_add(gone_after)),
            Cmd::zrembyscore(&nodes, "-inf", now),
            // Written while the server's clock was ahead. A live node registers again within a second.
            Cmd::zrembyscore(&nodes, now.saturating_add(2 * gone_after), "+inf"),
        ];
        for command in commands {
            self.shards.admin(self.shards.home(), command).await?;
        }
        let count = self.shards.admin(self.shards.home(), Cmd::zcard(&nodes)).await?;
        Ok(u32::from_redis_value(count).unwrap_or(0).max(1))
    }

    pub(super) async fn leave(&self) {
        let _ = self.shards.admin(self.shards.home(), Cmd::zrem(nodes_key(), &self.id)).await;
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

/// The command that lists the registered nodes.
pub(crate) fn list_nodes() -> Cmd {
    Cmd::zrange(nodes_key(), 0, -1)
}

/// The version of a listed node.
pub(crate) fn version_of(node: &str) -> String {
    node.split_once(' ').map_or("unknown", |(_, version)| version).to_owned()
}

/// The random part of a listed node.
pub(super) fn id_of(node: &str) -> &str {
    node.split_once(' ').map_or(node, |(id, _)| id)
}

/// The set of live nodes with this key schema.
fn nodes_key() -> String {
    keys::shared(&format!("nodes:{SCHEMA}"))
}

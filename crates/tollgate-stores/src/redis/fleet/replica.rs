//! Replicas of what a starting node must know, on every server of a ring.
//!
//! The server with the fleet's keys may be down when a node starts; only its share of the clients should be affected. Nodes
//! that reach it write the replicas, and a node that joined by a replica reads the original as soon as it can.

use std::sync::Arc;

use redis::{Cmd, FromRedisValue, Value};
use tollgate::Seed;

use crate::redis::script::keys;
use crate::redis::topology::{ShardId, ShardMap};

const REPLICA: &str = "copy";

/// What a starting node must know.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(super) struct JoinInfo {
    pub(super) seed: Seed,
    pub(super) nodes: u32,
    /// The key schema in use, and since when in microseconds.
    pub(super) version: u8,
    pub(super) changed_at: u64,
}

/// Reads and writes replicas.
pub(super) struct ReplicaStore {
    shards: Arc<ShardMap>,
}

impl JoinInfo {
    fn write(self) -> String {
        let JoinInfo { seed, nodes, version, changed_at } = self;
        format!("{:032x} {nodes} {version} {changed_at}", u128::from_be_bytes(seed.0))
    }

    /// Ignores further fields, which a newer node may add.
    fn read(text: &str) -> Option<Self> {
        let mut fields = text.split(' ');
        let seed = u128::from_str_radix(fields.next()?, 16).ok()?;
        Some(JoinInfo {
            seed: Seed(seed.to_be_bytes()),
            nodes: fields.next()?.parse().ok()?,
            version: fields.next()?.parse().ok()?,
            changed_at: fields.next()?.parse().ok()?,
        })
    }
}

impl ReplicaStore {
    pub(super) fn new(shards: Arc<ShardMap>) -> Self {
        ReplicaStore { shards }
    }

    /// The first replica that can be read.
    pub(super) async fn read(&self) -> Option<JoinInfo> {
        for shard in self.shards.other_shards(self.shards.home()) {
            let mut get = redis::cmd("GET");
            get.arg(keys::shared(REPLICA));
            let Some(reply) = self.call_if_reachable(shard, get).await else { continue };
            let text = Option::<String>::from_redis_value(reply).ok().flatten();
            if let Some(info) = text.as_deref().and_then(JoinInfo::read) {
                return Some(info);
            }
        }
        None
    }

    pub(super) async fn write(&self, info: JoinInfo) {
        for shard in self.shards.other_shards(self.shards.home()) {
            let mut set = redis::cmd("SET");
            set.arg(keys::shared(REPLICA)).arg(info.write());
            self.call_if_reachable(shard, set).await;
        }
    }

    async fn call_if_reachable(&self, shard: ShardId, command: Cmd) -> Option<Value> {
        if !self.shards.is_reachable(shard) {
            return None;
        }
        self.shards.admin(shard, command).await.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replica_reads_as_written() {
        let info = JoinInfo { seed: Seed([7; 16]), nodes: 3, version: 2, changed_at: 1_700_000_000_000_000 };
        let text = info.write();
        assert!(JoinInfo::read(&text) == Some(info));
        assert!(JoinInfo::read(&format!("{text} more")) == Some(info));
        for invalid in ["", "x", "07 3 2", "07 -3 2 1", &text.replace(" 2 ", " 256 ")] {
            assert!(JoinInfo::read(invalid).is_none(), "{invalid}");
        }
    }
}

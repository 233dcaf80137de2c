//! What a newcomer must know of the fleet, on every server of a ring. The one that holds the fleet's names may be away
//! when a node starts: its share of the clients is all that should be lost with it.
//!
//! The names themselves stay the truth. Only nodes that reach them write copies, and whoever went by a copy goes by them
//! again as soon as it can.

use std::sync::Weak;
use std::time::Duration;

use redis::FromRedisValue;
use tokio::time::sleep;
use tollgate::Seed;

use crate::redis::script::keys;
use crate::redis::topology::ShardId;
use crate::redis::{RedisCounters, Store};

const COPY_EVERY: Duration = Duration::from_secs(2);

/// One copy.
#[derive(Copy, Clone, PartialEq, Eq)]
struct Known {
    seed: Seed,
    nodes: u32,
    /// The version of names and state that the fleet speaks, and since when, in microseconds.
    version: u8,
    since: u64,
}

impl Known {
    fn write(self) -> String {
        let Known { seed, nodes, version, since } = self;
        format!("{:032x} {nodes} {version} {since}", u128::from_be_bytes(seed.0))
    }

    fn read(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let seed = u128::from_str_radix(words.next()?, 16).ok()?;
        let known = Known {
            seed: Seed(seed.to_be_bytes()),
            nodes: words.next()?.parse().ok()?,
            version: words.next()?.parse().ok()?,
            since: words.next()?.parse().ok()?,
        };
        // A newer node may say more.
        Some(known)
    }
}

impl RedisCounters {
    /// The seed of the fleet as another server of a ring has it, for a node that starts while the one with the fleet's
    /// names is away. What [`RedisCounters::fleet_seed`] says is the truth.
    pub async fn replicated_seed(&self) -> Option<Seed> {
        self.0.copy().await.map(|known| known.seed)
    }
}

impl Store {
    /// What another server says that a newcomer must know.
    async fn copy(&self) -> Option<Known> {
        for shard in self.shards.other_shards(self.home()) {
            let mut get = redis::cmd("GET");
            get.arg(keys::shared("copy"));
            let Some(value) = self.admin_if_reached(shard, get).await else { continue };
            let text = Option::<String>::from_redis_value(value).ok().flatten();
            if let Some(known) = text.as_deref().and_then(Known::read) {
                return Some(known);
            }
        }
        None
    }

    /// Takes a copy's word for what the fleet speaks, until it can be asked.
    pub(crate) async fn go_by_a_copy(&self) {
        let Some(known) = self.copy().await else { return };
        self.leases.set_nodes(self.leases.nodes().max(known.nodes));
        self.schema.hear(known.version, known.since);
    }

    async fn write_copies(&self) {
        let Some(seed) = self.fleet.seed.load_full() else { return };
        let Ok(version) = self.schema.speaks() else { return };
        let known = Known { seed: *seed, nodes: self.leases.nodes(), version, since: self.schema.since() };
        for shard in self.shards.other_shards(self.home()) {
            let mut set = redis::cmd("SET");
            set.arg(keys::shared("copy")).arg(known.write());
            self.admin_if_reached(shard, set).await;
        }
    }

    async fn admin_if_reached(&self, shard: ShardId, command: redis::Cmd) -> Option<redis::Value> {
        if !self.shards.reaches(shard) {
            return None;
        }
        self.admin(shard, command).await.ok()
    }
}

/// Writes copies for as long as the store is used.
pub(crate) async fn keep_copies(store: Weak<Store>) {
    loop {
        let Some(store) = store.upgrade() else { return };
        if store.shards.reaches(store.home()) {
            store.write_copies().await;
        }
        drop(store);
        sleep(COPY_EVERY).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_reads_as_it_was_written_and_nothing_else_does() {
        let known = Known { seed: Seed([7; 16]), nodes: 3, version: 2, since: 1_700_000_000_000_000 };
        let text = known.write();
        assert!(Known::read(&text) == Some(known));
        assert!(Known::read(&format!("{text} more")) == Some(known));
        for strange in ["", "x", "07 3 2", "07 -3 2 1", &text.replace(" 2 ", " 256 ")] {
            assert!(Known::read(strange).is_none(), "{strange}");
        }
    }
}

//! How many nodes there are: each says every second on a list that it is there.

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use redis::FromRedisValue;

use crate::redis::connection::error::Fault;
use crate::redis::script::keys;
use crate::redis::{RedisCounters, Store};

/// A node that has not been heard of for so long is gone.
pub(crate) const GONE_AFTER: Duration = Duration::from_secs(5);

impl RedisCounters {
    /// Takes it that there are so many nodes, until they have had time to say that they are there. For a node that starts
    /// while no server can be reached and knows how many there were.
    pub fn restore_node_count(&self, nodes: NonZeroU32) {
        self.0.leases.set_nodes(self.0.leases.nodes().max(nodes.get()));
    }
}

impl Store {
    /// How many live nodes are on a list, after putting this one on it.
    pub(crate) async fn meet(&self, nodes: &str, seconds: u64, join: bool) -> Result<u32, Fault> {
        let mut here = redis::cmd("ZADD");
        here.arg(nodes).arg(seconds.saturating_add(GONE_AFTER.as_secs())).arg(&self.fleet.id);
        let mut tidy = redis::cmd("ZREMRANGEBYSCORE");
        tidy.arg(nodes).arg("-inf").arg(seconds);
        let mut count = redis::cmd("ZCARD");
        count.arg(nodes);
        // Written by a clock that was ahead: whoever is alive says so again within a second.
        let mut impossible = redis::cmd("ZREMRANGEBYSCORE");
        impossible.arg(nodes).arg(seconds.saturating_add(2 * GONE_AFTER.as_secs())).arg("+inf");
        if join {
            self.admin(self.home(), here).await?;
        }
        self.admin(self.home(), tidy).await?;
        self.admin(self.home(), impossible).await?;
        Ok(u32::from_redis_value(self.admin(self.home(), count).await?).unwrap_or(u32::from(join)))
    }
}

/// Whether the others have had time to say that they are there.
pub(crate) struct MembershipGrace {
    complete_at: Instant,
}

impl MembershipGrace {
    pub(crate) fn new() -> Self {
        MembershipGrace { complete_at: Instant::now() + GONE_AFTER }
    }

    /// After a silence the list is empty: whoever is heard first is not alone for that.
    pub(crate) fn fewest(&self, known: u32) -> u32 {
        if Instant::now() < self.complete_at { known } else { 1 }
    }

    pub(crate) fn tried(&mut self, outcome: &Result<(), Fault>) {
        if outcome.is_err() {
            *self = MembershipGrace::new();
        }
    }
}

/// The list of live nodes that know a version of the counters.
pub(crate) fn nodes_name(version: u8) -> String {
    keys::shared(&format!("nodes:{version}"))
}

//! Versions of what nodes share, by which each of them learns that something changed, or was lost.
//!
//! A version is of a life of the server, which is drawn by chance when it knows none; counts the changes of that life; and
//! ends in bits that are drawn with each change. So the same version means the same state: a server that went back to an
//! older state, from a snapshot or as a replica that was behind, and was changed since, does not come to a version that was
//! there before. Whoever sees that it went back begins another life, so that every node notices and tells what it knows.

use redis::{FromRedisValue, Value};

use crate::redis::connection::error::Fault;
use crate::redis::fleet::strange;
use crate::redis::random::bytes;
use crate::redis::script::keys;
use crate::redis::{RedisCounters, Store};

/// How many bits are drawn with each change.
const DRAWN_BITS: u32 = 20;
/// Where the life begins: between are the changes, counted.
const LIFE_AT: u32 = 40;

impl RedisCounters {
    /// Whether the servers forgot something between these versions, both of them seen: everything, counters and what was
    /// shared, or what was latest of it.
    pub fn data_lost_between(before: u64, after: u64) -> bool {
        before != 0 && after != 0 && before >> LIFE_AT != after >> LIFE_AT
    }
}

/// Whether the later of two versions of one life is the older one, or one that was reached in another way.
fn goes_back(before: u64, after: u64) -> bool {
    let changes = |version: u64| version >> DRAWN_BITS;
    let same_life = before >> LIFE_AT == after >> LIFE_AT;
    same_life && (changes(after) < changes(before) || changes(after) == changes(before) && after != before)
}

/// The version after the next change.
fn next(version: u64) -> u64 {
    let changes = (version >> DRAWN_BITS) + 1;
    // So many changes that it would be another life: that is as good as any, and everybody tells again what it knows.
    if changes >> (LIFE_AT - DRAWN_BITS) != version >> LIFE_AT {
        return drawn();
    }
    changes << DRAWN_BITS | chance() & ((1 << DRAWN_BITS) - 1)
}

/// The first version of another life. Never zero, which stands for none.
fn drawn() -> u64 {
    ((chance() >> 1 >> LIFE_AT) | 1) << LIFE_AT | chance() & ((1 << DRAWN_BITS) - 1)
}

fn chance() -> u64 {
    u64::from_be_bytes(bytes())
}

impl Store {
    /// Has all nodes look at what is shared.
    pub(crate) async fn next_version(&self) -> Result<(), Fault> {
        self.begin_versions().await?;
        if let Some(version) = self.version().await? {
            let went_back = goes_back(self.known_version(), version);
            let then = if went_back { drawn() } else { next(version) };
            // If another node was faster, whoever looks at its version sees our change too.
            self.replace_version(version, then).await?;
        }
        self.hint("version").await;
        Ok(())
    }

    /// The version as it is now, begun if there is none. Nothing if it was just lost: the next look will find one.
    pub(crate) async fn settled_version(&self) -> Result<Option<u64>, Fault> {
        let mut version = self.version().await?;
        if version.is_none() {
            self.begin_versions().await?;
            version = self.version().await?;
        }
        let known = self.known_version();
        if let Some(older) = version.filter(|version| goes_back(known, *version)) {
            self.replace_version(older, drawn()).await?;
            version = self.version().await?;
        }
        Ok(version.filter(|version| !goes_back(known, *version)))
    }

    /// Whether what is there now is of this version or a later one: then nothing was lost between.
    pub(crate) async fn follows(&self, seen: u64) -> Result<bool, Fault> {
        let version = self.version().await?;
        Ok(version.is_some_and(|version| {
            !RedisCounters::data_lost_between(seen, version) && !goes_back(seen, version)
        }))
    }

    /// Draws a version unless there is one.
    async fn begin_versions(&self) -> Result<(), Fault> {
        let mut begin = redis::cmd("SET");
        begin.arg(keys::shared("version")).arg(drawn()).arg("NX");
        self.admin(self.home(), begin).await.map(|_| ())
    }

    /// The version of what is shared, if there is one.
    async fn version(&self) -> Result<Option<u64>, Fault> {
        let mut version = redis::cmd("GET");
        version.arg(keys::shared("version"));
        let version = Option::<u64>::from_redis_value(self.admin(self.home(), version).await?);
        version.map_err(|_| strange("version"))
    }

    /// Puts a version in the shard of another, if that is still there.
    async fn replace_version(&self, version: u64, then: u64) -> Result<Value, Fault> {
        self.admin(self.home(), self.script.replace(&keys::shared("version"), version, then)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_never_reached_in_two_ways() {
        let first = drawn();
        let (one, other) = (next(first), next(first));
        assert!(!goes_back(first, one) && !RedisCounters::data_lost_between(first, one));
        assert!(goes_back(one, first));
        assert!(one == other || goes_back(one, other) && goes_back(other, one));
        assert!(!goes_back(one, one));
        assert!(!goes_back(one, next(next(first))));
    }

    #[test]
    fn another_life_is_a_loss_and_so_is_one_change_too_many() {
        let version = drawn();
        assert!(RedisCounters::data_lost_between(version, version ^ 1 << 50));
        assert!(!RedisCounters::data_lost_between(0, version) && !goes_back(0, version));
        let last = version | ((1 << LIFE_AT) - 1);
        assert!(RedisCounters::data_lost_between(last, next(last)) || goes_back(last, next(last)));
    }
}

//! Configuration that nodes set for each other, and its version.

use std::collections::HashMap;
use std::sync::Arc;

use redis::{Cmd, ExistenceCheck, FromRedisValue, SetOptions};
use tokio::sync::watch;

use super::version::{data_lost_between, goes_back, new_epoch, next};
use crate::redis::connection::error::Fault;
use crate::redis::health::Health;
use crate::redis::script;
use crate::redis::script::keys;
use crate::redis::topology::ShardMap;

const CONFIG: &str = "config";
const VERSION: &str = "version";
/// Values restored per call.
const RESTORED_PER_CALL: usize = 500;

/// The shared configuration.
pub(super) struct SharedConfig {
    shards: Arc<ShardMap>,
    health: Arc<Health>,
    /// The last version that this node has seen; zero for none.
    version: watch::Sender<u64>,
}

impl SharedConfig {
    pub(super) fn new(shards: Arc<ShardMap>, health: Arc<Health>) -> Self {
        SharedConfig { shards, health, version: watch::Sender::new(0) }
    }

    pub(super) fn version(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    /// Reports a version to subscribers.
    pub(super) fn set_version(&self, version: Option<u64>) {
        if let Some(version) = version {
            self.version.send_if_modified(|known| std::mem::replace(known, version) != version);
        }
    }

    /// All values; none if data was lost since this version.
    pub(super) async fn read_since(&self, since: u64) -> Result<Option<Vec<(String, String)>>, Fault> {
        let config = self.read().await?;
        let version = self.read_version().await?;
        let follows = |version| !data_lost_between(since, version) && !goes_back(since, version);
        Ok(version.is_some_and(follows).then_some(config))
    }

    /// Sets or removes a value.
    pub(super) async fn set(&self, name: &str, value: Option<&str>) -> Result<(), Fault> {
        let config = keys::shared(CONFIG);
        let command = match value {
            Some(value) => Cmd::hset(config, name, value),
            None => Cmd::hdel(config, name),
        };
        self.shards.admin(self.shards.home(), command).await?;
        self.increment_version().await
    }

    /// Sets values that are missing or older than ours. Returns how many.
    pub(super) async fn restore(
        &self,
        config: &[(String, String)],
        is_newer: impl Fn(&str, &str) -> bool,
    ) -> Result<usize, Fault> {
        let stored: HashMap<String, String> = self.read().await?.into_iter().collect();
        let is_missing =
            |(name, ours): &&(String, String)| stored.get(name).is_none_or(|theirs| is_newer(ours, theirs));
        let missing: Vec<_> = config.iter().filter(is_missing).collect();
        for values in missing.chunks(RESTORED_PER_CALL) {
            let mut set = redis::cmd("HSET");
            set.arg(keys::shared(CONFIG));
            for (name, value) in values {
                set.arg(name).arg(value);
            }
            self.shards.admin(self.shards.home(), set).await?;
        }
        if !missing.is_empty() {
            self.increment_version().await?;
        }
        Ok(missing.len())
    }

    /// The current version, created if missing; a new epoch if it went back. None if it changes at this moment: the next
    /// heartbeat reads it.
    pub(super) async fn settled_version(&self) -> Result<Option<u64>, Fault> {
        let mut version = self.read_version().await?;
        if version.is_none() {
            self.create_version().await?;
            version = self.read_version().await?;
        }
        let known = *self.version.borrow();
        if let Some(older) = version.filter(|version| goes_back(known, *version)) {
            self.replace_version(older, new_epoch()).await?;
            version = self.read_version().await?;
        }
        Ok(version.filter(|version| !goes_back(known, *version)))
    }

    async fn read(&self) -> Result<Vec<(String, String)>, Fault> {
        let reply = self.shards.admin(self.shards.home(), Cmd::hgetall(keys::shared(CONFIG))).await;
        let config =
            reply.and_then(|reply| Vec::from_redis_value(reply).map_err(|_| Fault::invalid_key(CONFIG)));
        self.health.note_shared_key(CONFIG, self.shards.home(), &config);
        config
    }

    /// Makes all nodes read the configuration.
    async fn increment_version(&self) -> Result<(), Fault> {
        self.create_version().await?;
        if let Some(version) = self.read_version().await? {
            let went_back = goes_back(*self.version.borrow(), version);
            let next = if went_back { new_epoch() } else { next(version) };
            // If another node was faster, its version covers our change too.
            self.replace_version(version, next).await?;
        }
        self.shards.publish(VERSION).await;
        Ok(())
    }

    /// Creates a version unless there is one.
    async fn create_version(&self) -> Result<(), Fault> {
        let if_absent = SetOptions::default().conditional_set(ExistenceCheck::NX);
        let set = Cmd::set_options(keys::shared(VERSION), new_epoch(), if_absent);
        self.shards.admin(self.shards.home(), set).await.map(drop)
    }

    async fn read_version(&self) -> Result<Option<u64>, Fault> {
        let reply = self.shards.admin(self.shards.home(), Cmd::get(keys::shared(VERSION))).await?;
        Option::<u64>::from_redis_value(reply).map_err(|_| Fault::invalid_key(VERSION))
    }

    async fn replace_version(&self, version: u64, next: u64) -> Result<(), Fault> {
        let command = script::compare_and_set(&keys::shared(VERSION), version, next);
        self.shards.admin(self.shards.home(), command).await.map(drop)
    }
}

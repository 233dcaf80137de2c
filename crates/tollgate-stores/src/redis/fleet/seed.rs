//! The seed by which all nodes hash subjects.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use redis::{Cmd, ExistenceCheck, SetOptions, Value};
use tokio::time::sleep;
use tollgate::Seed;

use crate::redis::connection::error::Fault;
use crate::redis::health::Health;
use crate::redis::script::keys::{self, SEED};
use crate::redis::topology::ShardMap;

/// How long a new node waits after a damaged seed was deleted: nodes that know the seed restore it with each heartbeat.
const RESTORE_WAIT: Duration = Duration::from_secs(3);

/// Agrees with the other nodes on a seed.
pub(super) struct SeedAgreement {
    shards: Arc<ShardMap>,
    health: Arc<Health>,
    agreed: ArcSwapOption<Seed>,
}

impl SeedAgreement {
    pub(super) fn new(shards: Arc<ShardMap>, health: Arc<Health>) -> Self {
        SeedAgreement { shards, health, agreed: ArcSwapOption::empty() }
    }

    pub(super) fn agreed(&self) -> Option<Seed> {
        self.agreed.load_full().map(|seed| *seed)
    }

    /// Reads the seed, or proposes our own if it is missing.
    pub(super) async fn agree(&self, own: Seed) -> Result<Seed, Fault> {
        let mut seed = self.read().await;
        if seed == Ok(None) {
            let was_damaged = self.health.damaged_key(Some(SEED)).is_some();
            if was_damaged && self.agreed.load().is_none() {
                sleep(RESTORE_WAIT).await;
            }
            self.propose(own).await?;
            seed = self.read().await;
        }
        let seed = seed.and_then(|seed| seed.ok_or_else(|| Fault::invalid_key(SEED)));
        self.health.note_shared_key(SEED, self.shards.home(), &seed);
        self.agreed.store(Some(Arc::new(seed.clone()?)));
        seed
    }

    /// Proposes the agreed seed again, before a new node proposes another to a server that lost its data.
    pub(super) async fn restore(&self) -> Result<(), Fault> {
        match self.agreed() {
            Some(seed) => self.propose(seed).await,
            None => Ok(()),
        }
    }

    /// Sets the seed unless there is one.
    async fn propose(&self, seed: Seed) -> Result<(), Fault> {
        let if_absent = SetOptions::default().conditional_set(ExistenceCheck::NX);
        let set = Cmd::set_options(keys::shared(SEED), seed.0.as_slice(), if_absent);
        self.shards.admin(self.shards.home(), set).await.map(drop)
    }

    async fn read(&self) -> Result<Option<Seed>, Fault> {
        match self.shards.admin(self.shards.home(), Cmd::get(keys::shared(SEED))).await? {
            Value::Nil => Ok(None),
            Value::BulkString(seed) => {
                seed.try_into().map(|seed| Some(Seed(seed))).map_err(|_| Fault::invalid_key(SEED))
            }
            _ => Err(Fault::invalid_key(SEED)),
        }
    }
}

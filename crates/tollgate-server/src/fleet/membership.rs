//! Membership in the fleet: the shared hash seed, the number of nodes, and per-user limits that any node has set.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::broadcast::error::RecvError;
use tollgate::Seed;
use tollgate::counters::{CounterStore, StoreError};
use tollgate::identity::InTenant;
use tollgate::rules::overrides::{Override, Overrides};
use tollgate_stores::redis::{Fleet, RedisCounters};
use tracing::{info, warn};

use crate::ServiceLimiter;
use crate::runtime::data_dir::DataDir;

const DATA_LOST: &str = "the counter store lost its data or was restored to an older state";
/// Between attempts to join.
const JOIN_RETRY_EVERY: Duration = Duration::from_millis(50);
/// Between attempts while Redis is misconfigured.
const MISCONFIGURED_RETRY_EVERY: Duration = Duration::from_secs(1);
/// How often a member verifies the shared state without a notification.
const POLL_EVERY: Duration = Duration::from_secs(5);

/// The fleet's hash seed, or the one stored by this node's last run. The shared counters are not used until the fleet's seed is
/// known.
pub(crate) async fn join(redis: &RedisCounters, data_dir: &DataDir) -> Seed {
    let own = data_dir.fleet_seed().unwrap_or_else(Seed::random);
    match redis.fleet().seed(own).await {
        Ok(seed) => {
            adopt(redis, data_dir, seed);
            seed
        }
        Err(_) => own,
    }
}

/// Stores the fleet's seed and starts to use the shared counters.
fn adopt(redis: &RedisCounters, data_dir: &DataDir, seed: Seed) {
    if data_dir.fleet_seed() != Some(seed) {
        data_dir.store_fleet_seed(seed);
    }
    redis.fleet().set_awaiting_seed(false);
}

/// Joins the fleet as soon as it is reachable, then applies per-user limits that other nodes set.
///
/// `database_has_overrides` is whether the database stores those limits instead of Redis.
pub(crate) async fn run(limiter: Arc<ServiceLimiter>, data_dir: Arc<DataDir>, database_has_overrides: bool) {
    let Some(redis) = limiter.counters().redis().cloned() else { return };
    let mut versions = redis.fleet().config_version();
    let mut member = Member {
        limiter,
        database_has_overrides,
        redis,
        data_dir,
        adopted: None,
        nodes: None,
        applied_version: 0,
    };
    loop {
        let version = *versions.borrow_and_update();
        match member.apply_version(version).await {
            // The sender lives in the store, which `member` holds.
            Ok(()) => drop(tokio::time::timeout(POLL_EVERY, versions.changed()).await),
            // The store has logged the cause; an operator must fix it.
            Err(StoreError::Misconfigured) => tokio::time::sleep(MISCONFIGURED_RETRY_EVERY).await,
            Err(_) => tokio::time::sleep(JOIN_RETRY_EVERY).await,
        }
    }
}

/// Discards fallback charges of counters that another node resets.
pub(crate) async fn apply_resets(limiter: Arc<ServiceLimiter>) {
    let Some(mut resets) = limiter.counters().redis().map(|redis| redis.fleet().resets()) else {
        return;
    };
    loop {
        match resets.recv().await {
            Ok(reset) => limiter.discard_fallback(&reset),
            Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => return,
        }
    }
}

/// This node as a member of the fleet.
struct Member {
    limiter: Arc<ServiceLimiter>,
    database_has_overrides: bool,
    redis: RedisCounters,
    data_dir: Arc<DataDir>,
    adopted: Option<Seed>,
    /// The node count stored in the data directory.
    nodes: Option<NonZeroU32>,
    /// The version of the per-user limits in force; 0 before the first.
    applied_version: u64,
}

impl Member {
    async fn apply_version(&mut self, version: u64) -> Result<(), StoreError> {
        self.agree_on_seed().await?;
        self.store_node_count().await;
        if version == self.applied_version {
            return Ok(());
        }
        let lost = Fleet::data_lost_between(self.applied_version, version);
        // Where the database stores per-user limits, config sync applies them.
        if self.database_has_overrides {
            if lost {
                warn!("{DATA_LOST}: counters start from zero");
            }
            self.applied_version = version;
            return Ok(());
        }
        if lost {
            self.restore_shared_config().await?;
        }
        // None if the data was lost again: the limits in force stay, and are restored with the next version.
        if let Some(config) = self.redis.fleet().shared_config(version).await? {
            apply(&self.limiter, &config);
            self.applied_version = version;
        }
        Ok(())
    }

    /// Repeated on every poll: a new node may have set another seed on a server that lost its data.
    async fn agree_on_seed(&mut self) -> Result<(), StoreError> {
        let limiter = &self.limiter;
        let own = limiter.seed();
        let seed = match self.redis.fleet().seed(own).await {
            Ok(seed) => seed,
            // The stored seed is damaged. This node knows it and continues.
            Err(StoreError::Misconfigured) if self.adopted.is_some() => return Ok(()),
            Err(error) => return Err(error),
        };
        if seed != own {
            warn!(
                "the fleet uses another hash seed: charges counted under this node's own seed no longer apply"
            );
            limiter.set_seed(seed);
        }
        if self.adopted != Some(seed) {
            adopt(&self.redis, &self.data_dir, seed);
            self.adopted = Some(seed);
        }
        Ok(())
    }

    /// A node that starts without Redis takes its share of limits by this count.
    async fn store_node_count(&mut self) {
        let nodes = self.redis.nodes();
        if self.nodes.replace(nodes) != Some(nodes) {
            let data_dir = Arc::clone(&self.data_dir);
            // Disk I/O; the data directory logs a failure.
            let _ = tokio::task::spawn_blocking(move || data_dir.store_fleet_nodes(nodes)).await;
        }
    }

    /// Writes the per-user limits that this node knows back to a store that lost its data. Where the store has another limit for
    /// a user, the one set later wins.
    async fn restore_shared_config(&self) -> Result<(), StoreError> {
        let rules = self.limiter.rules();
        let known: Vec<_> = rules.overrides().iter().map(|limit| (field_of(limit), json_of(limit))).collect();
        drop(rules);
        let restored = self.redis.fleet().restore_config(&known, is_newer).await?;
        warn!(
            restored,
            "{DATA_LOST}: counters start from zero; per-user limits were restored from this node"
        );
        Ok(())
    }
}

/// Whether our limit was set later than theirs, both as stored on Redis. One that cannot be read was set by a newer version.
fn is_newer(ours: &str, theirs: &str) -> bool {
    let set_at = |text| serde_json::from_str::<Override>(text).ok().map(|set| set.updated_at);
    set_at(theirs).is_some_and(|theirs| set_at(ours) > Some(theirs))
}

/// Applies the per-user limits that the nodes share.
fn apply(limiter: &ServiceLimiter, config: &[(String, String)]) {
    let parse = |(field, json): &(String, String)| {
        let limit = serde_json::from_str::<Override>(json).ok();
        if limit.is_none() {
            warn!(field, "cannot read a per-user limit set by another node; it may run a newer version");
        }
        limit
    };
    let next: Overrides = config.iter().filter_map(parse).collect();
    if *limiter.rules().overrides().as_ref() != next {
        info!(count = next.len(), "applied per-user limits of the fleet");
        limiter.update_overrides(|_| next.clone());
    }
}

/// Sets or removes a per-user limit on all nodes. Does nothing without Redis.
pub(crate) async fn share(
    limiter: &ServiceLimiter,
    user: InTenant<'_, &str>,
    endpoint: &str,
    limit: Option<&Override>,
) -> Result<(), StoreError> {
    let Some(redis) = limiter.counters().redis() else { return Ok(()) };
    redis.fleet().set_shared_config(&field(user, endpoint), limit.map(json_of).as_deref()).await
}

// Serializing strings and integers does not fail.

fn field(user: InTenant<'_, &str>, endpoint: &str) -> String {
    let field = match user.tenant {
        Some(tenant) => serde_json::to_string(&(tenant, user.id, endpoint)),
        None => serde_json::to_string(&(user.id, endpoint)),
    };
    field.unwrap_or_default()
}

fn field_of(limit: &Override) -> String {
    field(limit.user(), &limit.endpoint)
}

fn json_of(limit: &Override) -> String {
    serde_json::to_string(limit).unwrap_or_default()
}

//! This node among others that share its counters: the seed of their hashes, and numbers set for single users on any of
//! them.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::broadcast::error::RecvError;
use tollgate::Seed;
use tollgate::counters::{CounterStore, StoreError};
use tollgate::rules::overrides::{Override, Overrides};
use tollgate_stores::redis::{Fleet, RedisCounters};
use tracing::{info, warn};

use crate::app::App;
use crate::runtime::data_dir::DataDir;

/// What is told of a store whose version is of another life.
const LOST: &str = "the counter store has lost everything, or went back to an older state";
/// How often a node that could not join tries again.
const JOIN_EVERY: Duration = Duration::from_millis(50);
/// How often a node looks whether what it was told, and cannot be, was mended.
const MENDED_EVERY: Duration = Duration::from_secs(1);
/// How long the server with the fleet's names may take before a copy of them is asked for.
const NAMES_FIRST: Duration = Duration::from_secs(1);
/// How often a node that has joined looks whether it still agrees with the others, if it hears nothing.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// The fleet's seed if it can be had, and else the one it had when this node last met it. Until it can be had nothing is
/// decided by the shared counters.
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

/// Hashes by the fleet's seed from now on.
fn adopt(redis: &RedisCounters, data_dir: &DataDir, seed: Seed) {
    if data_dir.fleet_seed() != Some(seed) {
        data_dir.keep_fleet_seed(seed);
    }
    redis.fleet().set_awaiting_seed(false);
}

/// Joins the fleet as soon as it can be reached, and then follows what is set on other nodes.
pub(crate) async fn follow(app: Arc<App>, data_dir: Arc<DataDir>) {
    let Some(redis) = app.limiter().counters().redis().cloned() else { return };
    let mut versions = redis.fleet().config_version();
    let mut member =
        Member { app, redis, data_dir, started: Instant::now(), adopted: None, nodes: None, followed: 0 };
    loop {
        let version = *versions.borrow_and_update();
        match member.keep_up(version).await {
            // The sender is in the store that we hold.
            Ok(()) => drop(tokio::time::timeout(LOOK_EVERY, versions.changed()).await),
            // Only an operator can mend it, and is told by the store.
            Err(StoreError::Misconfigured) => tokio::time::sleep(MENDED_EVERY).await,
            Err(_) => tokio::time::sleep(JOIN_EVERY).await,
        }
    }
}

/// Drops what this node counted in an outage of counters that another one resets.
pub(crate) async fn heed_resets(app: Arc<App>) {
    let Some(mut resets) = app.limiter().counters().redis().map(|redis| redis.fleet().resets()) else {
        return;
    };
    loop {
        match resets.recv().await {
            Ok(reset) => app.limiter().discard_fallback(&reset),
            Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => return,
        }
    }
}

/// This node, and how far it follows the others.
struct Member {
    app: Arc<App>,
    redis: RedisCounters,
    data_dir: Arc<DataDir>,
    started: Instant,
    adopted: Option<Seed>,
    /// How many nodes there are, as far as it is on the disk.
    nodes: Option<NonZeroU32>,
    /// The version of the numbers in force here; none before the first.
    followed: u64,
}

impl Member {
    async fn keep_up(&mut self, version: u64) -> Result<(), StoreError> {
        self.agree_on_seed().await?;
        self.keep_nodes().await;
        if version == self.followed {
            return Ok(());
        }
        let lost = Fleet::data_lost_between(self.followed, version);
        // Where the database is their home, the catalog follows the numbers.
        if self.app.config_sync().stores_overrides() {
            if lost {
                warn!("{LOST}: counters start afresh");
            }
            self.followed = version;
            return Ok(());
        }
        if lost {
            self.tell_again().await?;
        }
        // None if it is lost again meanwhile: what this node knows stays in force, and is told with the next version.
        if let Some(config) = self.redis.fleet().shared_config(version).await? {
            take_over(&self.app, &config);
            self.followed = version;
        }
        Ok(())
    }

    /// Looked at again and again: a newcomer that meets a server which lost everything may set another one.
    async fn agree_on_seed(&mut self) -> Result<(), StoreError> {
        let limiter = self.app.limiter();
        let own = limiter.seed();
        let seed = match self.redis.fleet().seed(own).await {
            Ok(seed) => seed,
            // It is damaged, which says nothing of what else the nodes share: this one knows it, and goes on.
            Err(StoreError::Misconfigured) if self.adopted.is_some() => return Ok(()),
            Err(error) => self.copied_seed().await.ok_or(error)?,
        };
        if seed != own {
            warn!(
                "the fleet knows clients by another seed: what this node counted by its own is not found any more"
            );
            limiter.set_seed(seed);
        }
        if self.adopted != Some(seed) {
            adopt(&self.redis, &self.data_dir, seed);
            self.adopted = Some(seed);
        }
        Ok(())
    }

    /// For a node that has yet to join.
    async fn copied_seed(&self) -> Option<Seed> {
        if self.adopted.is_some() || self.started.elapsed() < NAMES_FIRST {
            return None;
        }
        let seed = self.redis.fleet().replicated_seed().await?;
        info!("the server with the fleet's names is away: this node goes by a copy on another one");
        Some(seed)
    }

    /// Kept for a start without the others.
    async fn keep_nodes(&mut self) {
        let nodes = self.redis.nodes();
        if self.nodes.replace(nodes) != Some(nodes) {
            let data_dir = Arc::clone(&self.data_dir);
            // On a thread that may wait for the disk. A failure is logged there.
            let _ = tokio::task::spawn_blocking(move || data_dir.keep_fleet_nodes(nodes)).await;
        }
    }

    /// What was set for single users outlives a server without a disk, or with an old one, as long as one node remembers it.
    /// What the server has is as it was some time ago: of two numbers for one user those hold that were set later.
    async fn tell_again(&self) -> Result<(), StoreError> {
        let rules = self.app.limiter().rules();
        let known: Vec<_> =
            rules.overrides().iter().map(|numbers| (name_of(numbers), text_of(numbers))).collect();
        drop(rules);
        let told = self.redis.fleet().restore_config(&known, is_newer).await?;
        warn!(told, "{LOST}: counters start afresh, and it is told the numbers for single users again");
        Ok(())
    }
}

/// Whether numbers were set later than others, both as nodes tell each other. What cannot be read was set by a newer node.
fn is_newer(ours: &str, theirs: &str) -> bool {
    let set_at = |text| serde_json::from_str::<Override>(text).ok().map(|set| set.updated_at);
    set_at(theirs).is_some_and(|theirs| set_at(ours) > Some(theirs))
}

/// Puts the numbers that any node has set in force here.
fn take_over(app: &App, config: &[(String, String)]) {
    let read = |(name, text): &(String, String)| {
        let numbers = serde_json::from_str::<Override>(text).ok();
        if numbers.is_none() {
            warn!(name, "numbers set by another node cannot be read; is it newer?");
        }
        numbers
    };
    let next: Overrides = config.iter().filter_map(read).collect();
    if *app.limiter().rules().overrides().as_ref() != next {
        info!(count = next.len(), "numbers set for single users follow those of the fleet");
        app.limiter().update_overrides(|_| next.clone());
    }
}

/// Sets, or removes, numbers on all nodes. On a node that is alone there is nothing to do.
pub(crate) async fn share(
    app: &App,
    user: &str,
    endpoint: &str,
    numbers: Option<&Override>,
) -> Result<(), StoreError> {
    let Some(redis) = app.limiter().counters().redis() else { return Ok(()) };
    redis.fleet().set_shared_config(&name(user, endpoint), numbers.map(text_of).as_deref()).await
}

// Texts and numbers always can be written.

fn name(user: &str, endpoint: &str) -> String {
    serde_json::to_string(&(user, endpoint)).unwrap_or_default()
}

fn name_of(numbers: &Override) -> String {
    name(&numbers.user, &numbers.endpoint)
}

fn text_of(numbers: &Override) -> String {
    serde_json::to_string(numbers).unwrap_or_default()
}

//! What the nodes of a fleet share through Redis: membership, the hash seed, configuration, resets, reports.
//!
//! Pub/sub messages only speed things up, because they can be lost. Without them a node reads the configuration version
//! and the reset log every second, leases expire after two seconds and cached refusals after one.

pub(crate) mod idempotency;
mod membership;
pub(crate) mod node_reports;
pub(crate) mod pubsub;
pub(crate) mod reconcile;
pub(crate) mod resets;
mod seed;
mod seen_resets;
mod shared_config;
mod version;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, broadcast, watch};
use tokio::time::timeout;
use tollgate::Seed;
use tollgate::counters::StoreError;

use self::membership::{Membership, MembershipGrace};
pub(crate) use self::membership::{list_nodes, version_of};
use self::node_reports::{NodeReports, ReportBoard};
use self::resets::Resets;
use self::seed::SeedAgreement;
use self::shared_config::SharedConfig;
use super::connection::error::Fault;
use super::connection::random::jitter;
use super::decide::Decider;
use super::decide::join_state::JoinState;
use super::health::Health;
use super::lease::cooldowns::COOLDOWN_MESSAGE;
use super::topology::ShardMap;

const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);
/// Until the first heartbeat succeeds, when nothing can be decided.
const FIRST_HEARTBEAT_INTERVAL: Duration = Duration::from_millis(20);
/// The message that configuration stored elsewhere has changed.
const CHANGE_MESSAGE: &str = "elsewhere";

/// This node as a member of its fleet.
pub struct Fleet {
    shards: Arc<ShardMap>,
    join_state: Arc<JoinState>,
    decider: Arc<Decider>,
    health: Arc<Health>,
    resets: Arc<Resets>,
    membership: Membership,
    seed: SeedAgreement,
    config: SharedConfig,
    reports: ReportBoard,
    /// Wakes the heartbeat.
    wake: Notify,
    /// Incremented when another node reports a change of configuration stored elsewhere.
    changes: watch::Sender<u64>,
}

impl Fleet {
    pub(crate) fn new(
        shards: &Arc<ShardMap>,
        join_state: &Arc<JoinState>,
        decider: Arc<Decider>,
        health: &Arc<Health>,
        resets: Arc<Resets>,
    ) -> Self {
        let membership = Membership::new(Arc::clone(shards));
        Fleet {
            reports: ReportBoard::new(Arc::clone(shards), membership.id()),
            membership,
            seed: SeedAgreement::new(Arc::clone(shards), Arc::clone(health)),
            config: SharedConfig::new(Arc::clone(shards), Arc::clone(health)),
            shards: Arc::clone(shards),
            join_state: Arc::clone(join_state),
            decider,
            health: Arc::clone(health),
            resets,
            wake: Notify::new(),
            changes: watch::Sender::new(0),
        }
    }

    /// The seed of the fleet; the first node to propose one sets it.
    ///
    /// # Errors
    /// When the store is unreachable.
    pub async fn seed(&self, own: Seed) -> Result<Seed, StoreError> {
        self.seed.agree(own).await.map_err(|fault| self.store_error(fault))
    }

    /// Makes decisions fail as unreachable until the fleet's seed is adopted: with another seed, this node would count the
    /// same clients under other keys.
    pub fn set_awaiting_seed(&self, awaiting: bool) {
        self.join_state.set_awaiting_seed(awaiting);
    }

    /// Whether this node has joined the fleet and adopted its seed. Before that nothing is decided here.
    pub fn has_joined(&self) -> bool {
        self.join_state.check().is_ok()
    }

    /// Assumes at least this many nodes until the first heartbeats have been exchanged, for a node that starts while Redis
    /// is unreachable.
    pub fn restore_node_count(&self, nodes: NonZeroU32) {
        let leases = &self.decider.leases;
        leases.set_nodes(leases.nodes().max(nodes.get()));
    }

    /// The version of the shared configuration; changes when any node changes it.
    pub fn config_version(&self) -> watch::Receiver<u64> {
        self.config.version()
    }

    /// Whether the servers lost data between two configuration versions: everything, or the latest changes.
    pub fn data_lost_between(before: u64, after: u64) -> bool {
        version::data_lost_between(before, after)
    }

    /// The shared configuration by name. None if the servers lost it since this version: what is read then says nothing
    /// about what was set.
    ///
    /// # Errors
    /// When the store is unreachable.
    pub async fn shared_config(&self, since: u64) -> Result<Option<Vec<(String, String)>>, StoreError> {
        self.config.read_since(since).await.map_err(|fault| self.store_error(fault))
    }

    /// Sets or removes a value for all nodes.
    ///
    /// # Errors
    /// When the store is unreachable; the value may be set nevertheless.
    pub async fn set_shared_config(&self, name: &str, value: Option<&str>) -> Result<(), StoreError> {
        self.config.set(name, value).await.map_err(|fault| self.store_error(fault))
    }

    /// Sets values that are missing, or older than ours by `is_newer(ours, theirs)`. Returns how many were set.
    ///
    /// # Errors
    /// When the store is unreachable; some values may be set nevertheless.
    pub async fn restore_config(
        &self,
        config: &[(String, String)],
        is_newer: impl Fn(&str, &str) -> bool,
    ) -> Result<usize, StoreError> {
        self.config.restore(config, is_newer).await.map_err(|fault| self.store_error(fault))
    }

    /// Counters reset on any node from now on, each as its subject XOR its counter id.
    pub fn resets(&self) -> broadcast::Receiver<Arc<[u128]>> {
        self.resets.subscribe()
    }

    /// Notifies the other nodes that configuration stored elsewhere has changed. Delivery is not guaranteed.
    pub async fn notify_change(&self) {
        self.shards.publish(CHANGE_MESSAGE).await;
    }

    /// Changes when another node calls [`Fleet::notify_change`].
    pub fn change_notifications(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Publishes a report of this node, instead of its last one, for `ttl`.
    ///
    /// # Errors
    /// When the store is unreachable.
    pub async fn publish_report(&self, report: &[u8], ttl: Duration) -> Result<(), StoreError> {
        self.reports.publish(report, ttl).await.map_err(|fault| self.store_error(fault))
    }

    /// The reports of the other nodes.
    ///
    /// # Errors
    /// When the store is unreachable.
    pub async fn other_reports(&self) -> Result<NodeReports, StoreError> {
        self.reports.read_others().await.map_err(|fault| self.store_error(fault))
    }

    /// Returns all leases and leaves the fleet.
    pub(crate) async fn close(&self) {
        self.decider.close().await;
        self.membership.leave().await;
    }

    /// Handles a pub/sub message.
    pub(crate) fn receive(&self, message: &str) {
        match message.split_once(' ').unwrap_or((message, "")) {
            (resets::MESSAGE, _) => self.resets.receive(),
            (COOLDOWN_MESSAGE, arguments) => self.decider.receive_cooldown(arguments),
            (CHANGE_MESSAGE, _) => self.changes.send_modify(|count| *count += 1),
            _ => self.wake.notify_one(),
        }
    }

    /// Sends heartbeats until stopped.
    pub(crate) async fn run_heartbeat(self: Arc<Self>) {
        let mut grace = MembershipGrace::new();
        loop {
            let outcome = self.heartbeat(grace.nodes_min(self.decider.leases.nodes())).await;
            grace.note(&outcome);
            self.health.note_heartbeat(&outcome);
            let interval = if self.join_state.has_joined() {
                HEARTBEAT_INTERVAL.saturating_sub(jitter(HEARTBEAT_INTERVAL / 10))
            } else {
                FIRST_HEARTBEAT_INTERVAL
            };
            let _ = timeout(interval, self.wake.notified()).await;
        }
    }

    /// Registers this node, counts the others, and reads the configuration version.
    async fn heartbeat(&self, nodes_min: u32) -> Result<(), Fault> {
        let now = self.shards.time(self.shards.home()).await?;
        let nodes = self.membership.register(now).await?;
        self.decider.leases.set_nodes(nodes.max(nodes_min));
        self.join_state.join().await?;
        let version = self.config.settled_version().await?;
        self.seed.restore().await?;
        self.config.set_version(version);
        Ok(())
    }

    fn store_error(&self, fault: Fault) -> StoreError {
        fault.into_store_error(self.shards.admin_timeout())
    }
}

//! Counters on Redis or Valkey: one script call per decision, on the server's clock.
//!
//! The modules in the order of a decision:
//! - [`decide`]: the decision itself, from the cached refusal to the remembered verdict
//! - [`lease`]: units of busy counters that this node took in advance
//! - [`script`]: the script that charges all limits of a decision, its arguments and its reply
//! - [`topology`]: which server holds a counter (single, sentinel, cluster, ring)
//! - [`connection`]: batching connections, circuit breaker, errors
//! - [`fleet`]: membership, seed, shared configuration, resets, reconciliation, idempotency locks
//! - [`health`]: failures and warnings for operators
//! - [`probe`]: a look at the servers without joining the fleet

mod connection;
mod decide;
mod fleet;
mod health;
mod lease;
mod probe;
mod script;
mod settings;
mod topology;
mod url;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use futures_util::future::join;
use tokio::task::JoinSet;
use tollgate::Timestamp;
use tollgate::counters::{
    Charges, CounterAdmin, CounterStore, PenalizedClient, Refund, RefundOutcomes, StoreError, Verdicts,
};

pub use self::connection::server::ServerStats;
pub use self::fleet::Fleet;
pub use self::fleet::idempotency::{IdempotencyLock, IdempotencyLocks};
pub use self::fleet::node_reports::NodeReports;
pub use self::health::server_info::ServerInfo;
pub use self::probe::{ServerProbe, ServerReport, probe};
pub use self::settings::{
    Address, Login, RedisSettings, Secret, TIMEOUT_DEFAULT, Tls, Topology, VIRTUAL_NODES_DEFAULT,
};
pub use self::url::{ServerUrl, UrlError};

use self::connection::error::Fault;
use self::decide::Decider;
use self::decide::join_state::JoinState;
use self::decide::penalty_list::PenaltyList;
use self::decide::refusal_cache::RefusalCache;
use self::fleet::pubsub::Subscriber;
use self::fleet::reconcile::Reconciler;
use self::fleet::resets::Resets;
use self::health::Health;
use self::health::server_info::ServerInfoPoller;
use self::topology::ShardMap;
use self::topology::background::BackgroundCalls;

/// Counters on Redis or Valkey. A clone is the same store.
///
/// Opening does not wait for a server: until one is connected, decisions fail as unreachable.
#[derive(Clone)]
pub struct RedisCounters(Arc<Parts>);

struct Parts {
    timeout: Duration,
    shards: Arc<ShardMap>,
    join_state: Arc<JoinState>,
    decider: Arc<Decider>,
    penalties: Arc<PenaltyList>,
    resets: Arc<Resets>,
    reconciler: Reconciler,
    fleet: Arc<Fleet>,
    idempotency: IdempotencyLocks,
    health: Arc<Health>,
    server_info: Arc<ServerInfoPoller>,
    /// Background tasks; stopped when the last clone is dropped.
    _tasks: JoinSet<()>,
}

/// The settings cannot work with any server.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid settings of the counter store: {0}")]
pub struct RedisSettingsError(String);

/// Leases of this node.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseStats {
    /// Leases with unused units.
    pub held: usize,
    /// Unused units. That many may be admitted beyond limits if the servers that granted them lose their memory.
    pub units: u64,
    /// Units that could not be returned: of failed servers, and of returns that came too late. 0 without faults.
    pub lost: u64,
    /// Charges served from leases.
    pub served: u64,
    /// All charges.
    pub charges: u64,
}

impl RedisCounters {
    /// Starts connecting. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// When the settings cannot work with any server, such as an invalid certificate.
    pub fn open(settings: &RedisSettings) -> Result<Self, RedisSettingsError> {
        let shards = ShardMap::open(settings).map_err(|fault| RedisSettingsError(fault.to_string()))?;
        let shards = Arc::new(shards);
        let background = BackgroundCalls::new(Arc::clone(&shards));
        let join_state = Arc::new(JoinState::new(Arc::clone(&shards)));
        let health = Arc::new(Health::new(Arc::clone(&shards), Arc::clone(&join_state)));
        let penalties = Arc::new(PenaltyList::new(Arc::clone(&shards), background.clone()));
        let decider = Arc::new(Decider::new(
            settings,
            Arc::clone(&shards),
            Arc::clone(&join_state),
            background,
            Arc::clone(&penalties),
        ));
        let resets = Arc::new(Resets::new(
            Arc::clone(&shards),
            Arc::clone(&join_state),
            Arc::clone(&decider),
            Arc::clone(&health),
            Arc::clone(&penalties),
        ));
        let fleet = Fleet::new(&shards, &join_state, Arc::clone(&decider), &health, Arc::clone(&resets));
        let fleet = Arc::new(fleet);
        let server_info = Arc::new(ServerInfoPoller::new(Arc::clone(&shards), Arc::clone(&join_state)));

        let mut tasks = JoinSet::new();
        tasks.spawn(Arc::clone(&fleet).run_heartbeat());
        let (subscribed, resets_seen) = (Arc::clone(&fleet), Arc::clone(&resets));
        let connect_timeout = settings.connect_timeout;
        tasks.spawn(Subscriber::new(Arc::clone(&shards), subscribed, resets_seen, connect_timeout).run());
        tasks.spawn(Arc::clone(&resets).follow_logs());
        tasks.spawn(Arc::clone(&server_info).run());
        tasks.spawn(Arc::clone(&decider).expire_leases());

        Ok(RedisCounters(Arc::new(Parts {
            timeout: settings.timeout,
            reconciler: Reconciler::new(Arc::clone(&shards), Arc::clone(&join_state), Arc::clone(&resets)),
            idempotency: IdempotencyLocks::new(Arc::clone(&shards), settings.timeout),
            shards,
            join_state,
            decider,
            penalties,
            resets,
            fleet,
            health,
            server_info,
            _tasks: tasks,
        })))
    }

    /// Waits until every server is connected, one rejects us, or `patience` has passed. Returns whether all are connected.
    pub async fn connected(&self, patience: Duration) -> bool {
        let Parts { shards, join_state, health, .. } = &*self.0;
        let all = async {
            loop {
                let servers = shards.servers();
                for server in &servers {
                    server.connected().await;
                }
                if health.misconfiguration().is_some() || !servers.is_empty() && join_state.has_joined() {
                    return !servers.is_empty() && servers.iter().all(|server| server.is_connected());
                }
                // The servers are not discovered yet, or the fleet is not joined.
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(patience, all).await.unwrap_or(false)
    }

    /// Returns all leases and leaves the fleet. To be called before the process ends.
    pub async fn close(&self) {
        self.0.fleet.close().await;
    }

    /// This node as a member of its fleet.
    pub fn fleet(&self) -> &Fleet {
        &self.0.fleet
    }

    /// Idempotency locks shared with the other nodes.
    pub fn idempotency(&self) -> &IdempotencyLocks {
        &self.0.idempotency
    }

    /// [`CounterStore::charge_all`], and the server's clock at the decision, if a server decided.
    ///
    /// # Errors
    /// As [`CounterStore::charge_all`].
    pub async fn charge_all_timed(
        &self,
        charges: &Charges<'_>,
        now: Timestamp,
    ) -> Result<(Verdicts, Option<Timestamp>), StoreError> {
        self.decide(charges, now, Instant::now()).await
    }

    /// Statistics of each server.
    pub fn servers(&self) -> Vec<ServerStats> {
        self.0.shards.servers().iter().map(|server| server.stats()).collect()
    }

    /// Figures of each server from `INFO`, a few seconds old.
    pub fn server_info(&self) -> Vec<ServerInfo> {
        self.0.server_info.last()
    }

    /// Why no server is known yet.
    pub fn no_servers_reason(&self) -> &'static str {
        self.0.shards.no_servers_reason()
    }

    /// Why nothing can be decided until an operator acts.
    pub fn misconfiguration(&self) -> Option<String> {
        self.0.health.misconfiguration().map(|fault| fault.to_string())
    }

    /// Why decisions fail although all servers are connected.
    pub fn failure(&self) -> Option<String> {
        self.0.health.failure()
    }

    /// What needs attention although decisions succeed.
    pub fn warning(&self) -> Option<String> {
        self.0.health.warning()
    }

    /// The server's clock minus ours in seconds, as of the last reply.
    #[expect(clippy::cast_precision_loss, reason = "a gauge")]
    pub fn clock_offset_seconds(&self) -> f64 {
        self.0.decider.clock_offset.load(Ordering::Relaxed) as f64 / 1e6
    }

    /// Leases of this node.
    pub fn leases(&self) -> LeaseStats {
        let Decider { leases, charges, .. } = &*self.0.decider;
        let (held, units) = leases.outstanding(Instant::now());
        let charges = charges.load(Ordering::Relaxed);
        LeaseStats { held, units, lost: leases.lost(), served: leases.served(), charges }
    }

    /// Refusals answered from the cache.
    pub fn cached_refusals(&self) -> u64 {
        self.0.decider.refusals.as_ref().map_or(0, RefusalCache::hits)
    }

    /// Calls not sent because no server of the cluster owns their slot.
    pub fn unassigned_slot_calls(&self) -> u64 {
        self.0.shards.unassigned_slot_calls()
    }

    /// Charges refunded because another shard refused.
    pub fn refunds(&self) -> u64 {
        self.0.decider.multi_shard.refunds()
    }

    /// Decides, and records the outcome for health and resets.
    async fn decide(
        &self,
        charges: &Charges<'_>,
        now: Timestamp,
        started: Instant,
    ) -> Result<(Verdicts, Option<Timestamp>), StoreError> {
        let Parts { decider, health, resets, timeout, .. } = &*self.0;
        match decider.decide(charges, now, started).await {
            Ok((verdicts, decided_at)) => {
                if decided_at.is_some() {
                    health.decision_succeeded();
                }
                Ok((verdicts, decided_at))
            }
            Err(fault) => {
                let fault = health.explain(fault);
                resets.note_failure();
                health.decision_failed(&fault, charges);
                Err(fault.into_store_error(*timeout))
            }
        }
    }

    fn admin_error(&self, fault: Fault) -> StoreError {
        self.0.health.explain(fault).into_store_error(self.0.shards.admin_timeout())
    }
}

impl CounterStore for RedisCounters {
    async fn charge_all(&self, charges: &Charges<'_>, now: Timestamp) -> Result<Verdicts, StoreError> {
        self.charge_all_timed(charges, now).await.map(|(verdicts, _)| verdicts)
    }

    async fn refund(&self, refunds: &[Refund<'_>], now: Timestamp) -> RefundOutcomes {
        self.0.decider.refund(refunds, now, Instant::now()).await
    }

    /// Nodes with a heartbeat in the last seconds, including this one.
    fn nodes(&self) -> NonZeroU32 {
        NonZeroU32::new(self.0.decider.leases.nodes()).unwrap_or(NonZeroU32::MIN)
    }

    fn is_reachable(&self, charges: &Charges<'_>) -> bool {
        self.0.decider.is_reachable(charges)
    }

    async fn reconcile(&self, pending: &mut Charges<'_>, now: Timestamp) -> Result<(), StoreError> {
        self.0.reconciler.reconcile(pending, now).await.map_err(|fault| self.admin_error(fault))
    }

    async fn reconcile_and_charge(
        &self,
        pending: &mut Charges<'_>,
        charges: &Charges<'_>,
        now: Timestamp,
    ) -> Result<Verdicts, StoreError> {
        let (parts, started) = (&self.0, Instant::now());
        let deadline = started + parts.timeout;
        if parts.reconciler.drop_reset(pending, deadline).await.is_err() {
            return self.decide(charges, now, started).await.map(|(verdicts, _)| verdicts);
        }
        // Sent one after the other and awaited together, so that the request waits for one round trip. The decision usually
        // sees the reconciled charges; batches on different connections may overtake each other.
        let reconcile = parts.reconciler.add(pending, now, deadline);
        let (_, decision) = join(reconcile, self.decide(charges, now, started)).await;
        decision.map(|(verdicts, _)| verdicts)
    }
}

impl CounterAdmin for RedisCounters {
    async fn verify_reset(&self, charges: &Charges<'_>) -> Result<(), StoreError> {
        self.0.resets.verify(charges).await.map_err(|fault| self.admin_error(fault))
    }

    async fn reset(&self, charges: &Charges<'_>) -> Result<usize, StoreError> {
        self.0.resets.reset(charges).await.map_err(|fault| self.admin_error(fault))
    }

    async fn pardon(&self, client: &str) -> Result<bool, StoreError> {
        self.0.resets.pardon(client).await.map_err(|fault| self.admin_error(fault))
    }

    async fn penalized_clients(
        &self,
        count_max: usize,
        now: Timestamp,
    ) -> Result<Vec<PenalizedClient>, StoreError> {
        self.0.penalties.list(count_max, now).await.map_err(|fault| self.admin_error(fault))
    }
}

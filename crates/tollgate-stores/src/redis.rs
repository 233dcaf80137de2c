//! Counters on Redis or Valkey: one script call per decision, on the server's clock.
//!
//! The way of a decision here: what is known to be refused is answered at once ([`refusals`]), what was leased is taken
//! from the lease ([`slices`], [`leases`]) unless its client is kept out ([`cooldowns`]), and what is left is grouped by the
//! place of its counters ([`shards`]) and charged by one call per place ([`decide`], [`script`], [`server`]). One place is the
//! common case; where there are several, a refusal in one takes back what was charged in the others ([`spanning`]), so that
//! nothing is ever admitted beyond a limit.

mod background;
mod connection;
mod decide;
mod fleet;
mod health;
mod lease;
mod random;
mod script;
mod server_info;
mod settings;
mod topology;
mod url;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use futures_util::future::join;
use redis::{Cmd, Value};
use tollgate::Timestamp;
use tollgate::counters::{
    Charge, Charges, CounterAdmin, CounterStore, PenalizedClient, StoreError, Verdicts,
};
use tollgate::identity::Subject;

use self::background::BackgroundCalls;
use self::connection::error::Fault;
pub use self::connection::server::ServerStats;
use self::decide::refusal_cache::RefusalCache;
use self::fleet::Fleet;
pub use self::fleet::idempotency::IdempotencyLock;
use self::fleet::resets::Resets;
use self::fleet::schema::Schema;
use self::health::Troubles;
use self::lease::LeaseTable;
use self::lease::cooldowns::Cooldowns;
use self::script::ChargeScript;
pub use self::script::keys::SCHEMA;
use self::script::keys::{self, Counter};
pub use self::server_info::ServerInfo;
pub use self::settings::{Address, Login, RedisSettings, Secret, Tls, Topology, VIRTUAL_NODES_DEFAULT};
use self::topology::{ShardId, ShardMap};
pub use self::url::{ServerUrl, UrlError};

/// How long what no request waits for may take, if requests themselves may not take longer.
const ADMIN_TIMEOUT: Duration = Duration::from_secs(1);

/// Counters on Redis or Valkey.
///
/// Cloned, it is the same store. It is made without waiting for any server: until there is one, every decision is told
/// that the store is unreachable.
#[derive(Clone)]
pub struct RedisCounters(Arc<Store>);

struct Store {
    shards: Arc<ShardMap>,
    background: BackgroundCalls,
    script: ChargeScript,
    timeout: Duration,
    connect_timeout: Duration,
    /// How long what no request waits for may take.
    admin_timeout: Duration,
    schema: Schema,
    /// Nothing if every refusal is to be asked for.
    refusals: Option<RefusalCache>,
    leases: LeaseTable,
    cooldowns: Cooldowns,
    /// Whether anything is leased at all.
    leasing: bool,
    fleet: Fleet,
    resets: Resets,
    facts: Arc<server_info::Known>,
    troubles: Troubles,
    /// The server's clock less ours, in microseconds, as of the last answer.
    clock_offset: AtomicI64,
    refunds: AtomicU64,
    /// Charges that were decided, however.
    charges: AtomicU64,
}

/// The settings cannot be used, whatever the servers do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the counter store cannot be reached with these settings: {0}")]
pub struct RedisSettingsError(String);

impl RedisCounters {
    /// Begins to connect. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// When the settings make no connection whatever the servers do: a certificate that is none, a name without a port.
    pub fn open(settings: &RedisSettings) -> Result<Self, RedisSettingsError> {
        let shards = ShardMap::open(settings).map_err(|fault| RedisSettingsError(format!("{fault:?}")))?;
        let shards = Arc::new(shards);
        // Whoever lets decisions wait for a distant server does not mean that nothing can be reset on it.
        let admin_timeout = ADMIN_TIMEOUT.max(settings.timeout);
        let store = Arc::new(Store {
            background: BackgroundCalls::new(Arc::clone(&shards), admin_timeout),
            shards,
            script: ChargeScript::new(),
            timeout: settings.timeout,
            connect_timeout: settings.connect_timeout,
            admin_timeout,
            schema: Schema::new(settings.schema),
            refusals: settings.refusal_cache.then(RefusalCache::default),
            leases: LeaseTable::new(settings.leased_from, Instant::now()),
            cooldowns: Cooldowns::new(Instant::now()),
            leasing: settings.leases,
            fleet: Fleet::new(),
            resets: Resets::new(),
            facts: server_info::known(),
            troubles: Troubles::default(),
            clock_offset: AtomicI64::new(0),
            refunds: AtomicU64::new(0),
            charges: AtomicU64::new(0),
        });
        fleet::tend(&store);
        Ok(RedisCounters(store))
    }

    /// Waits until every server is connected, has refused us, or `patience` is over. Whether all are connected.
    pub async fn connected(&self, patience: Duration) -> bool {
        let all = async {
            loop {
                let servers = self.0.shards.servers();
                for server in &servers {
                    server.connected().await;
                }
                if self.0.refusal().is_some() || !servers.is_empty() && self.0.schema.is_known() {
                    return !servers.is_empty() && servers.iter().all(|server| server.is_connected());
                }
                // A cluster whose map or a master whose address is not known yet, or a fleet not heard of.
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(patience, all).await.unwrap_or(false)
    }

    /// [`CounterStore::charge_all`], and by which instant of its own the server decided; nothing if none was asked.
    ///
    /// # Errors
    /// As [`CounterStore::charge_all`].
    pub async fn charge_all_timed(
        &self,
        charges: &Charges<'_>,
        now: Timestamp,
    ) -> Result<(Verdicts, Option<Timestamp>), StoreError> {
        self.0.told(self.0.decide(charges, now, Instant::now()).await, charges)
    }

    /// What is known of each server.
    pub fn servers(&self) -> Vec<ServerStats> {
        self.0.shards.servers().iter().map(|server| server.stats()).collect()
    }

    /// Why nothing can be decided, if it is for a reason that only an operator can help with.
    pub fn refusal(&self) -> Option<String> {
        self.0.refusal().map(|fault| fault.words())
    }

    /// Why no server is known, as long as there is none.
    pub fn no_servers_reason(&self) -> &'static str {
        self.0.shards.no_servers_reason()
    }

    /// The servers' clock less ours, in seconds, as of the last answer.
    #[expect(clippy::cast_precision_loss, reason = "a gauge")]
    pub fn clock_offset_seconds(&self) -> f64 {
        self.0.clock_offset.load(Ordering::Relaxed) as f64 / 1e6
    }

    /// What is leased.
    pub fn leases(&self) -> LeaseStats {
        let (held, units) = self.0.leases.outstanding(Instant::now());
        LeaseStats {
            held,
            units,
            served: self.0.leases.served(),
            charges: self.0.charges.load(Ordering::Relaxed),
        }
    }

    /// RefusalCache that were answered without asking a server.
    pub fn cached_refusals(&self) -> u64 {
        self.0.refusals.as_ref().map_or(0, RefusalCache::hits)
    }

    /// Calls that were not made because no server of a cluster holds their slot.
    pub fn unassigned_slot_calls(&self) -> u64 {
        self.0.shards.unassigned_slot_calls()
    }

    /// Charges that were taken back because another place refused.
    pub fn refunds(&self) -> u64 {
        self.0.refunds.load(Ordering::Relaxed)
    }
}

/// What is leased on this node.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseStats {
    /// LeaseTable with something left.
    pub held: usize,
    /// Units in them: how much may be admitted beyond limits if the servers that granted them are lost.
    pub units: u64,
    /// Charges that were served from leases.
    pub served: u64,
    /// Charges in all, however served.
    pub charges: u64,
}

impl CounterStore for RedisCounters {
    async fn charge_all(&self, charges: &Charges<'_>, now: Timestamp) -> Result<Verdicts, StoreError> {
        self.charge_all_timed(charges, now).await.map(|(verdicts, _)| verdicts)
    }

    /// Those that were heard of in the last seconds, this one included.
    fn nodes(&self) -> NonZeroU32 {
        NonZeroU32::new(self.0.leases.nodes()).unwrap_or(NonZeroU32::MIN)
    }

    fn is_reachable(&self, charges: &Charges<'_>) -> bool {
        self.0.is_reachable(charges)
    }

    async fn reconcile(&self, held: &mut Charges<'_>, now: Timestamp) -> Result<(), StoreError> {
        let carried = self.0.carry_unless_reset(held, now).await;
        carried.map_err(|fault| fault.into_store_error(self.0.admin_timeout))
    }

    async fn reconcile_and_charge(
        &self,
        held: &mut Charges<'_>,
        charges: &Charges<'_>,
        now: Timestamp,
    ) -> Result<Verdicts, StoreError> {
        let (store, started) = (&self.0, Instant::now());
        if store.strike_reset(held, started + store.timeout).await.is_err() {
            return store
                .told(store.decide(charges, now, started).await, charges)
                .map(|(verdicts, _)| verdicts);
        }
        // One behind the other, and waited for together: the request waits for one answer's time. As a rule what is held is
        // counted before the request is; batches and connections may pass each other, and then this one request does not
        // know of it, as those do not that are under way already.
        let carry = store.reconcile(held, now, started + store.timeout);
        let (_, decided) = join(carry, store.decide(charges, now, started)).await;
        store.told(decided, charges).map(|(verdicts, _)| verdicts)
    }
}

impl CounterAdmin for RedisCounters {
    async fn reset(&self, charges: &Charges<'_>) -> Result<usize, StoreError> {
        self.0.reset(charges).await.map_err(|fault| fault.into_store_error(self.0.admin_timeout))
    }

    async fn pardon(&self, client: &str) -> Result<bool, StoreError> {
        self.0.pardon(client).await.map_err(|fault| fault.into_store_error(self.0.admin_timeout))
    }

    async fn penalized_clients(
        &self,
        count_max: usize,
        now: Timestamp,
    ) -> Result<Vec<PenalizedClient>, StoreError> {
        self.0
            .penalized_clients(count_max, now)
            .await
            .map_err(|fault| fault.into_store_error(self.0.admin_timeout))
    }
}

impl Store {
    /// Keeps in mind how a decision ended, and says it in the words of the library.
    fn told(
        &self,
        decided: Result<(Verdicts, Option<Timestamp>), Fault>,
        charges: &Charges<'_>,
    ) -> Result<(Verdicts, Option<Timestamp>), StoreError> {
        match decided {
            Ok((verdicts, at)) => {
                if at.is_some() {
                    self.troubles.decided();
                }
                Ok((verdicts, at))
            }
            Err(fault) => {
                self.resets.note_failure();
                self.note_failed(&fault, charges);
                Err(fault.into_store_error(self.timeout))
            }
        }
    }

    /// Where a charge's counter is in the version that the fleet speaks; and while it changes over, where it was before and
    /// until when.
    fn counter(
        &self,
        charge: &Charge<'_>,
        now: Timestamp,
    ) -> Result<(Counter, Option<(Counter, Timestamp)>), Fault> {
        let version = self.schema.speaks().map_err(|fault| self.refusal().unwrap_or(fault))?;
        let counter = |version| keys::counter(version, charge);
        let before = self.schema.before(charge, now).map(|(before, at)| (counter(before), at));
        Ok((counter(version), before))
    }

    /// Why nothing can be decided, if only an operator can help: a server refuses us, none can be found, or the fleet
    /// cannot be joined.
    fn refusal(&self) -> Option<Fault> {
        let servers = self.shards.servers();
        let lost = || self.shards.trouble().filter(|(_, is_known)| !is_known).map(|(fault, _)| fault);
        let refused = servers.iter().find_map(|server| server.trouble()).or_else(lost);
        let seedless = || {
            let waits = self.schema.is_known() && self.schema.waits_for_seed();
            waits.then(|| self.troubles.damaged_key(Some(fleet::SEED)))?.map(Fault::Misconfigured)
        };
        refused.map(|fault| Fault::clone(&fault)).or_else(|| self.schema.trouble()).or_else(seedless)
    }

    /// A command that no request waits for.
    async fn admin(&self, shard: ShardId, command: Cmd) -> Result<Value, Fault> {
        self.shards.call(shard, command, Instant::now() + self.admin_timeout).await
    }

    /// Forgets the counters of the charges, and the client's record. What one server cannot forget keeps no other from it.
    async fn reset(&self, charges: &Charges<'_>) -> Result<usize, Fault> {
        let counters = charges.charges.iter().map(|charge| (charge.subject, lease::key(charge)));
        let client = charges.penalty.as_ref().map(|penalty| (penalty.subject, penalty.subject.0));
        let counters: Vec<(Subject, u128)> = counters.chain(client).collect();
        // Before: a node that was cut off must not look between, and then bring what it counted.
        let listed = self.list_resets(&counters).await;
        let (mut forgotten, mut failed) = (0, None);
        for charge in &charges.charges {
            match self.reset_counter(charge).await {
                Ok(found) => forgotten += usize::from(found),
                Err(fault) => failed = failed.or(Some(fault)),
            }
        }
        if let Some(penalty) = &charges.penalty
            && let Err(fault) = self.forget_record(penalty.subject, &penalty.client.to_string()).await
        {
            failed = failed.or(Some(fault));
        }
        self.forget_everywhere(&listed).await;
        failed.map_or(Ok(forgotten), Err)
    }

    /// Forgets one counter, wherever it may be. Whether there was one.
    pub(super) async fn reset_counter(&self, charge: &Charge<'_>) -> Result<bool, Fault> {
        let (counter, before) = self.counter(charge, Timestamp::from(SystemTime::now()))?;
        let mut found = false;
        for counter in std::iter::once(counter).chain(before.map(|(before, _)| before)) {
            let answer = self.admin(self.shard(charge.subject), delete(&counter, charge.subject)).await?;
            found |= matches!(answer, Value::Int(count) if count > 0);
        }
        Ok(found)
    }
}

/// The command that forgets a counter.
fn delete(counter: &Counter, subject: Subject) -> Cmd {
    if counter.shared {
        let mut delete = redis::cmd("HDEL");
        delete.arg(&counter.key).arg(keys::field(subject).as_slice());
        return delete;
    }
    let mut delete = redis::cmd("DEL");
    delete.arg(&counter.key);
    delete
}

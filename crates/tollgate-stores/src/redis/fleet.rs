//! What the nodes of a fleet tell each other through the store: that they are there, the seed of their hashes, numbers
//! set for single users, and that something was reset.
//!
//! Messages are hints: they are lost with a connection. What they hint at is found without them too. A version number
//! is read every second, and so are the lists of resets; leases end by themselves after two seconds, and refusals are
//! forgotten after one.

pub(crate) mod idempotency;
pub(crate) mod membership;
pub(crate) mod penalty_records;
pub(crate) mod pubsub;
pub(crate) mod replica;
pub(crate) mod resets;
pub(crate) mod schema;
mod version;

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use redis::{FromRedisValue, Value};
use tokio::sync::{Notify, broadcast, watch};
use tokio::time::{sleep, timeout};
use tollgate::counters::StoreError;
use tollgate::{Seed, Timestamp};

use crate::redis::connection::error::Fault;
use crate::redis::fleet::membership::{MembershipGrace, nodes_name};
use crate::redis::fleet::pubsub::listen;
use crate::redis::fleet::replica::keep_copies;
use crate::redis::fleet::resets::follow_resets;
use crate::redis::lease::cooldowns::KEPT_OUT;
use crate::redis::random::{bytes, jitter};
use crate::redis::script::keys;
use crate::redis::server_info::follow_facts;
use crate::redis::topology::ShardId;
use crate::redis::{RedisCounters, Store};

const BEAT_EVERY: Duration = Duration::from_secs(1);
/// Until the first is answered nothing can be decided.
const FIRST_BEAT_EVERY: Duration = Duration::from_millis(20);
/// How long a seed that was damaged, and is gone, is left to those who know it: they tell it with every beat.
const GIVE_WAY: Duration = Duration::from_secs(3);
/// How much is told in one call to a server that lost it.
const TOLD_AT_ONCE: usize = 500;
/// Resets that whoever listens may be behind. Older ones are lost to it, as messages may be.
const RESETS_HELD: usize = 256;
/// The seed of the hashes by which clients are known.
pub(crate) const SEED: &str = "seed";
/// The channel of hints.
pub(crate) const CHANNEL: &str = "changes";
/// The hint that something has changed which is not kept here.
const ELSEWHERE: &str = "elsewhere";
/// How long giving back all leases may take before the process ends.
const CLOSE_WITHIN: Duration = Duration::from_secs(5);
/// How often the leases that ended are looked through.
const LEASES_EVERY: Duration = Duration::from_millis(250);

/// This node among the others.
pub(crate) struct Fleet {
    /// Chosen by chance at start.
    pub(crate) id: String,
    version: watch::Sender<u64>,
    /// Told when the version should be read at once.
    hinted: Notify,
    /// The seed that was agreed on. A server that lost everything is told again, before a newcomer tells it another.
    pub(crate) seed: ArcSwapOption<Seed>,
    /// Grows when another node says that the configuration, wherever it is kept, has changed.
    announced: watch::Sender<u64>,
    /// Counters that were reset on any node.
    resets: broadcast::Sender<Arc<[u128]>>,
}

impl Fleet {
    pub(crate) fn new() -> Self {
        let id = format!("{:016x}", u64::from_be_bytes(bytes()));
        Fleet {
            id,
            version: watch::Sender::new(0),
            hinted: Notify::new(),
            seed: ArcSwapOption::empty(),
            announced: watch::Sender::new(0),
            resets: broadcast::Sender::new(RESETS_HELD),
        }
    }
}

impl RedisCounters {
    /// The seed of the fleet: the first node to propose one sets it.
    ///
    /// # Errors
    /// When the store cannot be reached.
    pub async fn fleet_seed(&self, own: Seed) -> Result<Seed, StoreError> {
        self.0.fleet_seed(own).await.map_err(|fault| fault.into_store_error(self.0.admin_timeout))
    }

    /// Has decisions wait, or no longer wait, for the seed: as long as subjects are hashed by another key than the rest
    /// of the fleet uses, counting them there would be counting apart. They are told that the store is unreachable.
    pub fn set_awaiting_seed(&self, waiting: bool) {
        self.0.schema.set_awaiting_seed(waiting);
    }

    /// Whether it is known what the fleet speaks and by which seed it hashes: before, nothing is decided here.
    pub fn has_joined(&self) -> bool {
        self.0.schema.speaks().is_ok()
    }

    /// The version of what [`RedisCounters::shared_config`] returns: whoever watches it hears of changes.
    pub fn config_version(&self) -> watch::Receiver<u64> {
        self.0.fleet.version.subscribe()
    }

    /// Counters that are reset on any node from now on, each by its subject and its id, combined by exclusive or.
    pub fn resets(&self) -> broadcast::Receiver<Arc<[u128]>> {
        self.0.fleet.resets.subscribe()
    }

    /// Tells the other nodes that something has changed which they do not find here. It is a hint: it may be lost.
    pub async fn notify_change(&self) {
        self.0.hint(ELSEWHERE).await;
    }

    /// What [`RedisCounters::notify_change`] is heard by, on every node: whoever watches it is woken.
    pub fn change_notifications(&self) -> watch::Receiver<u64> {
        self.0.fleet.announced.subscribe()
    }

    /// What nodes have set for all of them, by name. None if the servers forgot everything since this version was seen:
    /// then what is read says nothing of what was set.
    ///
    /// # Errors
    /// When the store cannot be reached.
    pub async fn shared_config(&self, seen: u64) -> Result<Option<Vec<(String, String)>>, StoreError> {
        self.0.shared_config_since(seen).await.map_err(|fault| fault.into_store_error(self.0.admin_timeout))
    }

    /// Sets, or removes, something for all nodes.
    ///
    /// # Errors
    /// When the store cannot be reached; then it is not known whether it is set.
    pub async fn set_shared_config(&self, name: &str, value: Option<&str>) -> Result<(), StoreError> {
        self.0
            .set_shared_config(name, value)
            .await
            .map_err(|fault| fault.into_store_error(self.0.admin_timeout))
    }

    /// Sets for all nodes what is not set any more, or is set to something that ours `is_newer` than, given ours and theirs.
    /// How much that was.
    ///
    /// # Errors
    /// When the store cannot be reached; then some of it may be set.
    pub async fn restore_config(
        &self,
        config: &[(String, String)],
        is_newer: impl Fn(&str, &str) -> bool,
    ) -> Result<usize, StoreError> {
        let told = self.0.restore_config(config, is_newer).await;
        told.map_err(|fault| fault.into_store_error(self.0.admin_timeout))
    }

    /// Gives back what is leased and leaves the fleet. Called before the process ends.
    pub async fn close(&self) {
        self.0.background.settled().await;
        // What is not given back by then is lost until its window ends, as that of a node that dies.
        let _ = timeout(CLOSE_WITHIN, self.0.settle(self.0.leases.all())).await;
        let mut leave = redis::cmd("ZREM");
        leave.arg(nodes_name(self.0.schema.own())).arg(&self.0.fleet.id);
        let _ = self.0.admin(self.0.home(), leave).await;
    }
}

impl Store {
    /// Where the fleet's own names are.
    pub(crate) fn home(&self) -> ShardId {
        self.shards.shard_of_tag(keys::FLEET.as_bytes())
    }

    /// Sets the seed unless there is one.
    async fn propose_seed(&self, own: Seed) -> Result<(), Fault> {
        let mut propose = redis::cmd("SET");
        propose.arg(keys::shared(SEED)).arg(own.0.as_slice()).arg("NX");
        self.admin(self.home(), propose).await.map(|_| ())
    }

    async fn fleet_seed(&self, own: Seed) -> Result<Seed, Fault> {
        let mut seed = self.read_seed().await;
        if seed == Ok(None) {
            let was_damaged = self.troubles.damaged_key(Some(SEED)).is_some();
            if was_damaged && self.fleet.seed.load().is_none() {
                sleep(GIVE_WAY).await;
            }
            self.propose_seed(own).await?;
            seed = self.read_seed().await;
        }
        let seed = seed.and_then(|seed| seed.ok_or_else(|| strange("seed")));
        self.troubles.shared(SEED, self.home(), &seed);
        self.fleet.seed.store(Some(Arc::new(seed.clone()?)));
        seed
    }

    async fn read_seed(&self) -> Result<Option<Seed>, Fault> {
        let mut get = redis::cmd("GET");
        get.arg(keys::shared(SEED));
        match self.admin(self.home(), get).await? {
            Value::Nil => Ok(None),
            Value::BulkString(seed) => {
                seed.try_into().map(|seed| Some(Seed(seed))).map_err(|_| strange("seed"))
            }
            _ => Err(strange("seed")),
        }
    }

    async fn shared_config(&self) -> Result<Vec<(String, String)>, Fault> {
        let mut get = redis::cmd("HGETALL");
        get.arg(keys::shared("config"));
        let value = self.admin(self.home(), get).await;
        let config = value.and_then(|value| Vec::from_redis_value(value).map_err(|_| strange("config")));
        self.troubles.shared("config", self.home(), &config);
        config
    }

    async fn shared_config_since(&self, seen: u64) -> Result<Option<Vec<(String, String)>>, Fault> {
        let config = self.shared_config().await?;
        Ok(self.follows(seen).await?.then_some(config))
    }

    async fn set_shared_config(&self, name: &str, value: Option<&str>) -> Result<(), Fault> {
        let config = keys::shared("config");
        let mut set = redis::cmd(if value.is_some() { "HSET" } else { "HDEL" });
        set.arg(&config).arg(name).arg(value);
        self.admin(self.home(), set).await?;
        self.next_version().await
    }

    async fn restore_config(
        &self,
        config: &[(String, String)],
        is_newer: impl Fn(&str, &str) -> bool,
    ) -> Result<usize, Fault> {
        let there: HashMap<String, String> = self.shared_config().await?.into_iter().collect();
        let is_missing =
            |(name, ours): &&(String, String)| there.get(name).is_none_or(|theirs| is_newer(ours, theirs));
        let missing: Vec<_> = config.iter().filter(is_missing).collect();
        for some in missing.chunks(TOLD_AT_ONCE) {
            let mut set = redis::cmd("HSET");
            set.arg(keys::shared("config"));
            for (name, value) in some {
                set.arg(name).arg(value);
            }
            self.admin(self.home(), set).await?;
        }
        if !missing.is_empty() {
            self.next_version().await?;
        }
        Ok(missing.len())
    }

    /// The version that this node has last seen; zero if none.
    pub(crate) fn known_version(&self) -> u64 {
        *self.fleet.version.borrow()
    }

    /// Tells the other nodes, if they listen.
    pub(crate) async fn hint(&self, message: &str) {
        let mut publish = redis::cmd("PUBLISH");
        publish.arg(keys::shared(CHANNEL)).arg(message);
        let _ = self.admin(self.home(), publish).await;
    }

    /// Forgets what is known here of counters that were reset.
    pub(crate) fn forget(&self, counters: &[u128]) {
        if let Some(refusals) = &self.refusals {
            refusals.forget(counters);
        }
        self.cooldowns.forget(counters);
        for counter in counters {
            self.leases.revoke(*counter);
        }
    }

    /// Forgets what is known here of counters that another node has reset.
    pub(crate) fn heed_reset(&self, counters: &[u128]) {
        self.forget(counters);
        // Nobody has to listen.
        let _ = self.fleet.resets.send(counters.into());
    }

    pub(crate) fn heed(&self, message: &str) {
        match message.split_once(' ') {
            Some(("reset", words)) => self.heed_resets(words),
            Some((KEPT_OUT, words)) => self.heed_cooldown(words),
            None if message == ELSEWHERE => self.fleet.announced.send_modify(|count| *count += 1),
            _ => self.fleet.hinted.notify_one(),
        }
    }

    /// What time it is on a server.
    pub(crate) async fn time_at(&self, shard: ShardId) -> Result<Timestamp, Fault> {
        let now = self.admin(shard, redis::cmd("TIME")).await?;
        let (seconds, micros): (u64, u64) =
            FromRedisValue::from_redis_value(now).map_err(|_| strange("time"))?;
        Ok(Timestamp::from_micros(seconds.saturating_mul(1_000_000).saturating_add(micros)))
    }

    /// Says that this node is there, counts the others, of which there are so many at least, and reads the version.
    async fn beat(&self, nodes_min: u32) -> Result<(), Fault> {
        let now = self.time_at(self.home()).await?;
        let seconds = now.as_micros() / 1_000_000;
        let own = self.schema.own();
        let mine = self.meet(&nodes_name(own), seconds, true).await?;
        let older = match own.checked_sub(1) {
            Some(older) if older >= keys::SCHEMA => self.meet(&nodes_name(older), seconds, false).await?,
            _ => 0,
        };
        self.leases.set_nodes(mine.saturating_add(older).max(nodes_min));
        self.agree_on_schema(older, now).await?;
        let version = self.settled_version().await?;
        if let Some(seed) = self.fleet.seed.load_full() {
            self.propose_seed(*seed).await?;
        }
        // None only if it was just lost, which the next beat will find.
        if let Some(version) = version {
            self.fleet.version.send_if_modified(|known| std::mem::replace(known, version) != version);
        }
        Ok(())
    }
}

/// Everything that runs beside decisions, for as long as the store is used.
pub(crate) fn tend(store: &Arc<Store>) {
    let spawn = |store: Weak<Store>| {
        tokio::spawn(beats(Weak::clone(&store)));
        tokio::spawn(listen(Weak::clone(&store)));
        tokio::spawn(keep_copies(Weak::clone(&store)));
        tokio::spawn(follow_resets(Weak::clone(&store)));
        tokio::spawn(follow_facts(Weak::clone(&store)));
        tokio::spawn(end_leases(store));
    };
    spawn(Arc::downgrade(store));
}

async fn beats(store: Weak<Store>) {
    let mut grace = MembershipGrace::new();
    loop {
        let Some(strong) = store.upgrade() else { return };
        let outcome = strong.beat(grace.fewest(strong.leases.nodes())).await;
        grace.tried(&outcome);
        strong.note_beat(&outcome);
        if outcome.as_ref().is_err_and(Fault::counts) && !strong.schema.is_known() {
            strong.go_by_a_copy().await;
        }
        let hinted = strong.fleet.hinted.notified();
        let pause = if strong.schema.is_known() {
            BEAT_EVERY.saturating_sub(jitter(BEAT_EVERY / 10))
        } else {
            FIRST_BEAT_EVERY
        };
        let _ = timeout(pause, hinted).await;
    }
}

async fn end_leases(store: Weak<Store>) {
    loop {
        sleep(LEASES_EVERY).await;
        let Some(store) = store.upgrade() else { return };
        if let Some(changes) = store.shards.take_changes() {
            let moved = store.leases.sort_out(|subject| changes.action(store.shard(subject)));
            store.settle(moved).await;
        }
        store.settle(store.leases.ended(Instant::now())).await;
    }
}

pub(crate) fn strange(what: &str) -> Fault {
    Fault::Misconfigured(format!("the shared {what} is not what it should be"))
}

//! What servers say about themselves: whether they throw counters away, and how full they are.
//!
//! They are asked all at once, and beside everything else: one that says nothing keeps waiting neither the others nor the
//! node, which has to say every second that it is there.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use hashbrown::HashSet;
use parking_lot::Mutex;
use redis::{Cmd, Value};
use tokio::time::sleep;
use tracing::warn;

use crate::redis::connection::server::Server;
use crate::redis::{ADMIN_TIMEOUT, RedisCounters, Store};

/// One server's own figures.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerInfo {
    /// Its address.
    pub server: String,
    /// What it does when it is full; anything but `noeviction` throws counters away.
    pub maxmemory_policy: String,
    /// Bytes it may use; no bound if zero.
    pub maxmemory: u64,
    /// Bytes it uses.
    pub used_memory: u64,
    /// Keys it has thrown away since it started: each is a hash full of lost counters.
    pub evicted_keys: u64,
}

/// What was read last.
#[derive(Default)]
pub(crate) struct Known(Mutex<Vec<ServerInfo>>);

/// What was said already, so that it is said once.
#[derive(Default)]
struct Facts {
    warned: HashSet<String>,
}

/// How often servers are asked about themselves.
const ASK_EVERY: Duration = Duration::from_secs(5);
/// How often it is looked at the start whether there are any: their warnings belong to it.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Used above this share, a server is nearly full.
const NEARLY_FULL_PERCENT: u64 = 70;

impl RedisCounters {
    /// What each server said about itself a few seconds ago.
    pub fn server_info(&self) -> Vec<ServerInfo> {
        self.0.facts.0.lock().clone()
    }
}

impl Store {
    /// Asks every server about itself, and warns of what an operator should know. It is asked past the breaker, and what
    /// it said last stands until it says something else: a server that is full is left alone for just that.
    async fn read_facts(&self, said: &mut Facts) {
        let mut info = redis::cmd("INFO");
        info.arg("everything");
        let servers = self.shards.servers();
        let told = join_all(servers.iter().map(|server| told_by(server, &info))).await;
        let mut known = self.facts.0.lock();
        let before = |server: &Server| known.iter().find(|facts| facts.server == server.name()).cloned();
        let facts = servers.iter().zip(told).filter_map(|(server, told)| told.or_else(|| before(server)));
        let facts: Vec<ServerInfo> = facts.collect();
        for facts in &facts {
            said.warn(facts);
        }
        *known = facts;
    }
}

/// What a server says about itself now.
async fn told_by(server: &Server, info: &Cmd) -> Option<ServerInfo> {
    let text = match server.ask_aside(info, ADMIN_TIMEOUT).await {
        Ok(Value::BulkString(bytes)) => String::from_utf8_lossy(&bytes).into_owned(),
        Ok(Value::VerbatimString { text, .. }) => text,
        _ => return None,
    };
    Some(ServerInfo::read(server.name(), &text))
}

/// Asks every few seconds, for as long as the store is used.
pub(crate) async fn follow_facts(store: Weak<Store>) {
    let mut said = Facts::default();
    loop {
        let Some(strong) = store.upgrade() else { return };
        let known = strong.schema.is_known();
        if known {
            strong.read_facts(&mut said).await;
        }
        drop(strong);
        sleep(if known { ASK_EVERY } else { LOOK_EVERY }).await;
    }
}

impl ServerInfo {
    fn read(server: &str, text: &str) -> Self {
        let field = |name: &str| {
            text.lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
                .unwrap_or_default()
                .trim()
        };
        let number = |name: &str| field(name).parse().unwrap_or(0);
        ServerInfo {
            server: server.to_owned(),
            maxmemory_policy: field("maxmemory_policy").to_owned(),
            maxmemory: number("maxmemory"),
            used_memory: number("used_memory"),
            evicted_keys: number("evicted_keys"),
        }
    }
}

impl Facts {
    fn warn(&mut self, facts: &ServerInfo) {
        let ServerInfo { server, maxmemory_policy: policy, maxmemory, used_memory, evicted_keys } = facts;
        if *maxmemory > 0 && policy != "noeviction" && self.first(server, "policy") {
            warn!(%server, policy, "this server throws counters away when it is full, and clients get their quota back: \
                   set maxmemory-policy to noeviction");
        }
        if *evicted_keys > 0 && self.first(server, "evicted") {
            warn!(%server, evicted_keys, "this server has thrown keys away: counters are lost");
        }
        let full =
            *maxmemory > 0 && used_memory.saturating_mul(100) > maxmemory.saturating_mul(NEARLY_FULL_PERCENT);
        if full && self.first(server, "full") {
            warn!(%server, used_memory, maxmemory, "this server is nearly full");
        }
    }

    fn first(&mut self, server: &str, what: &str) -> bool {
        self.warned.insert(format!("{server} {what}"))
    }
}

/// Shared by those who read and those who ask.
pub(crate) fn known() -> Arc<Known> {
    Arc::default()
}

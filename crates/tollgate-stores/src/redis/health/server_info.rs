//! Polls `INFO`: eviction policy and memory of the servers.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use hashbrown::{HashMap, HashSet};
use parking_lot::Mutex;
use redis::{Cmd, FromRedisValue, InfoDict};
use tokio::time::sleep;
use tracing::{info, warn};

use crate::redis::connection::server::Server;
use crate::redis::decide::join_state::JoinState;
use crate::redis::topology::{ADMIN_TIMEOUT_MIN, ShardMap};

/// Figures of one server, from `INFO`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerInfo {
    /// The address.
    pub server: String,
    /// The eviction policy; any other than `noeviction` loses counters when memory is full.
    pub maxmemory_policy: String,
    /// Memory limit in bytes; zero for none.
    pub maxmemory: u64,
    /// Memory used in bytes.
    pub used_memory: u64,
    /// Keys evicted since the server started. Each is a hash of many counters.
    pub evicted_keys: u64,
}

const POLL_INTERVAL: Duration = Duration::from_secs(5);
/// Before the fleet is joined.
const FIRST_POLL_INTERVAL: Duration = Duration::from_millis(20);
const NEARLY_FULL_PERCENT: u64 = 70;
/// Below this a server that was nearly full is logged as such no more, so that memory around the limit is logged once.
const FREE_AGAIN_PERCENT: u64 = 60;

/// Polls the servers and keeps their last figures.
pub(crate) struct ServerInfoPoller {
    shards: Arc<ShardMap>,
    join_state: Arc<JoinState>,
    last: Mutex<Vec<ServerInfo>>,
}

impl ServerInfoPoller {
    pub(crate) fn new(shards: Arc<ShardMap>, join_state: Arc<JoinState>) -> Self {
        ServerInfoPoller { shards, join_state, last: Mutex::default() }
    }

    pub(crate) fn last(&self) -> Vec<ServerInfo> {
        self.last.lock().clone()
    }

    /// Polls until stopped.
    pub(crate) async fn run(self: Arc<Self>) {
        let mut warnings = Warnings::default();
        loop {
            let has_joined = self.join_state.has_joined();
            if has_joined {
                self.poll(&mut warnings).await;
            }
            sleep(if has_joined { POLL_INTERVAL } else { FIRST_POLL_INTERVAL }).await;
        }
    }

    /// Polls past the circuit breaker, which is open on a full server. Keeps the last figures of one that does not reply.
    async fn poll(&self, warnings: &mut Warnings) {
        let mut command = redis::cmd("INFO");
        command.arg("everything");
        let servers = self.shards.servers();
        let replies = join_all(servers.iter().map(|server| fetch(server, &command))).await;
        let mut last = self.last.lock();
        let before = |server: &Server| last.iter().find(|info| info.server == server.name()).cloned();
        let infos =
            servers.iter().zip(replies).filter_map(|(server, reply)| reply.or_else(|| before(server)));
        let infos: Vec<ServerInfo> = infos.collect();
        for info in &infos {
            warnings.check(info);
        }
        *last = infos;
    }
}

async fn fetch(server: &Server, command: &Cmd) -> Option<ServerInfo> {
    let reply = server.query(command, ADMIN_TIMEOUT_MIN).await.ok()?;
    let info = InfoDict::from_redis_value(reply).ok()?;
    Some(ServerInfo {
        server: server.name().to_owned(),
        maxmemory_policy: info.get("maxmemory_policy").unwrap_or_default(),
        maxmemory: info.get("maxmemory").unwrap_or(0),
        used_memory: info.get("used_memory").unwrap_or(0),
        evicted_keys: info.get("evicted_keys").unwrap_or(0),
    })
}

/// Warnings already logged, each once per server.
#[derive(Default)]
struct Warnings {
    logged: HashSet<String>,
    memory: HashMap<String, MemoryLevel>,
}

/// How full the memory of a server is.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum MemoryLevel {
    #[default]
    Free,
    NearlyFull,
    /// At its limit or beyond it: new counters are rejected or evict others.
    Full,
}

impl MemoryLevel {
    /// The level at these figures, given the level before.
    fn of(info: &ServerInfo, before: Self) -> Self {
        let at_least = |percent| {
            info.maxmemory > 0
                && u128::from(info.used_memory) * 100 >= u128::from(info.maxmemory) * u128::from(percent)
        };
        match before {
            _ if at_least(100) => MemoryLevel::Full,
            MemoryLevel::Free if at_least(NEARLY_FULL_PERCENT) => MemoryLevel::NearlyFull,
            MemoryLevel::NearlyFull | MemoryLevel::Full if at_least(FREE_AGAIN_PERCENT) => {
                MemoryLevel::NearlyFull
            }
            _ => MemoryLevel::Free,
        }
    }
}

impl Warnings {
    fn check(&mut self, info: &ServerInfo) {
        let ServerInfo { server, maxmemory_policy: policy, maxmemory, evicted_keys, .. } = info;
        if *maxmemory > 0 && policy != "noeviction" && self.is_first(server, "policy") {
            warn!(%server, policy, "redis: server evicts counters when memory is full, which resets quotas; set \
                   maxmemory-policy to noeviction");
        }
        if *evicted_keys > 0 && self.is_first(server, "evicted") {
            warn!(%server, evicted_keys, "redis: server has evicted keys; counters are lost");
        }
        self.check_memory(info);
    }

    /// Logs each change of the level once.
    fn check_memory(&mut self, info: &ServerInfo) {
        let ServerInfo { server, maxmemory, used_memory, .. } = info;
        let before = self.memory.get(server).copied().unwrap_or_default();
        let level = MemoryLevel::of(info, before);
        if level == before {
            return;
        }
        self.memory.insert(server.clone(), level);
        match level {
            MemoryLevel::Full => {
                warn!(%server, used_memory, maxmemory, "redis: server memory is full; new counters are rejected or evict others");
            }
            MemoryLevel::NearlyFull if before == MemoryLevel::Free => {
                warn!(%server, used_memory, maxmemory, "redis: server memory is nearly full");
            }
            MemoryLevel::NearlyFull => {
                info!(%server, used_memory, maxmemory, "redis: server memory is no longer full");
            }
            MemoryLevel::Free => {
                info!(%server, used_memory, maxmemory, "redis: server has free memory again");
            }
        }
    }

    fn is_first(&mut self, server: &str, what: &str) -> bool {
        self.logged.insert(format!("{server} {what}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_beyond_the_limit_is_full() {
        use MemoryLevel::{Free, Full, NearlyFull};
        let level = |used_memory, before| {
            MemoryLevel::of(&ServerInfo { maxmemory: 100, used_memory, ..ServerInfo::default() }, before)
        };
        assert_eq!(
            [69, 70, 99, 100, 145].map(|used| level(used, Free)),
            [Free, NearlyFull, NearlyFull, Full, Full]
        );
        assert_eq!([59, 60, 99, 100].map(|used| level(used, Full)), [Free, NearlyFull, NearlyFull, Full]);
        let unlimited = ServerInfo { used_memory: 145, ..ServerInfo::default() };
        assert_eq!(MemoryLevel::of(&unlimited, Full), Free);
    }
}

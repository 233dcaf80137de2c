//! The counters of a node: in memory, or shared on Redis.

use std::num::NonZeroU32;

use tollgate::counters::{
    Charges, CounterAdmin, CounterStore, PenalizedClient, Refund, RefundOutcomes, StoreError, Verdicts,
};
use tollgate::{MemoryCounters, Timestamp};

use crate::redis::{RedisCounters, ServerStats};

/// The counters of a node.
pub enum Counters {
    /// In the memory of this process.
    Memory(MemoryCounters),
    /// On Redis, shared with other nodes.
    Redis(RedisCounters),
}

/// The state of the shared counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreState {
    /// All servers are available.
    Up,
    /// Decisions succeed, but something needs attention.
    Impaired(String),
    /// Some servers are unreachable: the fallback counts this node's share.
    Unreachable(String),
    /// The servers reject this node: all checks fail until an operator acts.
    Rejected(String),
}

impl StoreState {
    /// Whether decisions use the fallback, or fail.
    pub fn is_outage(&self) -> bool {
        matches!(self, StoreState::Unreachable(_) | StoreState::Rejected(_))
    }

    /// What is wrong and what follows from it.
    pub fn problem(&self) -> Option<String> {
        match self {
            StoreState::Up => None,
            StoreState::Impaired(reason) => Some(format!("{reason}; other checks are not affected")),
            StoreState::Unreachable(reason) => {
                Some(format!("{reason}; this node counts its share of each limit until the store recovers"))
            }
            StoreState::Rejected(reason) => Some(format!("{reason}; all checks fail until this is fixed")),
        }
    }
}

impl Counters {
    /// The counters in memory, if the node uses them.
    pub fn memory(&self) -> Option<&MemoryCounters> {
        match self {
            Counters::Memory(memory) => Some(memory),
            Counters::Redis(_) => None,
        }
    }

    /// The counters on Redis, if the node uses them.
    pub fn redis(&self) -> Option<&RedisCounters> {
        match self {
            Counters::Memory(_) => None,
            Counters::Redis(redis) => Some(redis),
        }
    }

    /// The state of the store. Memory is always available.
    pub fn state(&self) -> StoreState {
        let Counters::Redis(redis) = self else { return StoreState::Up };
        if let Some(reason) = redis.misconfiguration() {
            return StoreState::Rejected(reason);
        }
        let servers = redis.servers();
        let is_down = |server: &&ServerStats| !server.connected || server.breaker_open;
        let outages: Vec<String> = servers.iter().filter(is_down).map(outage).collect();
        if servers.is_empty() {
            return StoreState::Unreachable(redis.no_servers_reason().to_owned());
        }
        if !outages.is_empty() {
            return StoreState::Unreachable(outages.join(", "));
        }
        if !redis.fleet().has_joined() {
            return StoreState::Unreachable("the fleet is not joined yet".to_owned());
        }
        if let Some(reason) = redis.failure() {
            return StoreState::Unreachable(format!("decisions fail ({reason})"));
        }
        redis.warning().map_or(StoreState::Up, StoreState::Impaired)
    }
}

/// Why a server is not used.
fn outage(server: &ServerStats) -> String {
    let reason = server.error.as_deref().unwrap_or("no reply");
    let what = if server.connected { "cannot serve" } else { "is unreachable" };
    format!("{} {what} ({reason})", server.server)
}

/// The same call on either store. Calls to Redis are boxed: their futures would enlarge every check, also with counters in
/// memory.
macro_rules! on_either {
    ($counters:expr, $store:ident => $call:expr) => {
        match $counters {
            Counters::Memory($store) => $call.await,
            Counters::Redis($store) => Box::pin($call).await,
        }
    };
}

impl CounterStore for Counters {
    async fn charge_all(&self, charges: &Charges<'_>, now: Timestamp) -> Result<Verdicts, StoreError> {
        match self {
            Counters::Memory(memory) => Ok(memory.charge_all_now(charges, now)),
            Counters::Redis(redis) => Box::pin(redis.charge_all(charges, now)).await,
        }
    }

    async fn refund(&self, refunds: &[Refund<'_>], now: Timestamp) -> RefundOutcomes {
        on_either!(self, store => store.refund(refunds, now))
    }

    fn nodes(&self) -> NonZeroU32 {
        self.redis().map_or(NonZeroU32::MIN, CounterStore::nodes)
    }

    fn is_reachable(&self, charges: &Charges<'_>) -> bool {
        self.redis().is_none_or(|redis| redis.is_reachable(charges))
    }

    async fn reconcile(&self, held: &mut Charges<'_>, now: Timestamp) -> Result<(), StoreError> {
        on_either!(self, store => store.reconcile(held, now))
    }

    async fn reconcile_and_charge(
        &self,
        held: &mut Charges<'_>,
        charges: &Charges<'_>,
        now: Timestamp,
    ) -> Result<Verdicts, StoreError> {
        on_either!(self, store => store.reconcile_and_charge(held, charges, now))
    }
}

impl CounterAdmin for Counters {
    async fn verify_reset(&self, charges: &Charges<'_>) -> Result<(), StoreError> {
        on_either!(self, store => store.verify_reset(charges))
    }

    async fn reset(&self, charges: &Charges<'_>) -> Result<usize, StoreError> {
        on_either!(self, store => store.reset(charges))
    }

    async fn pardon(&self, client: &str) -> Result<bool, StoreError> {
        on_either!(self, store => store.pardon(client))
    }

    async fn penalized_clients(
        &self,
        count_max: usize,
        now: Timestamp,
    ) -> Result<Vec<PenalizedClient>, StoreError> {
        on_either!(self, store => store.penalized_clients(count_max, now))
    }
}

#[cfg(test)]
mod tests {
    use tollgate::{Endpoint, Limiter, Request, RuleSet};

    use super::*;

    #[test]
    fn redis_variant_does_not_enlarge_a_check() {
        let rules = || RuleSet::from_toml("default_limit = 5").unwrap();
        let alone = Limiter::new(rules(), MemoryCounters::default());
        let either = Limiter::new(rules(), Counters::Memory(MemoryCounters::default()));
        let request = Request::new(Endpoint::parse("/x").unwrap());
        let now = Timestamp::from_secs(1);
        let (alone, either) =
            (size_of_val(&alone.check(&request, now)), size_of_val(&either.check(&request, now)));
        assert!(either <= alone + 64, "{alone} {either}");
    }
}

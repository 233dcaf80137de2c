//! The counters of this service: in its own memory, or on Redis with other nodes.

use std::num::NonZeroU32;

use tollgate::counters::{
    Charges, CounterAdmin, CounterStore, PenalizedClient, RetentionExtension, StoreError, Verdicts,
};
use tollgate::{Limiter, MemoryCounters, Timestamp};
use tollgate_stores::redis::{RedisCounters, ServerStats};

use crate::records::Records;

/// The limiter of this service.
pub(crate) type ServiceLimiter = Limiter<Counters, Records>;

/// Where this service counts.
pub(crate) enum Counters {
    /// In this process.
    Memory(MemoryCounters),
    /// Shared.
    Redis(RedisCounters),
}

/// How shared counters are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StoreState {
    /// They are asked.
    Reached,
    /// They are asked, and something about them needs attention.
    Hindered(String),
    /// Some of them do not answer: this node counts its share.
    Unreached(String),
    /// They refuse us, and nothing can be decided until an operator acts.
    Refused(String),
}

impl StoreState {
    /// Whether decisions are made without them, or not at all.
    pub(crate) fn is_outage(&self) -> bool {
        matches!(self, StoreState::Unreached(_) | StoreState::Refused(_))
    }

    /// What is wrong, in words.
    pub(crate) fn trouble(&self) -> Option<String> {
        match self {
            StoreState::Reached => None,
            StoreState::Hindered(reason) => Some(format!("{reason}: other decisions are made as ever")),
            StoreState::Unreached(reason) => {
                Some(format!("{reason}: until that changes this node counts its share of each limit"))
            }
            StoreState::Refused(reason) => {
                Some(format!("it refuses us ({reason}): nothing is admitted until that is mended"))
            }
        }
    }
}

impl Counters {
    /// Those of this process, if they are the ones.
    pub(crate) fn memory(&self) -> Option<&MemoryCounters> {
        match self {
            Counters::Memory(memory) => Some(memory),
            Counters::Redis(_) => None,
        }
    }

    /// Those on Redis, if they are the ones.
    pub(crate) fn redis(&self) -> Option<&RedisCounters> {
        match self {
            Counters::Memory(_) => None,
            Counters::Redis(redis) => Some(redis),
        }
    }

    /// How they are. Memory is always there.
    pub(crate) fn state(&self) -> StoreState {
        let Counters::Redis(redis) = self else { return StoreState::Reached };
        if let Some(reason) = redis.misconfiguration() {
            return StoreState::Refused(reason);
        }
        let links = redis.servers();
        let silent: Vec<String> =
            (links.iter()).filter(|link| !link.connected || link.breaker_open).map(silence).collect();
        if links.is_empty() {
            return StoreState::Unreached(redis.no_servers_reason().to_owned());
        }
        if !silent.is_empty() {
            return StoreState::Unreached(silent.join(", "));
        }
        if !redis.fleet().has_joined() {
            return StoreState::Unreached("the other nodes have not been heard of yet".to_owned());
        }
        if let Some(reason) = redis.failure() {
            return StoreState::Unreached(format!("decisions fail ({reason})"));
        }
        redis.warning().map_or(StoreState::Reached, StoreState::Hindered)
    }
}

/// Why a server is not asked.
fn silence(link: &ServerStats) -> String {
    let ServerStats { server, error, .. } = link;
    let reason = error.as_deref().unwrap_or("no reply");
    let what = if link.connected { "does not count" } else { "cannot be reached" };
    format!("{server} {what} ({reason})")
}

// Calls to Redis are boxed: what they keep while they wait would else make every check larger, in memory too.
impl CounterStore for Counters {
    async fn charge_all(&self, charges: &Charges<'_>, now: Timestamp) -> Result<Verdicts, StoreError> {
        match self {
            Counters::Memory(memory) => Ok(memory.charge_all_now(charges, now)),
            Counters::Redis(redis) => Box::pin(redis.charge_all(charges, now)).await,
        }
    }

    fn nodes(&self) -> NonZeroU32 {
        self.redis().map_or(NonZeroU32::MIN, CounterStore::nodes)
    }

    fn is_reachable(&self, charges: &Charges<'_>) -> bool {
        self.redis().is_none_or(|redis| redis.is_reachable(charges))
    }

    fn extend_retention(&self, slower: &RetentionExtension) {
        if let Counters::Memory(memory) = self {
            memory.extend_retention(slower);
        }
    }

    async fn reconcile(&self, held: &mut Charges<'_>, now: Timestamp) -> Result<(), StoreError> {
        match self {
            Counters::Memory(memory) => memory.reconcile(held, now).await,
            Counters::Redis(redis) => Box::pin(redis.reconcile(held, now)).await,
        }
    }

    async fn reconcile_and_charge(
        &self,
        held: &mut Charges<'_>,
        charges: &Charges<'_>,
        now: Timestamp,
    ) -> Result<Verdicts, StoreError> {
        match self {
            Counters::Memory(memory) => memory.reconcile_and_charge(held, charges, now).await,
            Counters::Redis(redis) => Box::pin(redis.reconcile_and_charge(held, charges, now)).await,
        }
    }
}

impl CounterAdmin for Counters {
    async fn reset(&self, charges: &Charges<'_>) -> Result<usize, StoreError> {
        match self {
            Counters::Memory(memory) => memory.reset(charges).await,
            Counters::Redis(redis) => Box::pin(redis.reset(charges)).await,
        }
    }

    async fn pardon(&self, client: &str) -> Result<bool, StoreError> {
        match self {
            Counters::Memory(memory) => memory.pardon(client).await,
            Counters::Redis(redis) => Box::pin(redis.pardon(client)).await,
        }
    }

    async fn penalized_clients(
        &self,
        count_max: usize,
        now: Timestamp,
    ) -> Result<Vec<PenalizedClient>, StoreError> {
        match self {
            Counters::Memory(memory) => memory.penalized_clients(count_max, now).await,
            Counters::Redis(redis) => Box::pin(redis.penalized_clients(count_max, now)).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use tollgate::{Endpoint, Limiter, Request, RuleSet};

    use super::*;

    #[test]
    fn a_check_keeps_no_more_while_it_waits_than_in_memory_alone() {
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

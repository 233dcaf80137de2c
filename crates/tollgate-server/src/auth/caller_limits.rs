//! Limits on callers of the service itself, where `[callers]` sets them.
//!
//! A request counts one and a batch as many as it has checks, so batching buys nothing. A caller is identified by its API key,
//! without one by its address. Operators are never refused: a limit that is too low must be one that can be corrected. Counters
//! are kept in memory, per node, and bounded: past the bound new callers share a counter. Addresses and keys have separate shares
//! of it, so a flood of addresses does not affect callers with a key.

use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;

use tollgate::algorithms::Outcome;
use tollgate::counters::memory::MemoryBounds;
use tollgate::counters::{Charge, Charges, Effect};
use tollgate::identity::{IpPrefixes, Subject, SubjectHasher, Tenant, counted_ip, nat64_to_ipv4};
use tollgate::rules::RuleLimit;
use tollgate::{Client, Id, MemoryCounters, Seed, Timestamp};

use super::scope::Scope;
use super::{AuthError, Caller};
use crate::config::settings::{CallerLimits, Settings};

/// Callers counted separately: about three megabytes.
const CALLERS_MAX: NonZeroUsize = NonZeroUsize::new(65_536).unwrap();
/// The tenant under which callers without a key share the table.
const ADDRESSES: &str = "addresses";

/// The limits of callers, and what each has used.
pub(crate) struct CallerLimiter {
    limits: Vec<RuleLimit>,
    prefixes: IpPrefixes,
    nat64: bool,
    /// Survives a reload: new limits give no caller a second allowance.
    usage: Arc<CallerUsage>,
}

struct CallerUsage {
    counters: MemoryCounters,
    seed: Seed,
}

impl CallerLimiter {
    /// The limits of `[callers]`, if it is set. Usage counted by `previous` carries over.
    pub(crate) fn new(settings: &Settings, previous: Option<&CallerLimiter>) -> Option<Self> {
        let CallerLimits(limits) = settings.callers.as_ref()?;
        let usage =
            previous.map_or_else(|| Arc::new(CallerUsage::new()), |previous| Arc::clone(&previous.usage));
        let (prefixes, nat64) = (settings.rules.ip_prefixes(), settings.rules.nat64());
        Some(CallerLimiter { limits: limits.clone(), prefixes, nat64, usage })
    }

    /// Charges a caller the whole cost, or nothing if it exceeds a limit. A cost of zero only tests whether one more unit
    /// would pass.
    ///
    /// # Errors
    /// The time to wait, or that the cost exceeds what a caller may ever send at once.
    pub(crate) fn charge(
        &self,
        caller: &Caller,
        peer: IpAddr,
        cost: u32,
        now: Timestamp,
    ) -> Result<(), AuthError> {
        // An admin key bound to a tenant is not an operator's: see `Caller::require_unbound`.
        if caller.has(Scope::Admin) && caller.tenant.is_none() {
            return Ok(());
        }
        let charges = self.charges(self.client(caller, peer), cost);
        let mut wait = None;
        for verdict in self.usage.counters.charge_all_now(&charges, now).verdicts {
            match verdict.outcome {
                Outcome::Admit { .. } => {}
                Outcome::Refuse { retry_after } => wait = wait.max(Some(retry_after)),
                Outcome::Never => {
                    return Err(AuthError::BatchTooLarge { checks: cost, most: self.capacity() });
                }
            }
        }
        wait.map_or(Ok(()), |wait| Err(AuthError::CallerLimited { wait }))
    }

    /// Drops restored counters from one shard in turn.
    pub(crate) fn sweep(&self, turn: usize, now: Timestamp) {
        self.usage.counters.sweep_shard(turn, now);
    }

    fn charges(&self, client: Client<'_>, cost: u32) -> Charges<'_> {
        let subject = self.usage.subject(client, self.prefixes);
        let (effect, leases) = (Effect::Enforce, false);
        let charges = self.limits.iter().map(|rule_limit| {
            let RuleLimit { limit, counter } = rule_limit;
            Charge { subject, counter: *counter, rule: "", limit, cost, effect, leases, refundable: false }
        });
        let tenant = self.usage.addresses().filter(|_| matches!(client, Client::Ip(_)));
        Charges { charges: charges.collect(), tenant, ..Charges::default() }
    }

    fn client<'a>(&self, caller: &'a Caller, peer: IpAddr) -> Client<'a> {
        let peer = if self.nat64 { nat64_to_ipv4(peer) } else { peer };
        Id::parse(&caller.name).map_or(Client::Ip(counted_ip(peer, self.prefixes)), Client::User)
    }

    /// The most that a caller can send at once.
    fn capacity(&self) -> u32 {
        self.limits.iter().map(|limit| limit.limit.capacity()).min().unwrap_or(u32::MAX)
    }
}

impl CallerUsage {
    fn new() -> Self {
        let bounds = MemoryBounds { keys_max: CALLERS_MAX, log_bytes_max: 0, penalties_max: 0 };
        CallerUsage { counters: MemoryCounters::new(bounds), seed: Seed::random() }
    }

    fn subject(&self, client: Client<'_>, prefixes: IpPrefixes) -> Subject {
        let mut values = SubjectHasher::new(self.seed);
        values.push_client(client, prefixes);
        values.subject()
    }

    fn addresses(&self) -> Option<Tenant<'static>> {
        Id::parse(ADDRESSES).ok().map(|id| Tenant::new(id, self.seed))
    }
}

#[cfg(test)]
mod tests;

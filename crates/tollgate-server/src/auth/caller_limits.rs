//! How much each caller of the service itself may ask, where `[callers]` says so.
//!
//! A request counts one and a batch as many as it has checks, so that a batch buys nothing. A caller is known by its key, and
//! without one by its address. Whoever administers is never refused: a limit that is set too low must be one that can be
//! mended. Counters are those of the library, in memory, of this node alone, and bounded: when there are too many callers, newcomers
//! share. That of addresses leaves room for that of keys, so inventing addresses takes nothing from callers that have a key.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;

use parking_lot::Mutex;
use tollgate::algorithms::Outcome;
use tollgate::counters::memory::MemoryBounds;
use tollgate::counters::{Charge, Charges, CounterStore, Effect};
use tollgate::identity::{Subject, SubjectHasher, Tenant, counted_ip, nat64_to_ipv4};
use tollgate::rules::{RuleLimit, retention_extension};
use tollgate::{Client, Id, MemoryCounters, Seed, Span, Timestamp};
use tracing::warn;

use crate::auth::Caller;
use crate::auth::scope::Scope;
use crate::config::settings::{CallerLimits, Settings};
use crate::http::error::ApiError;

/// CallerLimiter that are counted at most, each on its own: three megabytes.
const KEYS_MAX: NonZeroUsize = NonZeroUsize::new(65_536).unwrap();
/// What all callers without a key are together when it comes to room.
const ADDRESSES: &str = "addresses";
/// A caller is told of once in so long.
const QUIET: Span = Span::from_secs(600);
/// So many callers are told of within that time.
const TOLD_MAX: usize = 16;

/// What each caller may ask, and has asked.
pub(crate) struct CallerLimiter {
    limits: Vec<RuleLimit>,
    ipv6_prefix: u8,
    nat64: bool,
    /// Outlives the limits: other numbers give nobody a second allowance.
    asked: Arc<CallerUsage>,
}

struct CallerUsage {
    counters: MemoryCounters,
    seed: Seed,
    told: Mutex<LogThrottle>,
}

/// Of whom it was told, and when.
#[derive(Default)]
struct LogThrottle {
    callers: HashMap<Subject, Timestamp>,
    /// When it was told that there are more.
    more: Option<Timestamp>,
}

/// What there is to tell of a caller that is refused.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum LogEvent {
    Caller,
    More,
    Nothing,
}

impl CallerLimiter {
    /// What the settings say of callers, if they do; what was asked `before` still counts.
    pub(crate) fn new(settings: &Settings, before: Option<&CallerLimiter>) -> Option<Self> {
        let CallerLimits(limits) = settings.callers.as_ref()?;
        let asked = before.map_or_else(|| Arc::new(CallerUsage::new()), |before| Arc::clone(&before.asked));
        let (ipv6_prefix, nat64) = (settings.ipv6_prefix, settings.nat64);
        Some(CallerLimiter { limits: limits.clone(), ipv6_prefix, nat64, asked })
    }

    /// What was asked of limits that stood `before` these, and were higher, counts for as long as it takes by these.
    ///
    /// To be said once these are in force: what is still counted by the others meanwhile is told of too.
    pub(crate) fn take_over(&self, before: &CallerLimiter) {
        if let Some(extension) = retention_extension(&before.limits, &self.limits) {
            self.asked.counters.extend_retention(&extension);
        }
    }

    /// Counts what a caller asks: all of it or, if it is too much, nothing. A cost of zero only looks whether one more would
    /// pass.
    ///
    /// # Errors
    /// When it has to wait, and for how long; or that it can never ask so much at once.
    pub(crate) fn charge(
        &self,
        caller: &Caller,
        peer: IpAddr,
        cost: u32,
        now: Timestamp,
    ) -> Result<(), ApiError> {
        // One that is bound to a tenant is no operator, whatever its scopes: see `Caller::require_unbound`.
        if caller.has(Scope::Admin) && caller.tenant.is_none() {
            return Ok(());
        }
        let who = self.who(caller, peer);
        let subject = self.asked.subject(who, self.ipv6_prefix);
        let charges = self.charges(who, subject, cost);
        let mut wait = None;
        for verdict in self.asked.counters.charge_all_now(&charges, now).verdicts {
            match verdict.outcome {
                Outcome::Admit { .. } => {}
                Outcome::Refuse { retry_after } => wait = wait.max(Some(retry_after)),
                Outcome::Never => return Err(ApiError::more_than_a_caller_may(cost, self.most())),
            }
        }
        let Some(wait) = wait else { return Ok(()) };
        self.tell(who, subject, now);
        Err(ApiError::caller_limited(wait))
    }

    fn charges(&self, who: Client<'_>, subject: Subject, cost: u32) -> Charges<'_> {
        let (effect, leases) = (Effect::Enforce, false);
        let limits = self.limits.iter();
        Charges {
            charges: limits
                .map(|RuleLimit { limit, counter }| Charge {
                    subject,
                    counter: *counter,
                    rule: "",
                    limit,
                    cost,
                    effect,
                    leases,
                })
                .collect(),
            tenant: self.asked.addresses().filter(|_| matches!(who, Client::Ip(_))),
            ..Charges::default()
        }
    }

    /// Forgets callers that have their whole allowance again, a part of them in turn.
    pub(crate) fn sweep(&self, turn: usize, now: Timestamp) {
        self.asked.counters.sweep_shard(turn, now);
    }

    /// Who has a key has a name.
    fn who<'a>(&self, caller: &'a Caller, peer: IpAddr) -> Client<'a> {
        let peer = if self.nat64 { nat64_to_ipv4(peer) } else { peer };
        Id::parse(&caller.name).map_or(Client::Ip(counted_ip(peer, self.ipv6_prefix)), Client::User)
    }

    /// The most that a caller can ask at once.
    fn most(&self) -> u32 {
        self.limits.iter().map(|limit| limit.limit.capacity()).min().unwrap_or(u32::MAX)
    }

    /// A line when a caller begins to be refused, none for each request.
    fn tell(&self, who: Client<'_>, subject: Subject, now: Timestamp) {
        let news = self.asked.told.lock().news(subject, now);
        match news {
            LogEvent::Caller => {
                warn!(caller = %Named(who), "a caller asks more than [callers] allows and is refused");
            }
            LogEvent::More => warn!(
                "more callers ask too much than are told of one by one: see tollgate_callers_refused_total"
            ),
            LogEvent::Nothing => {}
        }
    }
}

impl CallerUsage {
    fn new() -> Self {
        let bounds = MemoryBounds { keys_max: KEYS_MAX, log_bytes_max: 0, penalties_max: 0 };
        CallerUsage { counters: MemoryCounters::new(bounds), seed: Seed::random(), told: Mutex::default() }
    }

    fn subject(&self, who: Client<'_>, ipv6_prefix: u8) -> Subject {
        let mut values = SubjectHasher::new(self.seed);
        values.push_client(who, ipv6_prefix);
        values.subject()
    }

    fn addresses(&self) -> Option<Tenant<'static>> {
        Id::parse(ADDRESSES).ok().map(|id| Tenant::new(id, self.seed))
    }
}

impl LogThrottle {
    fn news(&mut self, subject: Subject, now: Timestamp) -> LogEvent {
        let recent = |told: &Timestamp| now.since(*told) < QUIET;
        if self.callers.get(&subject).is_some_and(recent) {
            return LogEvent::Nothing;
        }
        if self.callers.len() >= TOLD_MAX {
            self.callers.retain(|_, told| recent(told));
        }
        if self.callers.len() < TOLD_MAX {
            self.callers.insert(subject, now);
            return LogEvent::Caller;
        }
        if self.more.as_ref().is_some_and(recent) {
            return LogEvent::Nothing;
        }
        self.more = Some(now);
        LogEvent::More
    }
}

/// A caller as the log and the audit trail call it.
struct Named<'a>(Client<'a>);

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Client::User(name) => f.write_str(name.as_str()),
            other => other.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests;

//! A sample of the traffic of the last minutes, on which dry runs replay a change.
//!
//! Limits count, so the sample consists of whole clients: every request of a sampled client is kept. While all requests of
//! [`WINDOW`] fit, every client is sampled. When they do not, half of the clients leave; when there is room again, they return.
//!
//! `offer` is on the request path: one hash for a client outside the sample, a copy of a few short strings for one inside, and it
//! never waits. API keys are kept only in the form in which they may be logged.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::hash::BuildHasher;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use hashbrown::DefaultHashBuilder;
use parking_lot::Mutex;
use serde::Serialize;
use tollgate::record::Record;
use tollgate::{
    Answer, ApiKey, Client, Decision, Endpoint, Id, Limit, Limiter, MemoryCounters, Method, Request, RuleSet,
    Span, Timestamp,
};
use utoipa::ToSchema;

/// Older requests are dropped.
const WINDOW: Span = Span::from_secs(300);
/// Requests kept at most.
const REQUESTS_MAX: usize = 8_192;
/// Bytes of their strings kept at most.
const BYTES_MAX: usize = 4 << 20;
/// The sample grows when it holds fewer requests than this.
const GROW_THRESHOLD: usize = REQUESTS_MAX / 4;
/// The sample grows at most this often.
const GROW_EVERY: Span = Span::from_secs(30);
const HALVINGS_MAX: u32 = 32;
const EXAMPLES_MAX: usize = 10;

/// The sample.
#[derive(Default)]
pub(crate) struct TrafficSample {
    /// Selects clients. Randomly keyed, so that clients cannot choose to be sampled.
    hasher: DefaultHashBuilder,
    /// How often the sample was halved. Written under the lock, read without it by most requests.
    halvings: AtomicU32,
    kept: Mutex<SampledRequests>,
}

#[derive(Default)]
struct SampledRequests {
    requests: VecDeque<Arc<SampledRequest>>,
    bytes: usize,
    halvings: u32,
    /// When the sample last changed its size.
    resized_at: Timestamp,
}

/// One request.
struct SampledRequest {
    at: Timestamp,
    /// The hash of the client.
    hash: u64,
    endpoint: Endpoint<'static>,
    method: Option<Method>,
    user: Option<Box<str>>,
    tenant: Option<Box<str>>,
    login: Option<Box<str>>,
    tier: Option<Box<str>>,
    /// As it is shown, `api_key:…`.
    api_key: Option<Box<str>>,
    ip: Option<IpAddr>,
    cost: u32,
    descriptors: Vec<(Box<str>, Box<str>)>,
    limit_override: Option<Limit>,
}

/// The effect that a change would have had on recent traffic.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub(crate) struct Effect {
    /// Requests replayed.
    requests: usize,
    /// Clients that sent them.
    clients: usize,
    /// Seconds since the first of them.
    window_seconds: u64,
    /// The fraction of clients in the sample; 1 is all.
    sample: f64,
    /// Requests admitted by the current rules and refused by the changed ones.
    newly_refused: usize,
    /// Requests refused by the current rules and admitted by the changed ones.
    newly_admitted: usize,
    /// Examples, most requests first.
    examples: Vec<EffectExample>,
}

/// A client and endpoint for which the outcome changes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ToSchema)]
pub(crate) struct EffectExample {
    /// The client, `user:alice`.
    client: String,
    /// The tenant of the client; absent without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant: Option<String>,
    /// The endpoint.
    endpoint: String,
    /// Outcome under the current rules: `admitted`, `refused` or `blocked`.
    before: &'static str,
    /// Outcome after the change.
    after: &'static str,
    /// The rule that decides after the change.
    rule: Option<String>,
    /// Requests affected.
    requests: usize,
}

impl TrafficSample {
    /// Keeps a request if its client is sampled and the lock is free.
    pub(crate) fn offer(&self, record: &Record<'_>) {
        let request = record.request;
        let Some(client) = request.client().filter(|_| request.cost > 0) else { return };
        let hash = self.hasher.hash_one((request.tenant, client));
        if !is_sampled(hash, self.halvings.load(Ordering::Relaxed)) {
            return;
        }
        let Some(mut kept) = self.kept.try_lock() else { return };
        kept.push(SampledRequest::new(request, hash, record.decision.now));
        self.halvings.store(kept.halvings, Ordering::Relaxed);
    }

    /// Replays the sample on two rule sets, each with empty counters.
    ///
    /// Takes milliseconds: asynchronous callers use `spawn_blocking`.
    pub(crate) fn compare(&self, current: &RuleSet, changed: &RuleSet, now: Timestamp) -> Effect {
        let (requests, halvings) = {
            let mut kept = self.kept.lock();
            kept.drop_before(now - WINDOW);
            (kept.requests.clone(), kept.halvings)
        };
        let (current, changed) = (limiter_with(current), limiter_with(changed));
        let mut clients = HashSet::new();
        let mut differing: BTreeMap<EffectExample, usize> = BTreeMap::new();
        for seen in &requests {
            clients.insert(seen.hash);
            let (before, _) = seen.replay(&current);
            let (after, rule) = seen.replay(&changed);
            if before != after {
                let (client, endpoint) = (seen.client(), seen.endpoint.as_str().to_owned());
                let tenant = seen.tenant.as_deref().map(str::to_owned);
                let example = EffectExample { client, tenant, endpoint, before, after, rule, requests: 0 };
                *differing.entry(example).or_default() += 1;
            }
        }
        let counted = differing.into_iter().map(|(example, requests)| EffectExample { requests, ..example });
        let mut examples: Vec<EffectExample> = counted.collect();
        examples.sort_by_key(|example| Reverse(example.requests));
        let count = |of: fn(&EffectExample) -> bool| -> usize {
            examples.iter().filter(|example| of(example)).map(|example| example.requests).sum()
        };
        let (newly_refused, newly_admitted) =
            (count(|example| example.before == ADMITTED), count(|example| example.after == ADMITTED));
        examples.truncate(EXAMPLES_MAX);
        let first = requests.iter().map(|seen| seen.at).min();
        Effect {
            requests: requests.len(),
            clients: clients.len(),
            window_seconds: first.map_or(0, |first| now.since(first).as_secs_ceil()),
            sample: 0.5_f64.powi(i32::try_from(halvings).unwrap_or(0)),
            newly_refused,
            newly_admitted,
            examples,
        }
    }
}

const ADMITTED: &str = "admitted";

fn limiter_with(rules: &RuleSet) -> Limiter<MemoryCounters> {
    Limiter::new(rules.clone(), MemoryCounters::default())
}

fn is_sampled(hash: u64, halvings: u32) -> bool {
    hash.trailing_zeros() >= halvings
}

impl SampledRequests {
    fn push(&mut self, seen: SampledRequest) {
        let now = seen.at;
        self.drop_before(now - WINDOW);
        if self.halvings > 0
            && self.requests.len() < GROW_THRESHOLD
            && now.since(self.resized_at) >= GROW_EVERY
        {
            self.resize(self.halvings - 1, now);
        }
        // The sample may have shrunk since `offer` checked.
        if !is_sampled(seen.hash, self.halvings) {
            return;
        }
        self.bytes += seen.bytes();
        self.requests.push_back(Arc::new(seen));
        while (self.requests.len() > REQUESTS_MAX || self.bytes > BYTES_MAX) && self.halvings < HALVINGS_MAX {
            self.resize(self.halvings + 1, now);
        }
        while self.requests.len() > REQUESTS_MAX || self.bytes > BYTES_MAX {
            self.drop_first();
        }
    }

    fn resize(&mut self, halvings: u32, now: Timestamp) {
        (self.halvings, self.resized_at) = (halvings, now);
        self.requests.retain(|seen| is_sampled(seen.hash, halvings));
        self.bytes = self.requests.iter().map(|seen| seen.bytes()).sum();
    }

    fn drop_before(&mut self, oldest: Timestamp) {
        while self.requests.front().is_some_and(|seen| seen.at < oldest) {
            self.drop_first();
        }
    }

    fn drop_first(&mut self) {
        if let Some(seen) = self.requests.pop_front() {
            self.bytes -= seen.bytes();
        }
    }
}

impl SampledRequest {
    fn new(request: &Request<'_>, hash: u64, at: Timestamp) -> Self {
        let text = |id: Option<Id<'_>>| id.map(|id| id.as_str().into());
        let pair = |(name, value): &(Id<'_>, Id<'_>)| (name.as_str().into(), value.as_str().into());
        SampledRequest {
            at,
            hash,
            endpoint: request.endpoint.clone().into_owned(),
            method: request.method,
            user: text(request.user),
            tenant: text(request.tenant),
            login: text(request.login),
            tier: text(request.tier),
            api_key: request.api_key.map(|key| Client::ApiKey(key).to_string().into()),
            ip: request.ip,
            cost: request.cost,
            descriptors: request.descriptors.iter().map(pair).collect(),
            limit_override: request.limit_override.cloned(),
        }
    }

    fn bytes(&self) -> usize {
        let texts = [&self.user, &self.tenant, &self.login, &self.tier, &self.api_key];
        let facts: usize = texts.into_iter().flatten().map(|text| text.len()).sum();
        let pairs: usize = self.descriptors.iter().map(|(name, value)| name.len() + value.len()).sum();
        self.endpoint.as_str().len() + facts + pairs
    }

    /// The outcome under a limiter, and the deciding rule.
    fn replay(&self, limiter: &Limiter<MemoryCounters>) -> (&'static str, Option<String>) {
        let pairs = self.descriptors.iter();
        let pairs: Vec<(Id<'_>, Id<'_>)> =
            pairs.filter_map(|(name, value)| Some((Id::parse(name).ok()?, Id::parse(value).ok()?))).collect();
        let request = Request {
            method: self.method,
            user: id(self.user.as_deref()),
            tenant: id(self.tenant.as_deref()),
            // The logged form of a key is as unique as the key.
            api_key: self.api_key.as_deref().and_then(key_from_logged_form),
            login: id(self.login.as_deref()),
            ip: self.ip,
            tier: id(self.tier.as_deref()),
            cost: self.cost,
            descriptors: &pairs,
            limit_override: self.limit_override.as_ref(),
            ..Request::new(self.endpoint.clone())
        };
        let decision = limiter.check_now(&request, self.at);
        (outcome(&decision), decision.rule_name().map(str::to_owned))
    }

    /// The client, as it may be shown.
    fn client(&self) -> String {
        let named = |kind: &str, id: &Option<Box<str>>| id.as_ref().map(|id| format!("{kind}:{id}"));
        (named("user", &self.user))
            .or_else(|| self.api_key.as_deref().map(str::to_owned))
            .or_else(|| named("login", &self.login))
            .or_else(|| self.ip.map(|ip| Client::Ip(ip).to_string()))
            .or_else(|| named("tenant", &self.tenant))
            .unwrap_or_default()
    }
}

/// A known key by its id, any other by its logged form.
fn key_from_logged_form(shown: &str) -> Option<ApiKey<'_>> {
    match Client::parse(shown) {
        Some(Client::ApiKey(known)) => Some(known),
        _ => ApiKey::parse(shown).ok(),
    }
}

fn id(text: Option<&str>) -> Option<Id<'_>> {
    text.and_then(|text| Id::parse(text).ok())
}

fn outcome(decision: &Decision) -> &'static str {
    match decision.answer {
        Answer::Admit { .. } => ADMITTED,
        Answer::Block => "blocked",
        Answer::Refuse { .. } | Answer::Unavailable => "refused",
    }
}

#[cfg(test)]
mod tests;

//! Records decisions: rows of the decision log, window records and rollups.
//!
//! [`Recorder::offer`] runs while a request waits. It encodes and counts in memory; the flusher (`flusher.rs`) takes the result from
//! there. For a known client it allocates nothing, and no lock is held while something is written.

use std::cell::RefCell;
use std::hash::{BuildHasher, Hasher as _};
use std::net::IpAddr;
use std::sync::OnceLock;
use std::thread::Thread;
use std::time::Duration;

use arc_swap::ArcSwap;
use hashbrown::{DefaultHashBuilder, HashSet};
use siphasher::sip128::{Hasher128, SipHasher13};
use tollgate::headers::retry_after_secs;
use tollgate::rules::SampleRate;
use tollgate::{Answer, ApiKey, Client, Decision, Id, Method, Request, RuleSet, Seed};
use tollgate_stores::sql::records::{DecisionKind, LatencyHistogram};

use super::codec::RowWriter;
use super::delta_table::{Counts, DeltaTable, Fingerprint};
use super::identifier::Identifier;
use super::routes::{OTHER, Routes};
use super::row_buffer::{RowBuffer, shard_of_thread};
use super::sampling::is_sampled;
use super::top::Top;
use crate::config::settings::ServerSettings;

pub(super) const MICROS_PER_MINUTE: u64 = 60_000_000;
const WINDOW_SHARDS: usize = 32;
/// Clients × routes per second. Requests of others are counted as dropped.
const WINDOWS_MAX: usize = 262_144;
const ROLLUP_SHARDS: usize = 4;
/// Routes × rules × tenants per shard. Others are counted under the route [`OTHER`].
const ROLLUPS_MAX: usize = 2_048;
/// Room for the routes `(other)` of each rule.
const OTHER_ROLLUPS_MAX: usize = 256;

/// One decision, with what only the caller of the limiter knows.
pub(crate) struct RecordedCheck<'a> {
    /// The request as it was counted.
    pub(crate) request: &'a Request<'a>,
    pub(crate) decision: &'a Decision,
    pub(crate) latency: Duration,
    pub(crate) request_id: Option<&'a str>,
}

/// What waits for the flusher.
pub(crate) struct Recorder {
    pub(super) log: RowBuffer,
    pub(super) windows: DeltaTable<WindowCounts>,
    pub(super) rollups: DeltaTable<RollupCounts>,
    pub(super) node: NodeNames,
    pub(crate) top: Top,
    routes: Routes,
    busy_users: ArcSwap<BusyUsers>,
    hashing: SipHasher13,
    sample_allowed: SampleRate,
    /// Whether nodes share the counters, so that there are decisions without a call to a server.
    shares_counters: bool,
    flusher: OnceLock<Thread>,
}

/// How this node is named in records.
#[derive(Clone, Debug)]
pub(crate) struct NodeNames {
    pub(crate) region: Box<str>,
    pub(crate) id: Box<str>,
}

impl NodeNames {
    pub(crate) fn new(settings: &ServerSettings) -> Self {
        NodeNames { region: settings.region.clone(), id: settings.id.clone() }
    }
}

/// Hashes of the users with a rollup of their own.
#[derive(Default)]
pub(super) struct BusyUsers {
    pub(super) hashing: DefaultHashBuilder,
    pub(super) users: HashSet<u64>,
}

/// Requests of one client on one route.
#[derive(Default)]
pub(super) struct WindowCounts {
    pub(super) allowed: u64,
    pub(super) refused: u64,
    pub(super) limit: Option<u32>,
}

/// Requests on one route, decided by one rule.
#[derive(Default)]
pub(super) struct RollupCounts {
    pub(super) allowed: u64,
    pub(super) throttled: u64,
    pub(super) blocked: u64,
    pub(super) cache_hits: u64,
    pub(super) cache_misses: u64,
    pub(super) latency: LatencyHistogram,
}

impl Counts for WindowCounts {
    fn is_empty(&self) -> bool {
        self.allowed + self.refused == 0
    }
}

impl Counts for RollupCounts {
    fn is_empty(&self) -> bool {
        self.allowed + self.throttled + self.blocked == 0
    }
}

impl BusyUsers {
    /// The hash of a user in its tenant.
    pub(super) fn hash(&self, tenant: Option<&str>, user: &str) -> u64 {
        self.hashing.hash_one((tenant, user))
    }
}

impl Recorder {
    pub(crate) fn new(
        rules: &RuleSet,
        node: NodeNames,
        sample_allowed: SampleRate,
        shares_counters: bool,
    ) -> Self {
        let recorder = Recorder {
            log: RowBuffer::default(),
            windows: DeltaTable::new(WINDOW_SHARDS, WINDOWS_MAX / WINDOW_SHARDS),
            rollups: DeltaTable::new(ROLLUP_SHARDS, ROLLUPS_MAX),
            node,
            top: Top::default(),
            routes: Routes::default(),
            busy_users: ArcSwap::default(),
            hashing: SipHasher13::new_with_key(&Seed::random().0),
            sample_allowed,
            shares_counters,
            flusher: OnceLock::new(),
        };
        recorder.apply_rules(rules);
        recorder
    }

    /// Uses the endpoint patterns of new rules.
    pub(crate) fn apply_rules(&self, rules: &RuleSet) {
        self.routes.apply_rules(rules);
    }

    /// What was not recorded because memory was full.
    pub(crate) fn dropped(&self) -> [(&'static str, u64); 3] {
        [
            ("log_rows", self.log.dropped()),
            ("window_requests", self.windows.dropped()),
            ("rollup_requests", self.rollups.dropped()),
        ]
    }

    /// The thread to wake when much is waiting.
    pub(super) fn set_flusher(&self, thread: Thread) {
        let _ = self.flusher.set(thread);
    }

    pub(super) fn busy_users(&self) -> arc_swap::Guard<std::sync::Arc<BusyUsers>> {
        self.busy_users.load()
    }

    /// Users that get rollups of their own from now on.
    pub(super) fn set_busy_users(&self, busy: BusyUsers) {
        self.busy_users.store(busy.into());
    }

    /// Records a decision. Requests of cost 0 only read counters and are not recorded.
    pub(crate) fn offer(&self, check: &RecordedCheck<'_>) {
        let RecordedCheck { request, decision, .. } = check;
        let prefixes = decision.rules().ip_prefixes();
        let Some(identifier) = Identifier::of(request, prefixes).filter(|_| request.cost > 0) else { return };
        let kind = kind_of(decision);
        let minute = decision.now.as_micros() / MICROS_PER_MINUTE;
        self.routes.with_route(&request.endpoint, minute, |route| {
            self.count_window(check, identifier, kind, route, minute);
            self.count_rollup(check, kind, route, minute);
        });
        if kind != DecisionKind::Allowed {
            self.top.note_refusal(identifier, request, decision);
        }
        if self.is_logged(decision, kind) {
            let is_filling_up = self.log.push(|out| self.encode(check, identifier, kind, out));
            if let Some(flusher) = self.flusher.get().filter(|_| is_filling_up) {
                flusher.unpark();
            }
        }
    }

    fn is_logged(&self, decision: &Decision, kind: DecisionKind) -> bool {
        kind != DecisionKind::Allowed || {
            let of_rule = decision.rule().and_then(|rule| rule.sample_allowed);
            is_sampled(of_rule.unwrap_or(self.sample_allowed))
        }
    }

    fn count_window(
        &self,
        check: &RecordedCheck<'_>,
        identifier: Identifier<'_>,
        kind: DecisionKind,
        route: &str,
        minute: u64,
    ) {
        let tenant = check.request.tenant.map(Id::as_str);
        let key = self.fingerprint(|key| {
            push_client(key, identifier);
            push_part(key, tenant);
            push_part(key, Some(route));
        });
        let fields = |out: &mut Vec<u8>| {
            RowWriter::fields(out).display(identifier).maybe_text(tenant).text(route);
        };
        let limit = check.decision.binding().map(|report| report.requests);
        let add = |counts: &mut WindowCounts| {
            let is_allowed = kind == DecisionKind::Allowed;
            counts.allowed += u64::from(is_allowed);
            counts.refused += u64::from(!is_allowed);
            counts.limit = limit.or(counts.limit);
        };
        let shard = usize::try_from(key >> 96).unwrap_or(0);
        if !self.windows.add(shard, key, minute, fields, add) {
            self.windows.count_dropped();
        }
    }

    fn count_rollup(&self, check: &RecordedCheck<'_>, kind: DecisionKind, route: &str, minute: u64) {
        let RecordedCheck { request, decision, latency, .. } = check;
        let (rule, tenant) = (decision.rule_name(), request.tenant.map(Id::as_str));
        let busy = self.busy_users.load();
        let is_busy = |user: &&str| !busy.users.is_empty() && busy.users.contains(&busy.hash(tenant, user));
        let user = request.user.map(Id::as_str).filter(is_busy);
        // Without counters nothing could have been cached.
        let counts_cache = self.shares_counters && !decision.reports.is_empty() && !decision.degraded;
        let add = |counts: &mut RollupCounts| {
            match kind {
                DecisionKind::Allowed => counts.allowed += 1,
                DecisionKind::Blocked => counts.blocked += 1,
                DecisionKind::Throttled | DecisionKind::Unavailable => counts.throttled += 1,
            }
            counts.cache_hits += u64::from(counts_cache && !decision.asked_server);
            counts.cache_misses += u64::from(counts_cache && decision.asked_server);
            counts.latency.record(micros(*latency));
        };
        let shard = shard_of_thread();
        let counted = |[route, rule, tenant, user]: [Option<&str>; 4], entries_max: usize| {
            let key = self.fingerprint(|key| {
                for part in [route, rule, tenant, user] {
                    push_part(key, part);
                }
            });
            let fields = |out: &mut Vec<u8>| {
                let mut fields = RowWriter::fields(out);
                fields.text(route.unwrap_or(OTHER)).maybe_text(rule).maybe_text(tenant).maybe_text(user);
            };
            self.rollups.add_below(shard, entries_max, key, minute, fields, add)
        };
        let is_counted = counted([Some(route), rule, tenant, user], ROLLUPS_MAX - OTHER_ROLLUPS_MAX)
            || counted([Some(OTHER), rule, None, None], ROLLUPS_MAX);
        if !is_counted {
            self.rollups.count_dropped();
        }
    }

    /// The hash of what `push` writes.
    fn fingerprint(&self, push: impl FnOnce(&mut Vec<u8>)) -> Fingerprint {
        thread_local! {
            static KEY: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
        }
        KEY.with_borrow_mut(|key| {
            key.clear();
            push(key);
            let mut hasher = self.hashing;
            hasher.write(key);
            hasher.finish128().as_u128()
        })
    }

    /// Writes a row of the decision log; `codec::decode_decision` reads it.
    fn encode(
        &self,
        check: &RecordedCheck<'_>,
        identifier: Identifier<'_>,
        kind: DecisionKind,
        out: &mut Vec<u8>,
    ) {
        let RecordedCheck { request, decision, latency, request_id } = check;
        let binding = decision.binding();
        let known_key = request.api_key.and_then(ApiKey::known_id);
        let account = known_key.and_then(|id| decision.rules().accounts().key(id.as_str()));
        let used = binding.map(|report| u64::from(report.capacity.saturating_sub(report.verdict.remaining)));
        let mut row = RowWriter::decision(out);
        row.number(decision.now.as_micros())
            .byte(kind as u8)
            .byte(u8::from(decision.degraded))
            .number(u64::from(response_status(decision)))
            .number(u64::from(request.cost))
            .number(micros(*latency))
            .maybe_number(used)
            .maybe_number(binding.map(|report| u64::from(report.requests)))
            .maybe_number(binding.map(|report| u64::from(report.remaining())))
            .maybe_number(decision.retry_after().map(retry_after_secs))
            .display(identifier)
            .maybe_text(request.tenant.map(Id::as_str))
            .maybe_text(request.user.map(Id::as_str).or_else(|| account.and_then(|key| key.user)));
        match (known_key, request.api_key) {
            (None, Some(opaque)) => row.display(OpaqueKey(opaque)),
            (known, _) => row.maybe_text(known.map(Id::as_str)),
        };
        match request.ip {
            Some(ip) => row.display(ip.to_canonical()),
            None => row.maybe_text(None),
        };
        row.text(request.endpoint.as_str())
            .maybe_text(request.method.map(Method::as_str))
            .maybe_text(decision.rule_name())
            .maybe_text(*request_id)
            .text(&self.node.region)
            .text(&self.node.id);
    }
}

/// An API key without an account: the hash that stands for it.
struct OpaqueKey<'a>(ApiKey<'a>);

impl std::fmt::Display for OpaqueKey<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown = Client::ApiKey(self.0).to_string();
        out.write_str(shown.strip_prefix("api_key:").unwrap_or(&shown))
    }
}

fn kind_of(decision: &Decision) -> DecisionKind {
    match decision.answer {
        Answer::Admit { .. } => DecisionKind::Allowed,
        Answer::Refuse { .. } => DecisionKind::Throttled,
        Answer::Block => DecisionKind::Blocked,
        Answer::Unavailable => DecisionKind::Unavailable,
    }
}

/// The status that the client of a gateway gets.
fn response_status(decision: &Decision) -> u16 {
    match decision.answer {
        Answer::Admit { .. } => 200,
        Answer::Refuse { .. } => decision.rule().map_or(429, |rule| rule.response.status),
        Answer::Block => 403,
        Answer::Unavailable => 503,
    }
}

fn micros(latency: Duration) -> u64 {
    u64::try_from(latency.as_micros()).unwrap_or(u64::MAX)
}

/// Appends a client, cheaper than its display form.
fn push_client(key: &mut Vec<u8>, identifier: Identifier<'_>) {
    match identifier.client {
        Client::User(id) => push_tagged(key, b'u', id.as_str().as_bytes()),
        Client::Login(id) => push_tagged(key, b'l', id.as_str().as_bytes()),
        Client::Tenant(id) => push_tagged(key, b't', id.as_str().as_bytes()),
        Client::Ip(IpAddr::V4(ip)) => push_tagged(key, b'4', &ip.octets()),
        Client::Ip(IpAddr::V6(ip)) => push_tagged(key, b'6', &ip.octets()),
        client @ Client::ApiKey(_) => push_tagged(key, b'k', client.to_string().as_bytes()),
    }
}

fn push_part(key: &mut Vec<u8>, part: Option<&str>) {
    push_tagged(key, u8::from(part.is_some()), part.unwrap_or_default().as_bytes());
}

/// Appends a tag, the length and the bytes, so that different lists of parts differ.
fn push_tagged(key: &mut Vec<u8>, tag: u8, bytes: &[u8]) {
    key.push(tag);
    key.extend_from_slice(&u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_le_bytes());
    key.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests;

//! Records decisions: rows of the decision log, window records and rollups.
//!
//! [`Recorder::offer`] runs while a request waits. It copies what is counted into a batch, and encodes what is logged. Full batches are
//! counted in memory, and the flusher (`flusher.rs`) takes the result from there. For a known client nothing is allocated, and no lock is
//! held while something is written.

mod batch;
mod counts;
mod key;
mod windows;

use std::cell::RefCell;
use std::hash::BuildHasher;
use std::sync::OnceLock;
use std::thread::Thread;
use std::time::Duration;

use arc_swap::ArcSwap;
use hashbrown::{DefaultHashBuilder, HashSet};
use smallvec::SmallVec;
use tollgate::headers::retry_after_secs;
use tollgate::rules::SampleRate;
use tollgate::{Answer, ApiKey, Client, Decision, Id, Method, Request, RuleSet};
use tollgate_stores::sql::records::DecisionKind;

use self::batch::{Batch, BatchedDecision, Batches, CountedDecision, DECISIONS_MAX};
pub(super) use self::counts::{RollupCounts, WindowDelta};
use self::key::{ClientKey, KeyHashing, TextClient};
use self::windows::{WindowRequests, WindowTable};
use super::codec::{RowWriter, has_texts};
use super::delta_table::{DeltaKey, DeltaTable, LockedShard};
use super::identifier::Identifier;
use super::routes::{OTHER, Routes};
use super::row_buffer::{RowBuffer, shard_of_thread};
use super::sampling::is_sampled;
use super::top::Top;
use crate::config::settings::ServerSettings;

pub(super) const MICROS_PER_MINUTE: u64 = 60_000_000;
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
    pub(super) windows: WindowTable,
    pub(super) rollups: DeltaTable<RollupCounts>,
    pub(super) node: NodeNames,
    pub(crate) top: Top,
    batches: Batches,
    routes: Routes,
    busy_users: ArcSwap<BusyUsers>,
    hashing: KeyHashing,
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
            windows: WindowTable::new(),
            rollups: DeltaTable::new(ROLLUP_SHARDS, ROLLUPS_MAX),
            node,
            top: Top::default(),
            batches: Batches::new(),
            routes: Routes::default(),
            busy_users: ArcSwap::default(),
            hashing: KeyHashing::new(),
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
        self.add_to_batch(check, identifier, kind);
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

    fn add_to_batch(&self, check: &RecordedCheck<'_>, identifier: Identifier<'_>, kind: DecisionKind) {
        let RecordedCheck { request, decision, latency, .. } = check;
        // Without counters nothing could have been cached.
        let counts_cache = self.shares_counters && !decision.reports.is_empty() && !decision.degraded;
        let counted = CountedDecision {
            minute: decision.now.as_micros() / MICROS_PER_MINUTE,
            kind,
            limit: decision.binding().map(|report| report.requests),
            latency_micros: micros(*latency),
            is_cached: counts_cache.then_some(!decision.asked_server),
        };
        let (tenant, path) = (request.tenant.map(Id::as_str), request.endpoint.as_str());
        let thread = shard_of_thread();
        self.batches.with_batch(thread, |batch| {
            if batch.push(counted, identifier, tenant, path, decision.rule_name()) {
                self.count_batch(thread, batch);
            }
        });
    }

    /// Counts the decisions that wait.
    pub(super) fn count_batches(&self) {
        self.batches.for_each(|thread, batch| self.count_batch(thread, batch));
    }

    /// Counts the decisions of a batch and empties it.
    fn count_batch(&self, thread: usize, batch: &mut Batch) {
        thread_local! {
            static WINDOWS: RefCell<WindowRequests> = RefCell::default();
        }
        // Taken, so that a panic cannot count it twice.
        let mut taken = std::mem::take(batch);
        let (finder, busy) = (self.routes.finder(), self.busy_users.load());
        let mut rollup_keys: SmallVec<[RollupKey<'_>; DECISIONS_MAX]> = SmallVec::new();
        WINDOWS.with_borrow_mut(|windows| {
            windows.clear();
            let mut last = ("", 0, "");
            for decision in taken.decisions() {
                let (path, minute) = (decision.path, decision.counted.minute);
                // Many requests in a row have the same path.
                if (last.0, last.1) != (path, minute) {
                    last = (path, minute, finder.route(path, minute));
                }
                rollup_keys.push(RollupKey::of(&decision, last.2, &busy));
                windows.push(&self.hashing, &decision, last.2);
            }
            self.windows.count(windows);
        });
        self.rollups.add_all(thread, |rollups| {
            let mut counted = taken.decisions().map(|decision| decision.counted);
            // Many requests in a row are of the same rollup.
            for run in rollup_keys.chunk_by(RollupKey::eq) {
                let Some(key) = run.first() else { continue };
                self.count_rollup(rollups, key, counted.by_ref().take(run.len()));
            }
        });
        drop(rollup_keys);
        taken.clear();
        *batch = taken;
    }

    fn count_rollup(
        &self,
        rollups: &mut LockedShard<'_, RollupCounts>,
        key: &RollupKey<'_>,
        mut counted: impl Iterator<Item = CountedDecision>,
    ) {
        let mut add_all = |counts: &mut RollupCounts| {
            counted.by_ref().for_each(|decision| counts.add(&decision));
            true
        };
        let mut add = |texts: [Option<&str>; 4], entries_max: usize| {
            let fields = DeltaKey {
                fingerprint: self.hashing.rollup(texts),
                has_fields: |fields: &[u8]| has_texts(fields, texts),
                write_fields: |out: &mut Vec<u8>| {
                    let mut fields = RowWriter::fields(out);
                    for text in texts {
                        fields.maybe_text(text);
                    }
                },
            };
            rollups.add_below(entries_max, fields, key.minute, &mut add_all)
        };
        let RollupKey { route, rule, tenant, user, .. } = *key;
        let is_counted = add([Some(route), rule, tenant, user], ROLLUPS_MAX - OTHER_ROLLUPS_MAX)
            || add([Some(OTHER), rule, None, None], ROLLUPS_MAX);
        if !is_counted {
            counted.for_each(|_| rollups.count_dropped());
        }
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

/// What a decision is added to.
#[derive(PartialEq, Eq)]
struct RollupKey<'a> {
    minute: u64,
    route: &'a str,
    rule: Option<&'a str>,
    tenant: Option<&'a str>,
    /// Of busy users.
    user: Option<&'a str>,
}

impl<'a> RollupKey<'a> {
    fn of(decision: &BatchedDecision<'a>, route: &'a str, busy: &BusyUsers) -> Self {
        let BatchedDecision { counted, tenant, rule, .. } = *decision;
        let user = match decision.client {
            ClientKey::Text(TextClient::User, user) => Some(user),
            _ => None,
        };
        let is_busy = |user: &&str| !busy.users.is_empty() && busy.users.contains(&busy.hash(tenant, user));
        RollupKey { minute: counted.minute, route, rule, tenant, user: user.filter(is_busy) }
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

#[cfg(test)]
mod tests;

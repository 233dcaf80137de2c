//! Decisions that wait to be counted.
//!
//! A request only copies what is counted of it. Many are then counted at once: one after another, they find the code and the tables in
//! the caches of the processor, where a single one between two requests would wait for them.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::ops::Range;

use parking_lot::Mutex;
use tollgate::Client;
use tollgate::identity::IpPrefixes;
use tollgate_stores::sql::records::DecisionKind;

use super::key::{ClientKey, TextClient};
use crate::records::identifier::Identifier;

/// Threads keep their decisions apart.
const THREAD_SHARDS: usize = 8;
/// Decisions that are counted together. One request in so many waits until they are.
const DECISIONS_MAX: usize = 128;
/// Bytes of their texts, so that long paths cannot fill the memory.
const TEXT_BYTES_MAX: usize = 64 << 10;

/// The decisions that wait, by thread.
pub(super) struct Batches {
    shards: [Mutex<Batch>; THREAD_SHARDS],
}

/// Decisions that are counted together.
#[derive(Default)]
pub(super) struct Batch {
    decisions: Vec<WaitingDecision>,
    /// The texts of all decisions, one after another.
    texts: String,
}

/// What is counted of a decision.
#[derive(Copy, Clone)]
pub(super) struct Counted {
    pub(super) minute: u64,
    pub(super) kind: DecisionKind,
    pub(super) limit: Option<u32>,
    pub(super) latency_micros: u64,
    /// Whether it needed no call to a server. Absent if no cache could have been used.
    pub(super) is_cached: Option<bool>,
}

/// A decision and what it is counted by.
pub(super) struct BatchedDecision<'a> {
    pub(super) counted: Counted,
    pub(super) client: ClientKey<'a>,
    pub(super) prefixes: IpPrefixes,
    pub(super) tenant: Option<&'a str>,
    pub(super) path: &'a str,
    pub(super) rule: Option<&'a str>,
}

/// A decision whose texts are in those of the batch.
struct WaitingDecision {
    counted: Counted,
    client: WaitingClient,
    prefixes: IpPrefixes,
    tenant: Option<Range<usize>>,
    path: Range<usize>,
    rule: Option<Range<usize>>,
}

enum WaitingClient {
    Text(TextClient, Range<usize>),
    Ip(IpAddr),
}

impl Batches {
    pub(super) fn new() -> Self {
        Batches { shards: std::array::from_fn(|_| Mutex::default()) }
    }

    /// Calls `add` with the batch of a thread.
    pub(super) fn with_batch(&self, thread: usize, add: impl FnOnce(&mut Batch)) {
        add(&mut self.shards[thread % THREAD_SHARDS].lock());
    }

    /// Calls `count` with the number of a thread and its batch, for all that are not empty.
    pub(super) fn for_each(&self, mut count: impl FnMut(usize, &mut Batch)) {
        for (thread, batch) in self.shards.iter().enumerate() {
            let mut batch = batch.lock();
            if !batch.decisions.is_empty() {
                count(thread, &mut batch);
            }
        }
    }
}

impl Batch {
    /// Adds a decision. Returns whether the batch is full.
    pub(super) fn push(
        &mut self,
        counted: Counted,
        identifier: Identifier<'_>,
        tenant: Option<&str>,
        path: &str,
        rule: Option<&str>,
    ) -> bool {
        let mut copy = |text: &str| {
            let start = self.texts.len();
            self.texts.push_str(text);
            start..self.texts.len()
        };
        let (tenant, path, rule) = (tenant.map(&mut copy), copy(path), rule.map(&mut copy));
        let client = match identifier.client {
            Client::User(id) => WaitingClient::Text(TextClient::User, copy(id.as_str())),
            Client::Login(id) => WaitingClient::Text(TextClient::Login, copy(id.as_str())),
            Client::Tenant(id) => WaitingClient::Text(TextClient::Tenant, copy(id.as_str())),
            Client::Ip(ip) => WaitingClient::Ip(ip),
            client @ Client::ApiKey(_) => {
                let start = self.texts.len();
                // Writing to a string does not fail.
                let _ = write!(self.texts, "{client}");
                WaitingClient::Text(TextClient::ApiKey, start..self.texts.len())
            }
        };
        let prefixes = identifier.prefixes;
        self.decisions.push(WaitingDecision { counted, client, prefixes, tenant, path, rule });
        self.decisions.len() >= DECISIONS_MAX || self.texts.len() >= TEXT_BYTES_MAX
    }

    pub(super) fn decisions(&self) -> impl Iterator<Item = BatchedDecision<'_>> {
        let text = |range: &Range<usize>| &self.texts[range.clone()];
        self.decisions.iter().map(move |waiting| BatchedDecision {
            counted: waiting.counted,
            client: match &waiting.client {
                WaitingClient::Text(kind, range) => ClientKey::Text(*kind, text(range)),
                WaitingClient::Ip(ip) => ClientKey::Ip(*ip),
            },
            prefixes: waiting.prefixes,
            tenant: waiting.tenant.as_ref().map(text),
            path: text(&waiting.path),
            rule: waiting.rule.as_ref().map(text),
        })
    }

    pub(super) fn clear(&mut self) {
        self.decisions.clear();
        self.texts.clear();
    }
}

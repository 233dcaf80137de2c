//! Decisions that wait to be counted.
//!
//! A request only copies what is counted of it. Counting many decisions in a row keeps code and tables in the caches of the processor;
//! counted one by one, between other work, each would miss them.

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
/// Decisions that are counted together. The request that fills the batch counts it.
pub(super) const DECISIONS_MAX: usize = 128;
/// Bytes of their texts, so that long paths cannot fill the memory.
const TEXT_BYTES_MAX: usize = 64 << 10;

/// The decisions that wait, by thread.
pub(super) struct Batches {
    shards: [Shard; THREAD_SHARDS],
}

/// The batch of some threads. Aligned, so that others do not write to the same cache line.
#[derive(Default)]
#[repr(align(128))]
struct Shard(Mutex<Batch>);

/// Decisions that are counted together.
#[derive(Default)]
pub(super) struct Batch {
    decisions: Vec<StoredDecision>,
    /// The texts of all decisions, one after another.
    texts: String,
}

/// What is counted of a decision.
#[derive(Copy, Clone)]
pub(super) struct CountedDecision {
    pub(super) minute: u64,
    pub(super) kind: DecisionKind,
    pub(super) limit: Option<u32>,
    pub(super) latency_micros: u64,
    /// Whether it needed no call to a server. Absent if no cache could have been used.
    pub(super) is_cached: Option<bool>,
}

/// A decision and what it is counted by.
pub(super) struct BatchedDecision<'a> {
    pub(super) counted: CountedDecision,
    pub(super) client: ClientKey<'a>,
    pub(super) prefixes: IpPrefixes,
    pub(super) tenant: Option<&'a str>,
    pub(super) path: &'a str,
    pub(super) rule: Option<&'a str>,
}

/// A decision whose texts are in those of the batch.
struct StoredDecision {
    counted: CountedDecision,
    client: StoredClient,
    prefixes: IpPrefixes,
    tenant: Option<Range<usize>>,
    path: Range<usize>,
    rule: Option<Range<usize>>,
}

enum StoredClient {
    Text(TextClient, Range<usize>),
    Ip(IpAddr),
}

impl Batches {
    pub(super) fn new() -> Self {
        Batches { shards: Default::default() }
    }

    /// Calls `add` with the batch of a thread.
    pub(super) fn with_batch(&self, thread: usize, add: impl FnOnce(&mut Batch)) {
        add(&mut self.shards[thread % THREAD_SHARDS].0.lock());
    }

    /// Calls `count` with the number of a thread and its batch, for all that are not empty.
    pub(super) fn for_each(&self, mut count: impl FnMut(usize, &mut Batch)) {
        for (thread, Shard(batch)) in self.shards.iter().enumerate() {
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
        counted: CountedDecision,
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
            Client::User(id) => StoredClient::Text(TextClient::User, copy(id.as_str())),
            Client::Login(id) => StoredClient::Text(TextClient::Login, copy(id.as_str())),
            Client::Tenant(id) => StoredClient::Text(TextClient::Tenant, copy(id.as_str())),
            Client::Ip(ip) => StoredClient::Ip(ip),
            client @ Client::ApiKey(_) => {
                let start = self.texts.len();
                // Writing to a string does not fail.
                let _ = write!(self.texts, "{client}");
                StoredClient::Text(TextClient::ApiKey, start..self.texts.len())
            }
        };
        let prefixes = identifier.prefixes;
        self.decisions.push(StoredDecision { counted, client, prefixes, tenant, path, rule });
        self.decisions.len() >= DECISIONS_MAX || self.texts.len() >= TEXT_BYTES_MAX
    }

    pub(super) fn decisions(&self) -> impl Iterator<Item = BatchedDecision<'_>> {
        let text = |range: &Range<usize>| &self.texts[range.clone()];
        self.decisions.iter().map(move |stored| BatchedDecision {
            counted: stored.counted,
            client: match &stored.client {
                StoredClient::Text(kind, range) => ClientKey::Text(*kind, text(range)),
                StoredClient::Ip(ip) => ClientKey::Ip(*ip),
            },
            prefixes: stored.prefixes,
            tenant: stored.tenant.as_ref().map(text),
            path: text(&stored.path),
            rule: stored.rule.as_ref().map(text),
        })
    }

    pub(super) fn clear(&mut self) {
        self.decisions.clear();
        self.texts.clear();
    }
}

#[cfg(test)]
impl CountedDecision {
    pub(super) const ALLOWED: CountedDecision = CountedDecision {
        minute: 0,
        kind: DecisionKind::Allowed,
        limit: None,
        latency_micros: 0,
        is_cached: None,
    };
}

#[cfg(test)]
mod tests {
    use tollgate::Request;
    use tollgate::endpoint::Endpoint;

    use super::*;

    #[test]
    fn batch_is_full_by_count_or_bytes() {
        let mut request = Request::new(Endpoint::parse("/").unwrap());
        request.ip = Some("192.0.2.1".parse().unwrap());
        let identifier = Identifier::of(&request, IpPrefixes::DEFAULT).unwrap();
        for (path, fits) in [("/a".to_owned(), DECISIONS_MAX), ("/".repeat(2_048), TEXT_BYTES_MAX / 2_048)] {
            let mut batch = Batch::default();
            let pushed = (1..1_000)
                .find(|_| batch.push(CountedDecision::ALLOWED, identifier, None, &path, None))
                .unwrap();
            assert_eq!((pushed, batch.decisions().count()), (fits, fits));
            batch.clear();
            assert!(batch.decisions().next().is_none() && batch.texts.is_empty());
        }
    }
}

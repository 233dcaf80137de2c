//! The busiest clients, rules and endpoints of about the last minute, and the latest refusals.
//!
//! `offer` is on the request path: it hashes the client, adds to three or four [sketches](sketch) of a fixed size and never waits. If
//! another thread holds the lock of the client's shard, the request is counted as skipped instead. API keys are kept in the form in
//! which they may be logged.

mod keys;
mod recent;
mod sketch;
mod summary;

use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};

use hashbrown::DefaultHashBuilder;
use parking_lot::Mutex;
use tollgate::headers::retry_after_secs;
use tollgate::record::{Record, RecordSink};
use tollgate::{Answer, Id, Timestamp};

use self::keys::{ClientKey, NameKey, cut};
pub(crate) use self::recent::RecentRefusal;
use self::recent::{NewRefusal, RecentRefusals};
use self::sketch::Sketch;
pub(crate) use self::summary::{TopEntry, TopList, TopSummary};

/// Threads that count different clients rarely meet. A power of two.
const SHARDS: usize = 16;
/// Windows of [`WINDOW_MICROS`]: together they cover the last 45 to 60 seconds.
const WINDOWS: usize = 4;
const WINDOW_MICROS: u64 = 15_000_000;
/// Counters of a shard and window: of clients, 1,024 in all shards. Clients are in one shard each, rules and endpoints in all.
const CLIENTS_MAX: u16 = 64;
const RULES_MAX: u16 = 64;
const ENDPOINTS_MAX: u16 = 128;
/// Refusals kept by a shard, 1,024 in all.
const REFUSALS_MAX: usize = 64;

/// What this node counted in about the last minute.
pub(crate) struct Top {
    hasher: DefaultHashBuilder,
    shards: [Mutex<Shard>; SHARDS],
    skipped: AtomicU64,
}

struct Shard {
    windows: [Window; WINDOWS],
    /// The window of the last request.
    epoch: u64,
    refusals: RecentRefusals,
}

struct Window {
    /// Windows since 1970.
    epoch: u64,
    /// The first request.
    first: Timestamp,
    requests: u64,
    refused: u64,
    clients: Sketch,
    refused_clients: Sketch,
    rules: Sketch,
    endpoints: Sketch,
}

impl Default for Top {
    fn default() -> Self {
        Top {
            hasher: DefaultHashBuilder::default(),
            shards: std::array::from_fn(|_| Mutex::new(Shard::new())),
            skipped: AtomicU64::new(0),
        }
    }
}

impl RecordSink for Top {
    /// Counts a request, unless its shard is locked. Peeks (cost 0) are not counted.
    fn offer(&self, record: &Record<'_>) {
        let request = record.request;
        let Some(client) = request.client().filter(|_| request.cost > 0) else { return };
        let client = ClientKey { tenant: request.tenant.map(Id::as_str).unwrap_or_default(), client };
        let hash = self.hasher.hash_one(&client);
        let Some(mut shard) = self.shard(hash).try_lock() else {
            self.skipped.fetch_add(1, Ordering::Relaxed);
            return;
        };
        shard.add(&self.hasher, record, &client, hash);
    }
}

impl Top {
    fn shard(&self, hash: u64) -> &Mutex<Shard> {
        // The lowest bits are compared within the shard.
        let index = usize::try_from(hash >> 48).unwrap_or(0) % SHARDS;
        &self.shards[index]
    }

    /// What was counted. Takes milliseconds while all sketches are full; each shard is locked for a small part of it.
    pub(crate) fn summary(&self, now: Timestamp) -> TopSummary {
        let read = |shard: &Mutex<Shard>| {
            let (windows, recent) = shard.lock().read(now);
            TopSummary { recent, ..TopSummary::merge(&windows) }
        };
        let shards: Vec<TopSummary> = self.shards.iter().map(read).collect();
        // A client is in one shard only, so that nothing is unknown about it in the others.
        let clients = TopList::join(shards.iter().map(|shard| shard.clients.clone()));
        let refused_clients = TopList::join(shards.iter().map(|shard| shard.refused_clients.clone()));
        let skipped = self.skipped.load(Ordering::Relaxed);
        let mut summary = TopSummary { skipped, clients, refused_clients, ..TopSummary::merge(&shards) };
        summary.hide_secrets();
        summary
    }
}

impl Shard {
    fn new() -> Self {
        Shard {
            windows: std::array::from_fn(|_| Window::new()),
            epoch: 0,
            refusals: RecentRefusals::new(REFUSALS_MAX),
        }
    }

    fn add(&mut self, hasher: &DefaultHashBuilder, record: &Record<'_>, client: &ClientKey<'_>, hash: u64) {
        let decision = record.decision;
        let reason = match decision.answer {
            // An outage is no refusal of this client.
            Answer::Admit { .. } | Answer::Unavailable => None,
            Answer::Refuse { reason, .. } => Some(reason.as_str()),
            Answer::Block => Some("blocked"),
        };
        let (endpoint, rule) = (cut(record.request.endpoint.as_str()), decision.rule_name());
        let window = self.window(decision.now);
        window.requests += 1;
        window.clients.add(hash, client, reason.is_some());
        let names = [(&mut window.endpoints, Some(endpoint)), (&mut window.rules, rule)];
        for (sketch, name) in names {
            let Some(name) = name else { continue };
            let all = NameKey { tenant: "", name };
            sketch.add(hasher.hash_one(&all), &all, reason.is_some());
            if !client.tenant.is_empty() {
                let of_tenant = NameKey { tenant: client.tenant, name };
                sketch.add(hasher.hash_one(&of_tenant), &of_tenant, reason.is_some());
            }
        }
        let Some(reason) = reason else { return };
        window.refused += 1;
        window.refused_clients.add(hash, client, true);
        self.refusals.add(&NewRefusal {
            hash: hasher.hash_one((hash, rule, reason, endpoint)),
            at: decision.now,
            client,
            endpoint,
            rule,
            reason,
            retry_after: decision.retry_after().map(retry_after_secs),
        });
    }

    /// The window of a request. One that is a little late belongs to the current window.
    fn window(&mut self, now: Timestamp) -> &mut Window {
        let epoch = epoch_of(now);
        // The second case is a clock that was set back.
        if epoch > self.epoch || self.epoch - epoch > WINDOWS as u64 {
            self.epoch = epoch;
            self.windows[slot_of(epoch)].restart(epoch, now);
        }
        &mut self.windows[slot_of(self.epoch)]
    }

    /// The windows of the last minute, and the refusals.
    fn read(&self, now: Timestamp) -> (Vec<TopSummary>, Vec<RecentRefusal>) {
        let epoch = epoch_of(now);
        let is_current = |window: &&Window| window.epoch.abs_diff(epoch) < WINDOWS as u64;
        let windows = self.windows.iter().filter(is_current).map(|window| window.summary(now));
        (windows.collect(), self.refusals.list().collect())
    }
}

impl Window {
    const fn new() -> Self {
        Window {
            epoch: 0,
            first: Timestamp::from_secs(0),
            requests: 0,
            refused: 0,
            clients: Sketch::new(CLIENTS_MAX),
            refused_clients: Sketch::new(CLIENTS_MAX),
            rules: Sketch::new(RULES_MAX),
            endpoints: Sketch::new(ENDPOINTS_MAX),
        }
    }

    fn restart(&mut self, epoch: u64, now: Timestamp) {
        (self.epoch, self.first, self.requests, self.refused) = (epoch, now, 0, 0);
        let sketches = [&mut self.clients, &mut self.refused_clients, &mut self.rules, &mut self.endpoints];
        sketches.into_iter().for_each(Sketch::clear);
    }

    fn summary(&self, now: Timestamp) -> TopSummary {
        TopSummary {
            window_seconds: now.since(self.first).as_secs_ceil().max(1),
            requests: self.requests,
            refused: self.refused,
            skipped: 0,
            clients: self.clients.list(),
            refused_clients: self.refused_clients.list(),
            rules: self.rules.list(),
            endpoints: self.endpoints.list(),
            recent: Vec::new(),
        }
    }
}

fn epoch_of(now: Timestamp) -> u64 {
    now.as_micros() / WINDOW_MICROS
}

fn slot_of(epoch: u64) -> usize {
    usize::try_from(epoch % WINDOWS as u64).unwrap_or(0)
}

#[cfg(test)]
mod tests;

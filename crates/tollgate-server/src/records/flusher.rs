//! The thread that takes what the recorder collected and appends it to the spools.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;

use super::codec::{RowWriter, WindowKey, rule_of};
use super::delta_table::Spare;
use super::recorder::{BusyUsers, MICROS_PER_MINUTE, Recorder, RollupCounts, WindowDelta};
use super::row_buffer::{Rows, SHARDS};
use super::spool::SpoolWriter;
use super::top::RequestCounts;
use crate::runtime::clock::Clock;

/// How often counts are taken.
const COUNTS_EVERY: Duration = Duration::from_secs(1);
/// A frame of counts is not continued beyond this size.
const FRAME_BYTES_MAX: usize = 1 << 20;
/// Users with rollups of their own: the busiest of the last minute.
const BUSY_USERS_MAX: usize = 100;
/// Users whose requests are counted to find the busiest.
const COUNTED_USERS_MAX: usize = 262_144;

/// What the flusher has passed on, for metrics.
#[derive(Debug, Default)]
pub(crate) struct FlushStats {
    /// Requests in window records.
    pub(crate) window_requests: AtomicU64,
    /// Rows of the decision log.
    pub(crate) log_rows: AtomicU64,
}

/// The running thread.
pub(crate) struct FlusherHandle {
    thread: JoinHandle<()>,
    stop: Arc<AtomicBool>,
}

impl FlusherHandle {
    /// Writes everything that was offered so far and ends the thread. Blocks.
    pub(crate) fn stop(self) {
        self.stop.store(true, Ordering::Release);
        self.thread.thread().unpark();
        // A panic there was printed already.
        let _ = self.thread.join();
    }
}

/// Moves records from memory to the disk.
pub(crate) struct Flusher {
    recorder: Arc<Recorder>,
    stats: Arc<FlushStats>,
    /// One for each target, as of the counts.
    log: Vec<SpoolWriter>,
    counts: Vec<SpoolWriter>,
    fsync_every: Duration,
    clock: Clock,
    rows: Rows,
    frame: Rows,
    windows: Vec<Spare<WindowDelta>>,
    rollups: Vec<Spare<RollupCounts>>,
    minute: u64,
    requests_by_user: HashMap<u64, u64>,
}

impl Flusher {
    pub(crate) fn new(
        recorder: Arc<Recorder>,
        stats: Arc<FlushStats>,
        log: Vec<SpoolWriter>,
        counts: Vec<SpoolWriter>,
        fsync_every: Duration,
        clock: Clock,
    ) -> Self {
        Flusher {
            windows: (0..recorder.windows.shards()).map(|_| Spare::default()).collect(),
            rollups: (0..recorder.rollups.shards()).map(|_| Spare::default()).collect(),
            recorder,
            stats,
            log,
            counts,
            fsync_every,
            clock,
            rows: Rows::default(),
            frame: Rows::default(),
            minute: 0,
            requests_by_user: HashMap::new(),
        }
    }

    /// Starts the thread.
    ///
    /// # Errors
    /// When the system has no thread left.
    pub(crate) fn start(self) -> io::Result<FlusherHandle> {
        let stop = Arc::new(AtomicBool::new(false));
        let (recorder, stopped) = (Arc::clone(&self.recorder), Arc::clone(&stop));
        let thread =
            std::thread::Builder::new().name("records".to_owned()).spawn(move || self.run(&stopped))?;
        recorder.set_flusher(thread.thread().clone());
        Ok(FlusherHandle { thread, stop })
    }

    fn run(mut self, stop: &AtomicBool) {
        let mut counted = Instant::now();
        loop {
            std::thread::park_timeout(self.fsync_every);
            let is_last = stop.load(Ordering::Acquire);
            self.flush_log();
            if is_last || counted.elapsed() >= COUNTS_EVERY {
                counted = Instant::now();
                self.flush_counts();
            }
            if is_last {
                self.log.into_iter().chain(self.counts).for_each(SpoolWriter::close);
                return;
            }
        }
    }

    fn flush_log(&mut self) {
        for shard in 0..SHARDS {
            self.rows.clear();
            self.recorder.log.swap(shard, &mut self.rows);
            if self.rows.count > 0 {
                self.stats.log_rows.fetch_add(u64::from(self.rows.count), Ordering::Relaxed);
                for log in &mut self.log {
                    log.append(self.rows.count, &self.rows.bytes);
                }
            }
        }
        for log in &mut self.log {
            log.sync();
        }
    }

    fn flush_counts(&mut self) {
        self.recorder.count_batches();
        self.flush_windows();
        self.flush_rollups();
        append(&mut self.counts, &mut self.frame);
        for counts in &mut self.counts {
            counts.sync();
        }
    }

    fn flush_windows(&mut self) {
        let (recorder, now) = (Arc::clone(&self.recorder), self.clock.now());
        let busy = recorder.busy_users();
        let mut latest = self.minute;
        for (shard, spare) in self.windows.iter_mut().enumerate() {
            recorder.windows.take(shard, spare, |minute, fields, counts| {
                let requests = counts.allowed + counts.refused;
                self.stats.window_requests.fetch_add(requests, Ordering::Relaxed);
                self.frame.push(|out| {
                    RowWriter::window(out)
                        .number(minute * MICROS_PER_MINUTE)
                        .number(counts.allowed)
                        .number(counts.refused)
                        .maybe_number(counts.limit.map(u64::from))
                        .copied(fields);
                });
                latest = latest.max(minute);
                if let Some(key) = WindowKey::read(fields) {
                    count_user(&mut self.requests_by_user, &busy, &key, requests);
                    recorder.top.add_window(now, &key, RequestCounts { requests, refused: counts.refused });
                }
                if self.frame.bytes.len() >= FRAME_BYTES_MAX {
                    append(&mut self.counts, &mut self.frame);
                }
            });
        }
        if latest > self.minute {
            self.minute = latest;
            recorder.set_busy_users(self.busiest(&busy));
        }
    }

    /// The busiest users since the last call.
    fn busiest(&mut self, before: &BusyUsers) -> BusyUsers {
        let mut users: Vec<(u64, u64)> =
            self.requests_by_user.drain().map(|(user, requests)| (requests, user)).collect();
        if users.len() > BUSY_USERS_MAX {
            users.select_nth_unstable_by(BUSY_USERS_MAX, |one, other| other.cmp(one));
            users.truncate(BUSY_USERS_MAX);
        }
        BusyUsers {
            hashing: before.hashing.clone(),
            users: users.into_iter().map(|(_, user)| user).collect(),
        }
    }

    fn flush_rollups(&mut self) {
        let (recorder, now) = (Arc::clone(&self.recorder), self.clock.now());
        for (shard, spare) in self.rollups.iter_mut().enumerate() {
            recorder.rollups.take(shard, spare, |minute, fields, counts| {
                self.frame.push(|out| {
                    RowWriter::rollup(out)
                        .number(minute * MICROS_PER_MINUTE)
                        .number(counts.allowed)
                        .number(counts.throttled)
                        .number(counts.blocked)
                        .number(counts.cache_hits)
                        .number(counts.cache_misses)
                        .histogram(&counts.latency)
                        .copied(fields)
                        .text(&recorder.node.region)
                        .text(&recorder.node.id);
                });
                if let Some((rule, tenant)) = rule_of(fields) {
                    let refused = counts.throttled + counts.blocked;
                    let counts = RequestCounts { requests: counts.allowed + refused, refused };
                    recorder.top.add_rule(now, rule, tenant, counts);
                }
                if self.frame.bytes.len() >= FRAME_BYTES_MAX {
                    append(&mut self.counts, &mut self.frame);
                }
            });
        }
    }
}

/// Appends a frame and empties it.
fn append(spools: &mut [SpoolWriter], frame: &mut Rows) {
    if frame.count > 0 {
        for spool in spools {
            spool.append(frame.count, &frame.bytes);
        }
        frame.clear();
    }
}

/// Counts the requests of a client if it is a user.
fn count_user(users: &mut HashMap<u64, u64>, busy: &BusyUsers, client: &WindowKey<'_>, requests: u64) {
    let Some(user) = client.identifier.strip_prefix("user:") else { return };
    let hash = busy.hash(client.tenant, user);
    let is_full = users.len() >= COUNTED_USERS_MAX;
    match users.entry(hash) {
        Entry::Vacant(_) if is_full => {}
        entry => *entry.or_insert(0) += requests,
    }
}

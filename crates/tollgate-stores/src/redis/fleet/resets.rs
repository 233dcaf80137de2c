//! What was reset lately, for nodes that do not hear of it.
//!
//! Messages of resets are hints, and lost where nobody listens. So each reset is on a list too, and every node looks at it
//! every second. Where servers come and go each by itself, which is on a ring, each has a list of its own counters:
//! whoever can reach a counter, to reset it or to bring something to it, can reach the list as well.
//!
//! Before a node brings what it counted alone it looks again, so that a reset is not undone. A request waits for that only
//! if messages may have been missed since the last look. What it brought may still arrive behind a reset: so it looks once
//! more afterwards, and makes such a reset again. The list is bounded, and ends: an outage that is longer than a day
//! may undo a reset.

use std::sync::Weak;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use hashbrown::{HashMap, HashSet};
use parking_lot::Mutex;
use redis::FromRedisValue;
use tokio::time::sleep;
use tollgate::Timestamp;
use tollgate::counters::{Charge, Charges};
use tollgate::identity::Subject;

use crate::redis::connection::error::Fault;
use crate::redis::fleet::strange;
use crate::redis::random::jitter;
use crate::redis::script::keys;
use crate::redis::topology::ShardId;
use crate::redis::{Store, lease};

/// The list of resets.
const LIST: &str = "resets";
/// How often the lists are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How many resets are on a list at most: the latest.
const LISTED_MAX: i64 = 10_000;
/// How long a list is kept after the last of them.
const LISTED_FOR_MILLIS: u64 = 86_400_000;
/// Resets so long before the latest are looked for again: of two, the first to read the clock may be the last to write.
const BEFORE_MICROS: u64 = 2_000_000;
/// For how long: nobody takes longer to write.
const LATE_FOR: Duration = Duration::from_secs(10);
/// How long a reset is known, so that it is heeded once. Longer than it is looked for again.
const KNOWN_FOR: Duration = Duration::from_secs(15);
/// As many are known at most. One more is heeded twice, which costs what was counted between.
const KNOWN_MAX: usize = 20_000;
/// How long what was found is heeded by those who took out what they bring before it was found.
const HEEDED_FOR: Duration = Duration::from_millis(200);

/// How far this node knows of resets.
pub(crate) struct Resets {
    /// Odd while messages are heard. It grows when that changes, and by two when a decision fails, for this node may be cut
    /// off: as long as it stays the same and is odd, no message is missed.
    ear: AtomicU64,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// How far each list was read.
    lists: HashMap<ShardId, Read>,
    /// Resets that were heeded, by counter and score, and when.
    heeded: HashMap<(u128, u64), Instant>,
}

struct Read {
    /// The score of the latest reset, and since when it is the latest.
    until: u64,
    at: Instant,
    /// The ear when it was last read.
    ear: u64,
}

/// Counters that were reset, and their score on the list of their server; none if that could not be told.
pub(crate) struct Listed {
    counters: Vec<u128>,
    score: Option<u64>,
}

impl Resets {
    pub(crate) fn new() -> Self {
        Resets { ear: AtomicU64::new(0), known: Mutex::default() }
    }

    /// A decision failed: this node may be cut off.
    pub(crate) fn note_failure(&self) {
        self.ear.fetch_add(2, Ordering::SeqCst);
    }

    /// Messages are heard from now on, or no longer. Told by the one who listens, each time that it changes.
    pub(crate) fn note_hearing(&self) {
        self.ear.fetch_add(1, Ordering::SeqCst);
    }

    /// Whether something may be on a list that was not heard of.
    fn may_have_missed(&self, shard: ShardId) -> bool {
        let ear = self.ear.load(Ordering::SeqCst);
        ear.is_multiple_of(2) || self.known.lock().lists.get(&shard).is_none_or(|read| read.ear != ear)
    }

    /// From which score on a list is to be read. All of it at first.
    fn since(&self, shard: ShardId) -> u64 {
        match self.known.lock().lists.get(&shard) {
            Some(read) if read.at.elapsed() < LATE_FOR => read.until.saturating_sub(BEFORE_MICROS),
            Some(read) => read.until + 1,
            None => 0,
        }
    }

    /// Notes what a list was read to hold, the latest last. The counters of those resets that were not heeded yet.
    fn note_read(&self, shard: ShardId, ear: u64, listed: &[(u128, u64)]) -> Vec<u128> {
        let now = Instant::now();
        let known = &mut *self.known.lock();
        let read = known.lists.entry(shard).or_insert(Read { until: 0, at: now, ear });
        read.ear = ear;
        if let Some((_, latest)) = listed.last().filter(|(_, latest)| *latest > read.until) {
            (read.until, read.at) = (*latest, now);
        }
        known.heed(listed.iter().copied(), now)
    }

    /// Notes resets by this node, or such as a message tells of. The counters of those that were not heeded yet.
    fn note_told(&self, listed: &Listed) -> Vec<u128> {
        let Some(score) = listed.score else { return listed.counters.clone() };
        let resets = listed.counters.iter().map(|counter| (*counter, score));
        self.known.lock().heed(resets, Instant::now())
    }

    /// Counters whose reset was heeded after this moment, or not long before.
    fn heeded_about(&self, moment: Instant) -> HashSet<u128> {
        self.heeded(|at| moment.saturating_duration_since(at) < HEEDED_FOR)
    }

    /// Counters whose reset was heeded after this moment.
    fn heeded_since(&self, moment: Instant) -> HashSet<u128> {
        self.heeded(|at| at >= moment)
    }

    fn heeded(&self, is_meant: impl Fn(Instant) -> bool) -> HashSet<u128> {
        let known = self.known.lock();
        known.heeded.iter().filter(|(_, at)| is_meant(**at)).map(|((counter, _), _)| *counter).collect()
    }
}

impl Known {
    fn heed(&mut self, resets: impl Iterator<Item = (u128, u64)>, now: Instant) -> Vec<u128> {
        self.heeded.retain(|_, at| now.saturating_duration_since(*at) < KNOWN_FOR);
        let mut news = Vec::new();
        for reset in resets {
            if !self.heeded.contains_key(&reset) {
                news.push(reset.0);
                if self.heeded.len() < KNOWN_MAX {
                    self.heeded.insert(reset, now);
                }
            }
        }
        news
    }
}

impl Store {
    /// Puts counters that are about to be reset on the lists of their servers.
    pub(crate) async fn list_resets(&self, counters: &[(Subject, u128)]) -> Vec<Listed> {
        let mut shards_seen: Vec<(ShardId, Vec<u128>)> = Vec::new();
        for (subject, counter) in counters {
            let shard = self.list_place(*subject);
            match shards_seen.iter_mut().find(|(known, _)| *known == shard) {
                Some((_, counters)) => counters.push(*counter),
                None => shards_seen.push((shard, vec![*counter])),
            }
        }
        let listing = shards_seen.into_iter().map(|(shard, counters)| async move {
            // Where it is away, messages have to do.
            let score = self.list_resets_at(shard, &counters).await.ok();
            let listed = Listed { counters, score };
            self.resets.note_told(&listed);
            listed
        });
        join_all(listing).await
    }

    async fn list_resets_at(&self, shard: ShardId, counters: &[u128]) -> Result<u64, Fault> {
        let list = keys::shared(LIST);
        let mut newest = redis::cmd("ZRANGE");
        newest.arg(&list).arg(-1).arg(-1).arg("WITHSCORES");
        let newest = scores(self.admin(shard, newest).await?)?;
        // The clock may have gone back, and whoever reads the list looks only for what is later than the newest.
        let after = newest.last().map_or(0, |(_, score)| score.saturating_add(1));
        let score = self.time_at(shard).await?.as_micros().max(after);
        let mut add = redis::cmd("ZADD");
        add.arg(&list);
        for counter in counters {
            add.arg(score).arg(name(*counter));
        }
        self.admin(shard, add).await?;
        let mut bound = redis::cmd("ZREMRANGEBYRANK");
        bound.arg(&list).arg(0).arg(-LISTED_MAX - 1);
        let mut end = redis::cmd("PEXPIRE");
        end.arg(&list).arg(LISTED_FOR_MILLIS);
        for tidy in [bound, end] {
            let _ = self.admin(shard, tidy).await;
        }
        Ok(score)
    }

    /// Forgets what is known here of counters that were reset, and tells the others.
    pub(crate) async fn forget_everywhere(&self, listed: &[Listed]) {
        for listed in listed {
            self.forget(&listed.counters);
            self.hint(&listed.message()).await;
        }
    }

    /// Heeds a message of resets.
    pub(crate) fn heed_resets(&self, words: &str) {
        let news = self.resets.note_told(&Listed::read(words));
        if !news.is_empty() {
            self.heed_reset(&news);
        }
    }

    /// Brings what was counted elsewhere, but for what was reset: the lists are looked at first. What belongs to a list
    /// that cannot be read is kept, and so is what could not be brought.
    pub(crate) async fn carry_unless_reset(
        &self,
        held: &mut Charges<'_>,
        now: Timestamp,
    ) -> Result<(), Fault> {
        let unread = self.strike(held, |_| true, Instant::now() + self.admin_timeout).await;
        let is_read = |charge: &Charge<'_>| self.why_unread(charge, &unread).is_none();
        let (read, unread): (Vec<_>, Vec<_>) = held.charges.iter().copied().partition(is_read);
        let mut left = Charges { charges: read.iter().copied().collect(), ..Charges::default() };
        // From now on: a look takes its time.
        let looked = Instant::now();
        let carried = self.reconcile(&mut left, now, looked + self.admin_timeout).await;
        let kept: HashSet<u128> = left.charges.iter().chain(&unread).map(lease::key).collect();
        held.charges.retain(|charge| kept.contains(&lease::key(charge)));
        let brought: Vec<_> = read.into_iter().filter(|charge| !kept.contains(&lease::key(charge))).collect();
        self.reset_again(&brought, looked).await;
        carried.and(if unread.is_empty() { Ok(()) } else { Err(Fault::NotSent) })
    }

    /// Resets those once more whose reset was listed after that look: what was brought may have arrived behind it.
    async fn reset_again(&self, brought: &[Charge<'_>], looked: Instant) {
        let shards_seen: HashSet<ShardId> =
            brought.iter().map(|charge| self.list_place(charge.subject)).collect();
        let deadline = Instant::now() + self.admin_timeout;
        // What cannot be read now is not found: then a message has to do, and it may be late.
        join_all(shards_seen.into_iter().map(|shard| self.look_for_resets(shard, deadline))).await;
        let reset = self.resets.heeded_since(looked);
        for charge in brought.iter().filter(|charge| reset.contains(&lease::key(charge))) {
            let _ = self.reset_counter(charge).await;
        }
    }

    /// Removes from what is to be brought with a request what was reset, after a look at those lists on which something may
    /// be that was not heard of.
    ///
    /// # Errors
    /// When a list cannot be read and yet could be, or there is no time left: then nothing is to be brought now.
    pub(crate) async fn strike_reset(&self, held: &mut Charges<'_>, deadline: Instant) -> Result<(), Fault> {
        let unread = self.strike(held, |shard| self.resets.may_have_missed(shard), deadline).await;
        let fault = held.charges.iter().find_map(|charge| self.why_unread(charge, &unread));
        match fault {
            Some(fault) => Err(fault.clone()),
            None if unread.is_empty() || Instant::now() < deadline => Ok(()),
            None => Err(Fault::NotSent),
        }
    }

    /// Looks at lists, and strikes what was reset. Lists that could not be read.
    async fn strike(
        &self,
        held: &mut Charges<'_>,
        is_looked_at: impl Fn(ShardId) -> bool,
        deadline: Instant,
    ) -> Vec<(ShardId, Fault)> {
        let taken_out = Instant::now();
        let shards_seen: HashSet<ShardId> =
            held.charges.iter().map(|charge| self.list_place(charge.subject)).collect();
        let looks = shards_seen.into_iter().filter(|shard| is_looked_at(*shard));
        let looks = looks.map(|shard| async move { (shard, self.look_for_resets(shard, deadline).await) });
        let looks = join_all(looks).await;
        let reset = self.resets.heeded_about(taken_out);
        held.charges.retain(|charge| !reset.contains(&lease::key(charge)));
        looks.into_iter().filter_map(|(shard, look)| Some((shard, look.err()?))).collect()
    }

    /// Why it cannot be found out whether a counter was reset, if that keeps it from being brought. The server of a cluster
    /// that has the list may be away while others are there: what they are owed does not wait for it.
    fn why_unread<'a>(&self, charge: &Charge<'_>, unread: &'a [(ShardId, Fault)]) -> Option<&'a Fault> {
        let shard = self.list_place(charge.subject);
        let waits = shard == self.shard(charge.subject) || self.shards.reaches(shard);
        unread.iter().find(|(unread, _)| waits && *unread == shard).map(|(_, fault)| fault)
    }

    /// Heeds what is new on a list.
    async fn look_for_resets(&self, shard: ShardId, deadline: Instant) -> Result<(), Fault> {
        let ear = self.resets.ear.load(Ordering::SeqCst);
        let mut look = redis::cmd("ZRANGE");
        look.arg(keys::shared(LIST)).arg(self.resets.since(shard));
        look.arg("+inf").arg("BYSCORE").arg("WITHSCORES");
        let listed = self.shards.call(shard, look, deadline).await.and_then(scores);
        self.troubles.shared(LIST, shard, &listed);
        let listed = listed?;
        let counter = |(name, score): &(String, u64)| Some((u128::from_str_radix(name, 16).ok()?, *score));
        let listed: Vec<_> = listed.iter().filter_map(counter).collect();
        let news = self.resets.note_read(shard, ear, &listed);
        if !news.is_empty() {
            self.heed_reset(&news);
        }
        Ok(())
    }

    /// Where the resets of a subject's counters are listed.
    fn list_place(&self, subject: Subject) -> ShardId {
        if self.shards.is_ring() { self.shard(subject) } else { self.home() }
    }
}

impl Listed {
    /// Without a list: whoever misses the message does not hear of it.
    pub(crate) fn nowhere(counter: u128) -> Self {
        Listed { counters: vec![counter], score: None }
    }

    fn message(&self) -> String {
        let score = self.score.map(|score| format!("@{score}"));
        let words = score.into_iter().chain(self.counters.iter().map(|counter| name(*counter)));
        format!("reset {}", words.collect::<Vec<_>>().join(" "))
    }

    /// What stands behind the first word of a message.
    fn read(words: &str) -> Self {
        let score = words.split(' ').find_map(|word| word.strip_prefix('@')?.parse().ok());
        let counters = words.split(' ').filter_map(|word| u128::from_str_radix(word, 16).ok());
        Listed { counters: counters.collect(), score }
    }
}

/// Looks at all lists every second, for as long as the store is used.
pub(crate) async fn follow_resets(store: Weak<Store>) {
    loop {
        let Some(strong) = store.upgrade() else { return };
        let home = strong.home();
        let shards_seen = std::iter::once(home).chain(strong.shards.other_shards(home));
        let reached = shards_seen.filter(|shard| strong.shards.reaches(*shard));
        // All at once: one that is silent holds up no other. What is missed is looked for a second later.
        let deadline = Instant::now() + strong.admin_timeout;
        let _ = join_all(reached.map(|shard| strong.look_for_resets(shard, deadline))).await;
        drop(strong);
        sleep(LOOK_EVERY.saturating_sub(jitter(LOOK_EVERY / 10))).await;
    }
}

/// A counter as it is named to other nodes.
fn name(counter: u128) -> String {
    format!("{counter:032x}")
}

/// Members of a list with their scores.
fn scores(value: redis::Value) -> Result<Vec<(String, u64)>, Fault> {
    let listed = Vec::<(String, f64)>::from_redis_value(value).map_err(|_| strange("list of resets"))?;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "written as whole microseconds"
    )]
    let whole = |(name, score): (String, f64)| (name, score as u64);
    Ok(listed.into_iter().map(whole).collect())
}

//! What was reset lately, for nodes that were cut off.
//!
//! A node that counts alone hears no message of a reset. Before it brings what it counted it looks at a list of them, so that
//! a reset is not undone. The list is bounded, and ends: an outage that is longer than a day may undo a reset.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use redis::FromRedisValue;
use tollgate::Timestamp;
use tollgate::counters::Charges;

use super::error::Fault;
use super::fleet::strange;
use super::{Store, keys, leases};

/// How many resets are on the list at most: the latest.
const LISTED_MAX: i64 = 10_000;
/// How long the list is kept after the last of them.
const LISTED_FOR_MILLIS: u64 = 86_400_000;
/// Resets so long before the last sign of life are looked at too: messages take a while.
const BEFORE_MICROS: u64 = 2_000_000;
/// How long what was found is heeded by those who took out what they bring before it was found.
const HEEDED_FOR: Duration = Duration::from_millis(200);

/// How far this node knows of resets.
pub(super) struct Resets {
    /// Decisions that failed: what is counted alone is counted after one.
    failures: AtomicU64,
    /// How many of them were there when the list was last looked at.
    looked: AtomicU64,
    /// Until when, by the server's clock and in microseconds, messages were heard.
    heard_until: AtomicU64,
    /// When, by the same clock, the latest was that was found on the list: it is not found twice.
    found_until: AtomicU64,
    /// What was last found on the list, and when. A whole list is put in the place of another.
    found: Mutex<Option<(Instant, Arc<[u128]>)>>,
}

impl Resets {
    pub(super) fn new() -> Self {
        Resets {
            failures: AtomicU64::new(0),
            looked: AtomicU64::new(0),
            heard_until: AtomicU64::new(Timestamp::from(SystemTime::now()).as_micros()),
            found_until: AtomicU64::new(0),
            found: Mutex::new(None),
        }
    }

    /// A decision failed: this node may be cut off.
    pub(super) fn note_failure(&self) {
        self.failures.fetch_add(1, Ordering::SeqCst);
    }

    /// The server was heard at this moment of its clock. From when a decision failed on that says nothing of messages, until
    /// the list was looked at.
    pub(super) fn note_heard(&self, now: Timestamp) {
        if self.failures.load(Ordering::SeqCst) == self.looked.load(Ordering::SeqCst) {
            self.heard_until.store(now.as_micros(), Ordering::SeqCst);
        }
    }
}

impl Store {
    /// Puts counters on the list that are about to be reset. Where it is away, messages have to do.
    pub(super) async fn list_resets(&self, counters: &[u128]) {
        let Some(now) = self.server_time().await.ok().filter(|_| !counters.is_empty()) else { return };
        let list = keys::shared("resets");
        let mut add = redis::cmd("ZADD");
        add.arg(&list);
        for counter in counters {
            add.arg(now.as_micros()).arg(name(*counter));
        }
        let mut bound = redis::cmd("ZREMRANGEBYRANK");
        bound.arg(&list).arg(0).arg(-LISTED_MAX - 1);
        let mut end = redis::cmd("PEXPIRE");
        end.arg(&list).arg(LISTED_FOR_MILLIS);
        for command in [add, bound, end] {
            if self.admin(self.home(), command).await.is_err() {
                return;
            }
        }
    }

    /// Removes from what is to be brought what was reset while this node was cut off.
    ///
    /// # Errors
    /// When that cannot be found out and yet could be: then nothing is to be brought now.
    pub(super) async fn strike_reset(&self, held: &mut Charges<'_>, deadline: Instant) -> Result<(), Fault> {
        // The server with the list may be away while others are there: what they are owed does not wait for it.
        if let Err(fault) = self.look_for_resets(deadline).await
            && self.router.reaches(self.home())
        {
            return Err(fault);
        }
        let found = self.resets.found.lock().clone();
        if let Some((_, found)) = found.filter(|(at, _)| at.elapsed() < HEEDED_FOR) {
            held.charges.retain(|charge| !found.contains(&leases::key(charge)));
        }
        Ok(())
    }

    /// Heeds what is on the list, if a decision has failed since it was last looked at.
    pub(super) async fn look_for_resets(&self, deadline: Instant) -> Result<(), Fault> {
        let failures = self.resets.failures.load(Ordering::SeqCst);
        if failures == self.resets.looked.load(Ordering::SeqCst) {
            return Ok(());
        }
        let missed = self.missed_resets(deadline).await?;
        let counters: Arc<[u128]> =
            missed.iter().filter_map(|(name, _)| u128::from_str_radix(name, 16).ok()).collect();
        if let Some((_, latest)) = missed.last() {
            self.heed_reset(&counters);
            *self.resets.found.lock() = Some((Instant::now(), counters));
            self.resets.found_until.fetch_max(*latest, Ordering::SeqCst);
        }
        self.resets.looked.fetch_max(failures, Ordering::SeqCst);
        Ok(())
    }

    /// Those on the list that may not have been heard of, the latest last.
    async fn missed_resets(&self, deadline: Instant) -> Result<Vec<(String, u64)>, Fault> {
        let heard = self.resets.heard_until.load(Ordering::SeqCst).saturating_sub(BEFORE_MICROS);
        let since = heard.max(self.resets.found_until.load(Ordering::SeqCst) + 1);
        let mut look = redis::cmd("ZRANGE");
        look.arg(keys::shared("resets")).arg(since).arg("+inf").arg("BYSCORE").arg("WITHSCORES");
        let missed = self.router.call(self.home(), look, deadline).await?;
        let missed = Vec::<(String, f64)>::from_redis_value(missed).map_err(|_| strange("list of resets"))?;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "written as whole microseconds"
        )]
        let whole = |(name, at): (String, f64)| (name, at as u64);
        Ok(missed.into_iter().map(whole).collect())
    }
}

/// A counter as it is named to other nodes.
pub(super) fn name(counter: u128) -> String {
    format!("{counter:032x}")
}

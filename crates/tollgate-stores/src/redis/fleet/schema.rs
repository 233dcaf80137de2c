//! Which version of names and state the fleet speaks, so that it can be upgraded node by node.
//!
//! A node knows its own version and the one before. While any live node knows only the older one, all speak it: a client
//! has one quota, whichever node it meets. When the last of them is gone, the first node to notice writes down an instant
//! a few seconds ahead, and from then on all speak the newer one. Nodes that know the instant send both names, and the
//! server goes by its own clock, so that all change at once for each counter: it keeps its old name before the instant
//! and is renamed on first use after it, for as long as one of its window can be left. A node that is older than the
//! fleet, or than the fleet is about to be, counts nothing: it says so and leaves decisions to its fallback of "refuse".

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use redis::{FromRedisValue, Value};
use tollgate::counters::Charge;
use tollgate::{Span, Timestamp};
use tracing::{error, info};

use crate::redis::Store;
use crate::redis::connection::error::Fault;
use crate::redis::script::keys;

/// How far ahead the instant is at which a fleet changes over: nodes read it every second.
const AHEAD: Duration = Duration::from_secs(5);

/// What this node speaks.
pub(crate) struct Schema {
    /// The newest version it knows.
    own: u8,
    /// The version in use.
    speaks: AtomicU8,
    /// When the fleet changes, or changed, over to it, in microseconds; zero if it never spoke another.
    since: AtomicU64,
    /// Whether the fleet has been heard of: before, nothing is decided by its counters.
    heard: AtomicBool,
    /// Why it has not, if only an operator can help.
    join_error: ArcSwapOption<Fault>,
    /// Whether whoever uses this store has yet to adopt the fleet's seed.
    waiting: AtomicBool,
    /// Whether the fleet has moved beyond what this node knows.
    left_behind: AtomicBool,
}

impl Schema {
    /// At first the older version: the fleet may still speak it.
    pub(crate) fn new(own: u8) -> Self {
        let speaks = AtomicU8::new(own.saturating_sub(1).max(crate::redis::script::keys::SCHEMA));
        Schema {
            own,
            speaks,
            since: AtomicU64::new(0),
            heard: false.into(),
            join_error: ArcSwapOption::empty(),
            waiting: false.into(),
            left_behind: false.into(),
        }
    }

    pub(crate) fn own(&self) -> u8 {
        self.own
    }

    /// Whether it is known what the fleet speaks.
    pub(crate) fn is_known(&self) -> bool {
        self.heard.load(Ordering::Relaxed)
    }

    /// Keeps in mind how an attempt to hear of the fleet ended: a login that may not is no outage.
    pub(crate) fn tried(&self, outcome: &Result<(), Fault>) {
        let fault = outcome.as_ref().err().filter(|fault| matches!(fault, Fault::Misconfigured(_)));
        self.join_error.store(fault.cloned().map(Arc::new));
    }

    /// When the fleet changed over to the version in use, in microseconds; zero if it never spoke another.
    pub(crate) fn since(&self) -> u64 {
        self.since.load(Ordering::Relaxed)
    }

    /// What the fleet speaks by hearsay, since when. That of two versions ago is not spoken here: then nothing is known.
    pub(crate) fn hear(&self, version: u8, since: u64) {
        if version > self.own {
            self.leave_behind();
        } else if version == self.own {
            self.since.store(since, Ordering::Relaxed);
            self.speaks.store(version, Ordering::Relaxed);
        }
        let spoken_here = version.saturating_add(1) >= self.own;
        self.heard.fetch_or(spoken_here, Ordering::Relaxed);
    }

    fn leave_behind(&self) {
        if !self.left_behind.swap(true, Ordering::Relaxed) {
            error!("the fleet speaks a newer version of the counters: upgrade this node");
        }
    }

    /// Why nothing can be decided, if only an operator can help.
    pub(crate) fn trouble(&self) -> Option<Fault> {
        self.speaks().err().filter(|fault| matches!(fault, Fault::Misconfigured(_)))
    }

    /// Until the seed is adopted, subjects are not those of the fleet.
    pub(crate) fn set_awaiting_seed(&self, waiting: bool) {
        self.waiting.store(waiting, Ordering::Relaxed);
    }

    /// Whether subjects are not those of the fleet yet.
    pub(crate) fn waits_for_seed(&self) -> bool {
        self.waiting.load(Ordering::Relaxed)
    }

    /// The version in use.
    ///
    /// # Errors
    /// When it is not known yet, or one that this node does not know.
    pub(crate) fn speaks(&self) -> Result<u8, Fault> {
        if !self.is_known() {
            return Err(self.join_error.load().as_ref().map_or(Fault::NotSent, |fault| Fault::clone(fault)));
        }
        if self.waits_for_seed() {
            return Err(Fault::NotSent);
        }
        if self.left_behind.load(Ordering::Relaxed) {
            return Err(Fault::Misconfigured(
                "the fleet speaks a newer version: upgrade this node".to_owned(),
            ));
        }
        Ok(self.speaks.load(Ordering::Relaxed))
    }

    /// The version under which a counter may still be found, if not the one in use, and when it changes to that.
    pub(crate) fn before(&self, charge: &Charge<'_>, now: Timestamp) -> Option<(u8, Timestamp)> {
        let since = self.since.load(Ordering::Relaxed);
        if since == 0 {
            return None;
        }
        let rate = u64::from(charge.limit.requests()).max(1);
        let refill = charge.limit.tick().micros().saturating_mul(charge.limit.debt_units_max() / rate + 1);
        let window = charge.limit.window_longest();
        let longest = (window + window).max(Span::from_micros(refill));
        let since = Timestamp::from_micros(since);
        (now < since + longest + longest).then(|| (self.speaks.load(Ordering::Relaxed) - 1, since))
    }
}

impl Store {
    /// Finds out what the fleet speaks. `older` is the number of live nodes that know only the version before ours.
    pub(crate) async fn agree_on_schema(&self, older: u32, now: Timestamp) -> Result<(), Fault> {
        self.follow_schema(older, now).await?;
        self.schema.heard.store(true, Ordering::Relaxed);
        Ok(())
    }

    async fn follow_schema(&self, older: u32, now: Timestamp) -> Result<(), Fault> {
        let schema = &self.schema;
        if self.changed_over(schema.own.saturating_add(1)).await?.is_some() {
            schema.leave_behind();
            return Ok(());
        }
        if schema.own == crate::redis::script::keys::SCHEMA
            || schema.speaks.load(Ordering::Relaxed) == schema.own
        {
            return Ok(());
        }
        match self.changed_over(schema.own).await? {
            Some(at) => {
                schema.since.store(at.as_micros().max(1), Ordering::Relaxed);
                schema.speaks.store(schema.own, Ordering::Relaxed);
                info!(version = schema.own, "the fleet changes over to a newer version of the counters");
            }
            None if older == 0 => self.propose_change(now + Span::from(AHEAD)).await?,
            None => {}
        }
        Ok(())
    }

    /// When the fleet changes, or changed, over to a version.
    async fn changed_over(&self, version: u8) -> Result<Option<Timestamp>, Fault> {
        let mut get = redis::cmd("GET");
        get.arg(change_name(version));
        let value = self.admin(self.home(), get).await?;
        let at = Option::<u64>::from_redis_value(value).ok().flatten();
        Ok(at.map(Timestamp::from_micros))
    }

    async fn propose_change(&self, at: Timestamp) -> Result<(), Fault> {
        let mut set = redis::cmd("SET");
        set.arg(change_name(self.schema.own)).arg(at.as_micros()).arg("NX");
        self.admin(self.home(), set).await.map(|_: Value| ())
    }
}

/// Where it is written when the fleet changes over to a version.
fn change_name(version: u8) -> String {
    keys::shared(&format!("schema:{version}"))
}

//! After an outage of the shared counters: what this node counted itself is brought to them, whether its clients come
//! back to it or not.
//!
//! A store that has just come back has enough to do, and all nodes notice it at once. So each begins after a wait by chance,
//! brings a few counters at a time and pauses between, the longer the more nodes there are: together they bring no more than
//! some thousands a second.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tollgate::counters::{CounterStore, ReconcileStatus};
use tracing::{info, warn};

use crate::app::App;

/// How often it is looked whether there is something to bring in, and a store to bring it to.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Nodes begin at different moments within this time.
const BEGIN_WITHIN: Duration = Duration::from_millis(500);
/// Counters brought in at a time: what a script does with so many does not keep others waiting.
const AT_ONCE: usize = 32;
/// How often in a row nothing is found that can be brought in before a pause: the counters of a server that is away stay on
/// the list among those of others, and to pass one over is no work.
const LOOKS_MAX: usize = 32;
/// The pause between, for each node there is.
const PAUSE_PER_NODE: Duration = Duration::from_millis(5);
/// How often the end of the process looks whether the store is there.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// How long the end of the process waits for it, and for one answer more.
const CLOSE_WITHIN: Duration = Duration::from_secs(2);

/// Brings in what there is, for as long as the service runs.
pub(crate) async fn follow(app: Arc<App>) {
    if app.counters().redis().is_none() {
        return;
    }
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        if app.limiter().has_pending_charges() {
            tokio::time::sleep(part_of(BEGIN_WITHIN)).await;
            bring_in_all(&app).await;
        }
    }
}

/// Until nothing is left, or the store is out of reach again.
async fn bring_in_all(app: &Arc<App>) {
    let mut done = 0;
    loop {
        match step(app).await {
            0 => break,
            some => done += some,
        }
        let pause = PAUSE_PER_NODE * app.counters().nodes().get();
        tokio::time::sleep(pause / 2 + part_of(pause)).await;
    }
    if done > 0 {
        let left = app.limiter().reconcile_status().pending;
        info!(counters = done, left, "what was counted here in the outage is brought to the counter store");
    }
}

/// Brings in a few of those whose server is there. None if there are none, as far as was looked.
async fn step(app: &Arc<App>) -> usize {
    for _ in 0..LOOKS_MAX {
        let (listed, done) = (left(app), bring_in(app).await);
        if done > 0 || listed <= AT_ONCE {
            return done;
        }
    }
    0
}

/// In a task of its own: if the service ended in its midst, it would not be known whether the store has counted it.
async fn bring_in(app: &Arc<App>) -> usize {
    let app = Arc::clone(app);
    let reconciled = tokio::spawn(async move { app.limiter().reconcile(AT_ONCE, app.now()).await });
    reconciled.await.unwrap_or(0)
}

/// Brings in what is left before the process ends, without pauses, as far as that is possible in time. What cannot be is
/// lost with the process, and so told.
pub(crate) async fn close(app: &Arc<App>) {
    if app.counters().redis().is_none() {
        return;
    }
    let end = Instant::now() + CLOSE_WITHIN;
    while left(app) > 0 && Instant::now() < end {
        if step(app).await == 0 {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }
    let counters = left(app);
    if counters > 0 {
        warn!(
            counters,
            "what was counted here in the outage cannot be brought to the counter store, and is lost"
        );
    }
}

/// Counters that have not arrived yet.
fn left(app: &App) -> usize {
    let ReconcileStatus { pending, in_flight, .. } = app.limiter().reconcile_status();
    pending + in_flight
}

/// Anything from nothing to all of it.
fn part_of(whole: Duration) -> Duration {
    let mut bytes = [0; 4];
    // Without chance all wait as long, which is only less good.
    let _ = getrandom::fill(&mut bytes);
    whole.mul_f64(f64::from(u32::from_le_bytes(bytes)) / f64::from(u32::MAX))
}

//! Reconciliation after an outage: adds the charges that the fallback counted to Redis, whether or not their clients return.
//!
//! All nodes notice at once that Redis has recovered. Each one therefore starts after a random delay and sends a few counters at a
//! time, with pauses that grow with the number of nodes: together they send a few thousand a second.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tollgate::counters::{CounterStore, ReconcileStatus};
use tracing::{info, warn};

use crate::ServiceLimiter;
use crate::runtime::clock::Clock;

/// How often pending charges are looked for.
const POLL_EVERY: Duration = Duration::from_millis(250);
/// The random delay is at most this long.
const START_DELAY_MAX: Duration = Duration::from_millis(500);
/// Counters sent at a time; few enough that the script does not delay others.
const BATCH_SIZE: usize = 32;
/// Batches tried in a row without success: counters of an unreachable server stay in the list and are skipped.
const ATTEMPTS_MAX: usize = 32;
/// The pause between batches, for each node of the fleet.
const PAUSE_PER_NODE: Duration = Duration::from_millis(5);
/// Between attempts at shutdown.
const SHUTDOWN_RETRY_EVERY: Duration = Duration::from_millis(20);
/// How long a shutdown waits for Redis.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// Reconciles after each outage, for as long as the service runs.
pub(crate) async fn run(limiter: Arc<ServiceLimiter>, clock: Clock) {
    if limiter.counters().redis().is_none() {
        return;
    }
    loop {
        tokio::time::sleep(POLL_EVERY).await;
        if limiter.has_pending_charges() {
            tokio::time::sleep(random_part_of(START_DELAY_MAX)).await;
            reconcile_all(&limiter, clock).await;
        }
    }
}

/// Reconciles until nothing is left or Redis is unreachable again.
async fn reconcile_all(limiter: &Arc<ServiceLimiter>, clock: Clock) {
    let mut done = 0;
    loop {
        match reconcile_some(limiter, clock).await {
            0 => break,
            some => done += some,
        }
        let pause = PAUSE_PER_NODE * limiter.counters().nodes().get();
        tokio::time::sleep(pause / 2 + random_part_of(pause)).await;
    }
    if done > 0 {
        let pending = limiter.reconcile_status().pending;
        info!(counters = done, pending, "reconciled charges counted during the outage");
    }
}

/// Reconciles one batch of counters whose server is reachable; 0 if none was found.
async fn reconcile_some(limiter: &Arc<ServiceLimiter>, clock: Clock) -> usize {
    for _ in 0..ATTEMPTS_MAX {
        let (listed, done) = (unreconciled(limiter), reconcile_batch(limiter, clock).await);
        if done > 0 || listed <= BATCH_SIZE {
            return done;
        }
    }
    0
}

/// Runs as a task of its own: cancelled half-way, it would leave the outcome on Redis unknown.
async fn reconcile_batch(limiter: &Arc<ServiceLimiter>, clock: Clock) -> usize {
    let limiter = Arc::clone(limiter);
    let reconciled = tokio::spawn(async move { limiter.reconcile(BATCH_SIZE, clock.now()).await });
    reconciled.await.unwrap_or(0)
}

/// Reconciles what is left at shutdown, without pauses. What cannot be sent in time is lost and logged.
pub(crate) async fn shut_down(limiter: &Arc<ServiceLimiter>, clock: Clock) {
    if limiter.counters().redis().is_none() {
        return;
    }
    let end = Instant::now() + SHUTDOWN_TIMEOUT;
    while unreconciled(limiter) > 0 && Instant::now() < end {
        if reconcile_some(limiter, clock).await == 0 {
            tokio::time::sleep(SHUTDOWN_RETRY_EVERY).await;
        }
    }
    let counters = unreconciled(limiter);
    if counters > 0 {
        warn!(
            counters,
            "shutting down while Redis is unreachable: charges counted during the outage are lost"
        );
    }
}

/// Counters not yet confirmed by Redis.
fn unreconciled(limiter: &ServiceLimiter) -> usize {
    let ReconcileStatus { pending, in_flight, .. } = limiter.reconcile_status();
    pending + in_flight
}

/// A random share of a duration.
fn random_part_of(whole: Duration) -> Duration {
    let mut bytes = [0; 4];
    // Without randomness all nodes wait equally long, which only spreads the load less.
    let _ = getrandom::fill(&mut bytes);
    whole.mul_f64(f64::from(u32::from_le_bytes(bytes)) / f64::from(u32::MAX))
}

//! The load: clients, their limits, and callers that wait for each decision.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use anyhow::Result;
use tollgate::counters::{Charge, Charges, CounterId, Effect};
use tollgate::identity::Subject;
use tollgate::{Algorithm, Limit, Span, Timestamp, Window};
use tollgate_stores::redis::RedisCounters;

/// Concurrent callers.
pub const TASKS: usize = 64;
const DAY: u64 = 86_400;
/// Coprime with any round number of clients: visits each once per lap in a scattered order.
const STRIDE: usize = 7_919;

/// The limits of every client.
pub struct Limits(Vec<Limit>);

impl Limits {
    /// Token buckets that admit everything and whose refill is slower than their use, so that counters do not expire
    /// between two requests.
    pub fn ample(count: usize, clients: usize) -> Result<Self> {
        let requests = if clients == 1 { 100_000_000 } else { 10_000 };
        let windows = [DAY, DAY / 2, DAY / 3, DAY / 4].into_iter().take(count);
        let limits = windows.map(|seconds| token_bucket(requests, seconds)).collect::<Result<_>>()?;
        Ok(Self(limits))
    }

    pub fn one(limit: Limit) -> Self {
        Self(vec![limit])
    }

    /// The charges of one request of a client.
    pub fn charges(&self, client: usize) -> Charges<'_> {
        let charge = |(number, limit)| Charge {
            subject: subject(client),
            counter: CounterId(number as u128 + 1),
            rule: "default",
            limit,
            cost: 1,
            effect: Effect::Enforce,
            leases: true,
            refundable: false,
        };
        Charges { charges: self.0.iter().enumerate().map(charge).collect(), ..Charges::default() }
    }

    /// Whether a request of a client is admitted.
    pub async fn decide(&self, store: &RedisCounters, client: usize) -> Result<bool> {
        let charges = self.charges(client);
        let (verdicts, _) = store.charge_all_timed(&charges, now()).await?;
        Ok(verdicts.admitted(&charges))
    }
}

fn token_bucket(requests: u32, seconds: u64) -> Result<Limit> {
    limit(Algorithm::TokenBucket, requests, seconds)
}

pub fn limit(algorithm: Algorithm, requests: u32, seconds: u64) -> Result<Limit> {
    Ok(Limit::new(algorithm, requests, Window::Length(Span::from_secs(seconds)))?)
}

/// Distributed like a hash.
pub fn subject(client: usize) -> Subject {
    Subject((client as u128 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835))
}

pub fn now() -> Timestamp {
    Timestamp::from(SystemTime::now())
}

/// Runs callers in a closed loop for a while. Returns the number of admitted requests.
pub async fn closed_loop<F, Answer>(callers: usize, clients: usize, lasting: Duration, ask: F) -> Result<u64>
where
    F: Fn(usize) -> Answer + Clone + Send + 'static,
    Answer: Future<Output = Result<bool>> + Send,
{
    let end = Instant::now() + lasting;
    let next = Arc::new(AtomicU64::new(0));
    let caller = |_| {
        let (ask, next) = (ask.clone(), Arc::clone(&next));
        tokio::spawn(async move {
            let mut admitted = 0;
            while Instant::now() < end {
                let turn = usize::try_from(next.fetch_add(1, Ordering::Relaxed))?;
                admitted += u64::from(ask(turn.wrapping_mul(STRIDE) % clients).await?);
                // A lease answers without waiting: yield to the other callers.
                tokio::task::consume_budget().await;
            }
            anyhow::Ok(admitted)
        })
    };
    let callers: Vec<_> = (0..callers).map(caller).collect();
    let mut admitted = 0;
    for caller in callers {
        admitted += caller.await??;
    }
    Ok(admitted)
}

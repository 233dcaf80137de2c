//! Calls that follow from a decision but that its request does not wait for: refunds, violations, the penalty list.
//!
//! A call is sent before the decision returns, so the client's next request comes after it. The number of pending calls is
//! bounded; beyond it calls are dropped, which at worst counts too much or is repaired by the next call.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use redis::{Cmd, Value};
use tokio::sync::Semaphore;

use super::{ShardId, ShardMap, publish};
use crate::redis::connection::error::Fault;

const PENDING_MAX: usize = 1_024;
/// How long `drain` waits.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(100);

/// Sends calls that no request waits for.
#[derive(Clone)]
pub(crate) struct BackgroundCalls {
    shards: Arc<ShardMap>,
    permits: Arc<Semaphore>,
}

impl BackgroundCalls {
    pub(crate) fn new(shards: Arc<ShardMap>) -> Self {
        BackgroundCalls { shards, permits: Arc::new(Semaphore::new(PENDING_MAX)) }
    }

    /// Sends a command. False if too many are pending.
    pub(crate) fn send(&self, shard: ShardId, command: Cmd) -> bool {
        let shards = Arc::clone(&self.shards);
        self.run(async move { drop(shards.admin(shard, command).await) })
    }

    /// Publishes a message to the nodes of the fleet.
    pub(crate) fn publish(&self, message: &str) {
        self.send(self.shards.home(), publish(message));
    }

    /// Polls a task once and spawns the rest of it. False if too many are pending.
    pub(crate) fn run(&self, task: impl Future<Output = ()> + Send + 'static) -> bool {
        let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() else { return false };
        let mut task = Box::pin(async move {
            task.await;
            drop(permit);
        });
        if task.as_mut().now_or_never().is_none() {
            tokio::spawn(task);
        }
        true
    }

    pub(crate) async fn call(&self, shard: ShardId, command: Cmd) -> Result<Value, Fault> {
        self.shards.admin(shard, command).await
    }

    /// Waits a short time until no call is pending.
    pub(crate) async fn drain(&self) {
        let end = Instant::now() + DRAIN_TIMEOUT;
        while self.permits.available_permits() < PENDING_MAX && Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

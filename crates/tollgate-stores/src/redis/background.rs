//! What follows from a decision and its request need not wait for: charges that are taken back, refusals that are noted,
//! clients that are put on the list.
//!
//! An errand is on its way before the decision is told, so that whatever the client asks next comes after it, and is
//! answered in a task of its own. They are bounded: if servers are so slow that too many are under way, what would be one
//! more is left undone. That is for each of them the safe side, or mended by the next.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use redis::{Cmd, Value};
use tokio::sync::Semaphore;

use crate::redis::connection::error::Fault;
use crate::redis::topology::{ShardId, ShardMap};

const UNDER_WAY_MAX: usize = 1_024;
/// How long whoever wants to see what background have done waits for those that are under way.
const SETTLED_WITHIN: Duration = Duration::from_millis(100);

/// Those who run background.
#[derive(Clone)]
pub(crate) struct BackgroundCalls {
    shards: Arc<ShardMap>,
    room: Arc<Semaphore>,
    timeout: Duration,
}

impl BackgroundCalls {
    pub(crate) fn new(shards: Arc<ShardMap>, timeout: Duration) -> Self {
        BackgroundCalls { shards, room: Arc::new(Semaphore::new(UNDER_WAY_MAX)), timeout }
    }

    /// Sends a command. Whether there was room for it.
    pub(crate) fn send(&self, shard: ShardId, command: Cmd) -> bool {
        let background = self.clone();
        self.run(async move { drop(background.call(shard, command).await) })
    }

    /// Begins an errand and leaves the rest of it to a task. Whether there was room for it.
    pub(crate) fn run(&self, errand: impl Future<Output = ()> + Send + 'static) -> bool {
        let Ok(room) = Arc::clone(&self.room).try_acquire_owned() else { return false };
        let mut errand = Box::pin(async move {
            errand.await;
            drop(room);
        });
        if errand.as_mut().now_or_never().is_none() {
            tokio::spawn(errand);
        }
        true
    }

    /// A call that no request waits for.
    pub(crate) async fn call(&self, shard: ShardId, command: Cmd) -> Result<Value, Fault> {
        self.shards.call(shard, command, Instant::now() + self.timeout).await
    }

    /// Waits until none is under way, but not for long: where there are always some, it is as well now as later.
    pub(crate) async fn settled(&self) {
        let end = Instant::now() + SETTLED_WITHIN;
        while self.room.available_permits() < UNDER_WAY_MAX && Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

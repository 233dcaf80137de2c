//! Batches on their way into the database.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use serde::{Deserialize, Serialize};
use tollgate_stores::sql::{Database, DatabaseError, KeyUsageDelta, UsageBatch, UserUsageDelta};
use tracing::warn;

use super::Usage;

/// Users and keys in one batch at most: each is a transaction.
const BATCH_MAX: usize = 1_000;

/// What has left the counting and is not known to have arrived.
#[derive(Debug)]
pub(crate) struct Flusher {
    /// This process, unlike any other.
    node: String,
    number: u64,
    pending: VecDeque<UsageBatch>,
    has_taken_up: bool,
}

impl Flusher {
    /// For a process with this name.
    pub(crate) fn new(node: String) -> Self {
        Flusher { node, number: 0, pending: VecDeque::new(), has_taken_up: false }
    }

    /// What an earlier process has left, as [`Flusher::left`] wrote it. Whether it could be read.
    pub(crate) fn take_up(&mut self, left: &[u8]) -> bool {
        let Ok(left) = serde_json::from_slice::<Vec<Batch>>(left) else { return false };
        self.pending.extend(left.into_iter().map(Batch::into));
        self.has_taken_up = true;
        true
    }

    /// Whether there is a file of an earlier process that is not done with.
    pub(crate) fn has_taken_up(&self) -> bool {
        self.has_taken_up
    }

    /// The file of the earlier process is done with.
    pub(crate) fn forget_taken_up(&mut self) {
        self.has_taken_up = false;
    }

    /// Sends what is pending and what was counted since. Whether all of it arrived.
    pub(crate) async fn flush(&mut self, usage: &Usage, database: &Database) -> bool {
        // What is left from before goes first; what was counted since is better off where it adds up.
        if !self.send(usage, database).await {
            return false;
        }
        self.collect(usage);
        self.send(usage, database).await
    }

    async fn send(&mut self, usage: &Usage, database: &Database) -> bool {
        while let Some(batch) = self.pending.front() {
            match database.add_usage(batch).await {
                Ok(_) => {}
                Err(error) if is_about_the_batch(&error) => {
                    let rows = batch.users.len() + batch.keys.len();
                    usage.dropped.fetch_add(rows as u64, Ordering::Relaxed);
                    warn!(%error, rows, "the database refuses what users and keys have asked: it is dropped");
                }
                Err(_) => return false,
            }
            self.pending.pop_front();
        }
        true
    }

    /// Makes batches of what was counted.
    fn collect(&mut self, usage: &Usage) {
        let (mut users, mut keys) = usage.take();
        while !users.is_empty() || !keys.is_empty() {
            let users: Vec<UserUsageDelta> = users.drain(..users.len().min(BATCH_MAX)).collect();
            let keys: Vec<KeyUsageDelta> = keys.drain(..keys.len().min(BATCH_MAX - users.len())).collect();
            self.number += 1;
            self.pending.push_back(UsageBatch { node: self.node.clone(), number: self.number, users, keys });
        }
    }

    /// What has not arrived, for the next process; nothing if all has.
    pub(crate) fn left(&mut self, usage: &Usage) -> Option<Vec<u8>> {
        self.collect(usage);
        let left: Vec<Batch> = self.pending.iter().map(Batch::from).collect();
        if left.is_empty() { None } else { serde_json::to_vec(&left).ok() }
    }
}

/// Whether another attempt would end the same way.
fn is_about_the_batch(error: &DatabaseError) -> bool {
    matches!(error, DatabaseError::Value { .. } | DatabaseError::Constraint { .. })
}

/// A batch in the file.
#[derive(Serialize, Deserialize)]
struct Batch {
    node: String,
    number: u64,
    users: Vec<(String, u32, u64, u64, u64)>,
    keys: Vec<(String, u64, u64)>,
}

impl From<&UsageBatch> for Batch {
    fn from(batch: &UsageBatch) -> Self {
        let user = |each: &UserUsageDelta| {
            (each.user.clone(), each.day, each.requests, each.exceeded, each.last_micros)
        };
        let key = |each: &KeyUsageDelta| (each.id.clone(), each.requests, each.last_micros);
        Batch {
            node: batch.node.clone(),
            number: batch.number,
            users: batch.users.iter().map(user).collect(),
            keys: batch.keys.iter().map(key).collect(),
        }
    }
}

impl From<Batch> for UsageBatch {
    fn from(batch: Batch) -> Self {
        let user = |(user, day, requests, exceeded, last_micros)| UserUsageDelta {
            user,
            day,
            requests,
            exceeded,
            last_micros,
        };
        let key = |(id, requests, last_micros)| KeyUsageDelta { id, requests, last_micros };
        UsageBatch {
            node: batch.node,
            number: batch.number,
            users: batch.users.into_iter().map(user).collect(),
            keys: batch.keys.into_iter().map(key).collect(),
        }
    }
}

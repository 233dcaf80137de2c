//! Sends usage batches to the database.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use serde::{Deserialize, Serialize};
use tollgate_stores::sql::{Database, DatabaseError, KeyUsageDelta, UsageBatch, UserUsageDelta};
use tracing::warn;

use super::Usage;

/// Users and keys per batch; each batch is one transaction.
const BATCH_MAX: usize = 1_000;

/// Batches that are not confirmed by the database.
#[derive(Debug)]
pub(crate) struct Flusher {
    /// A unique name of this process.
    node: String,
    number: u64,
    pending: VecDeque<UsageBatch>,
    has_loaded_file: bool,
}

impl Flusher {
    pub(crate) fn new(node: String) -> Self {
        Flusher { node, number: 0, pending: VecDeque::new(), has_loaded_file: false }
    }

    /// Loads what an earlier process wrote with [`Flusher::unsent`]. Returns whether it could be read.
    pub(crate) fn load(&mut self, file: &[u8]) -> bool {
        let Ok(batches) = serde_json::from_slice::<Vec<Batch>>(file) else { return false };
        self.pending.extend(batches.into_iter().map(Batch::into));
        self.has_loaded_file = true;
        true
    }

    /// Whether the file of an earlier process must still be kept.
    pub(crate) fn has_loaded_file(&self) -> bool {
        self.has_loaded_file
    }

    /// The file of the earlier process was removed.
    pub(crate) fn forget_loaded_file(&mut self) {
        self.has_loaded_file = false;
    }

    /// Sends pending batches and new usage. Returns whether all of it was stored.
    pub(crate) async fn flush(&mut self, usage: &Usage, database: &Database) -> bool {
        // Older batches first. Until they are stored, new usage keeps adding up in memory.
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
                Err(error) if is_permanent(&error) => {
                    let rows = batch.users.len() + batch.keys.len();
                    usage.dropped.fetch_add(rows as u64, Ordering::Relaxed);
                    warn!(%error, rows, "the database rejected a usage batch; it is dropped");
                }
                Err(_) => return false,
            }
            self.pending.pop_front();
        }
        true
    }

    /// Turns the counts into batches.
    fn collect(&mut self, usage: &Usage) {
        let (mut users, mut keys) = usage.take();
        while !users.is_empty() || !keys.is_empty() {
            let users: Vec<UserUsageDelta> = users.drain(..users.len().min(BATCH_MAX)).collect();
            let keys: Vec<KeyUsageDelta> = keys.drain(..keys.len().min(BATCH_MAX - users.len())).collect();
            self.number += 1;
            self.pending.push_back(UsageBatch { node: self.node.clone(), number: self.number, users, keys });
        }
    }

    /// The batches that are not stored yet, for the next process.
    pub(crate) fn unsent(&mut self, usage: &Usage) -> Option<Vec<u8>> {
        self.collect(usage);
        let unsent: Vec<Batch> = self.pending.iter().map(Batch::from).collect();
        if unsent.is_empty() { None } else { serde_json::to_vec(&unsent).ok() }
    }
}

/// Whether a retry would fail the same way.
fn is_permanent(error: &DatabaseError) -> bool {
    matches!(error, DatabaseError::Value { .. } | DatabaseError::Constraint { .. })
}

/// A batch as stored in the file.
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

//! Sends usage batches to the database.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

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
    /// Whether the file of an earlier process must still be kept.
    pub(crate) has_loaded_file: bool,
}

impl Flusher {
    pub(crate) fn new(node: String) -> Self {
        Flusher { node, number: 0, pending: VecDeque::new(), has_loaded_file: false }
    }

    /// Loads what an earlier process wrote with [`Flusher::unsent`]. Returns whether it could be read.
    pub(crate) fn load(&mut self, file: &[u8]) -> bool {
        let Ok(batches) = serde_json::from_slice::<Vec<UsageBatch>>(file) else { return false };
        self.pending.extend(batches);
        self.has_loaded_file = true;
        true
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
        if self.pending.is_empty() { None } else { serde_json::to_vec(&self.pending).ok() }
    }
}

/// Whether a retry would fail the same way.
fn is_permanent(error: &DatabaseError) -> bool {
    matches!(error, DatabaseError::Value { .. } | DatabaseError::Constraint { .. })
}

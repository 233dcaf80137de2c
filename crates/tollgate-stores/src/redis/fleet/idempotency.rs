//! Idempotency locks: a batch sent twice, to different nodes, is decided once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{Cmd, Value};
use tokio::time::sleep;
use tollgate::counters::StoreError;
use tollgate::identity::Subject;

use crate::redis::connection::error::Fault;
use crate::redis::script::keys::{self, Tag};
use crate::redis::topology::ShardMap;

/// The state of an idempotency key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IdempotencyLock {
    /// This node holds the lock and decides the batch.
    Acquired,
    /// Another node decides the batch.
    InProgress,
    /// The batch was decided; this is the stored response.
    Completed(Vec<u8>),
    /// The key was used with another body.
    BodyMismatch,
}

const RETRY_INTERVAL: Duration = Duration::from_millis(250);
/// Length of a body's fingerprint.
const BODY_BYTES: usize = 32;

/// Idempotency keys of all nodes. Keys and bodies are passed as fingerprints.
#[derive(Clone)]
pub struct IdempotencyLocks {
    shards: Arc<ShardMap>,
    timeout: Duration,
}

impl IdempotencyLocks {
    pub(crate) fn new(shards: Arc<ShardMap>, timeout: Duration) -> Self {
        IdempotencyLocks { shards, timeout }
    }

    /// Acquires the lock of a key for `ttl`, or returns who holds it.
    ///
    /// # Errors
    /// When the store is unreachable.
    pub async fn acquire(
        &self,
        key: [u8; 32],
        body: [u8; 32],
        ttl: Duration,
    ) -> Result<IdempotencyLock, StoreError> {
        self.try_acquire(key, body, ttl).await.map_err(|fault| self.store_error(fault))
    }

    /// Stores the response to a batch that this node decided. Without a response the lock is released.
    ///
    /// # Errors
    /// When the store is unreachable: the lock then expires.
    pub async fn complete(
        &self,
        key: [u8; 32],
        body: [u8; 32],
        response: Option<&[u8]>,
        ttl: Duration,
    ) -> Result<(), StoreError> {
        self.store(key, body, response, ttl).await.map_err(|fault| self.store_error(fault))
    }

    /// Retries [`IdempotencyLocks::complete`] for as long as the lock may live, so that other nodes do not see the batch in
    /// progress for all that time.
    pub async fn complete_with_retries(
        &self,
        key: [u8; 32],
        body: [u8; 32],
        response: Option<Vec<u8>>,
        ttl: Duration,
        lock_ttl: Duration,
    ) {
        let Some(response) = response else { return self.release(key, lock_ttl).await };
        let started = Instant::now();
        while started.elapsed() < lock_ttl {
            sleep(RETRY_INTERVAL).await;
            if self.store(key, body, Some(&response), ttl).await.is_ok() {
                return;
            }
        }
    }

    /// Releases a lock that was acquired for `lock_ttl`, with retries.
    pub async fn release(&self, key: [u8; 32], lock_ttl: Duration) {
        let started = Instant::now();
        let mut released = self.delete(key).await;
        while released.is_err() && started.elapsed() < lock_ttl {
            sleep(RETRY_INTERVAL).await;
            released = self.delete_if_ours(key, started, lock_ttl).await;
        }
    }

    async fn try_acquire(
        &self,
        key: [u8; 32],
        body: [u8; 32],
        ttl: Duration,
    ) -> Result<IdempotencyLock, Fault> {
        let tag = tag(key);
        let name = keys::idempotency(&tag);
        let mut set = redis::cmd("SET");
        set.arg(&name).arg(body.as_slice()).arg("NX").arg("PX").arg(millis(ttl));
        if self.call(&tag, set).await? == Value::Okay {
            return Ok(IdempotencyLock::Acquired);
        }
        let mut get = redis::cmd("GET");
        get.arg(&name);
        Ok(match self.call(&tag, get).await? {
            Value::BulkString(value) if !value.starts_with(&body) => IdempotencyLock::BodyMismatch,
            Value::BulkString(value) if value.len() > BODY_BYTES => {
                IdempotencyLock::Completed(value[BODY_BYTES..].to_vec())
            }
            // Held by another node, or expired between the two commands: the next attempt acquires it.
            _ => IdempotencyLock::InProgress,
        })
    }

    async fn store(
        &self,
        key: [u8; 32],
        body: [u8; 32],
        response: Option<&[u8]>,
        ttl: Duration,
    ) -> Result<(), Fault> {
        let tag = tag(key);
        let mut command = redis::cmd(if response.is_some() { "SET" } else { "DEL" });
        command.arg(keys::idempotency(&tag));
        if let Some(response) = response {
            command.arg([&body, response].concat()).arg("PX").arg(millis(ttl));
        }
        self.call(&tag, command).await.map(drop)
    }

    async fn delete(&self, key: [u8; 32]) -> Result<(), Fault> {
        let tag = tag(key);
        let mut delete = redis::cmd("DEL");
        delete.arg(keys::idempotency(&tag));
        self.shards.admin(self.shards.shard_of(tag.subject()), delete).await.map(drop)
    }

    /// Deletes a lock unless another node has acquired it since `started`: that lock lives longer than ours can.
    async fn delete_if_ours(&self, key: [u8; 32], started: Instant, lock_ttl: Duration) -> Result<(), Fault> {
        let tag = tag(key);
        let mut pttl = redis::cmd("PTTL");
        pttl.arg(keys::idempotency(&tag));
        let left = self.shards.admin(self.shards.shard_of(tag.subject()), pttl).await?;
        let ours_at_most = millis(lock_ttl.saturating_sub(started.elapsed()));
        match left {
            Value::Int(left) if u64::try_from(left).is_ok_and(|left| left < ours_at_most) => {
                self.delete(key).await
            }
            _ => Ok(()),
        }
    }

    /// A call that a request waits for.
    async fn call(&self, tag: &Tag, command: Cmd) -> Result<Value, Fault> {
        self.shards.call(self.shards.shard_of(tag.subject()), command, Instant::now() + self.timeout).await
    }

    fn store_error(&self, fault: Fault) -> StoreError {
        fault.into_store_error(self.timeout)
    }
}

fn tag(key: [u8; 32]) -> Tag {
    let half: [u8; 16] = std::array::from_fn(|index| key[index]);
    Tag::new(Subject(u128::from_be_bytes(half)))
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

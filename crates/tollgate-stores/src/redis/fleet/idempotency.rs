//! Idempotency locks: a batch sent twice, to different nodes, is decided once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{Cmd, ExistenceCheck, SetExpiry, SetOptions, Value};
use tollgate::counters::StoreError;
use tollgate::identity::Subject;

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
        let tag = tag(key);
        let name = keys::idempotency(&tag);
        let if_absent =
            SetOptions::default().conditional_set(ExistenceCheck::NX).with_expiration(expiry(ttl));
        if self.call(&tag, Cmd::set_options(&name, body.as_slice(), if_absent)).await? == Value::Okay {
            return Ok(IdempotencyLock::Acquired);
        }
        Ok(match self.call(&tag, Cmd::get(&name)).await? {
            Value::BulkString(value) if !value.starts_with(&body) => IdempotencyLock::BodyMismatch,
            Value::BulkString(value) if value.len() > body.len() => {
                IdempotencyLock::Completed(value[body.len()..].to_vec())
            }
            // Held by another node, or expired between the two commands: the next attempt acquires it.
            _ => IdempotencyLock::InProgress,
        })
    }

    /// Stores the response to a batch that this node decided.
    ///
    /// # Errors
    /// When the store is unreachable: the lock then expires.
    pub async fn complete(
        &self,
        key: [u8; 32],
        body: [u8; 32],
        response: &[u8],
        ttl: Duration,
    ) -> Result<(), StoreError> {
        let tag = tag(key);
        let options = SetOptions::default().with_expiration(expiry(ttl));
        let set = Cmd::set_options(keys::idempotency(&tag), [&body, response].concat(), options);
        self.call(&tag, set).await.map(drop)
    }

    /// Releases a lock without a response.
    ///
    /// # Errors
    /// When the store is unreachable: the lock then expires.
    pub async fn release(&self, key: [u8; 32]) -> Result<(), StoreError> {
        let tag = tag(key);
        self.call(&tag, Cmd::del(keys::idempotency(&tag))).await.map(drop)
    }

    async fn call(&self, tag: &Tag, command: Cmd) -> Result<Value, StoreError> {
        let (shard, deadline) = (self.shards.shard_of(tag.subject()), Instant::now() + self.timeout);
        let reply = self.shards.call(shard, command, deadline).await;
        reply.map_err(|fault| fault.into_store_error(self.timeout))
    }
}

fn tag(key: [u8; 32]) -> Tag {
    let half: [u8; 16] = std::array::from_fn(|index| key[index]);
    Tag::new(Subject(u128::from_be_bytes(half)))
}

fn expiry(ttl: Duration) -> SetExpiry {
    SetExpiry::PX(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX))
}

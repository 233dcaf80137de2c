//! Batches that are sent twice to different nodes are decided once.

use std::time::{Duration, Instant};

use redis::{Cmd, Value};
use tokio::time::sleep;
use tollgate::counters::StoreError;
use tollgate::identity::Subject;

use crate::redis::connection::error::Fault;
use crate::redis::script::keys::{self, Tag};
use crate::redis::{RedisCounters, Store};

/// What is known of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IdempotencyLock {
    /// Nobody has decided it: it is ours to decide.
    Acquired,
    /// Somebody is at it.
    InProgress,
    /// It was decided; this was the answer.
    Completed(Vec<u8>),
    /// Its key was used for another body.
    BodyMismatch,
}

/// How often what could not be told of a claim is told again.
const AGAIN_EVERY: Duration = Duration::from_millis(250);
/// Length of the fingerprint of a body.
const BODY_BYTES: usize = 32;

impl RedisCounters {
    /// Claims a batch by the fingerprints of its key and of its body, for as long as `kept`.
    ///
    /// # Errors
    /// When the store cannot be reached.
    pub async fn lock_idempotency_key(
        &self,
        key: [u8; 32],
        body: [u8; 32],
        kept: Duration,
    ) -> Result<IdempotencyLock, StoreError> {
        self.0
            .lock_idempotency_key(key, body, kept)
            .await
            .map_err(|fault| fault.into_store_error(self.0.timeout))
    }

    /// Keeps the answer to a batch that was ours. Without one (`None`) the claim is given up and the next may try.
    ///
    /// # Errors
    /// When the store cannot be reached: the claim then ends by itself.
    pub async fn store_response(
        &self,
        key: [u8; 32],
        body: [u8; 32],
        answer: Option<&[u8]>,
        kept: Duration,
    ) -> Result<(), StoreError> {
        self.0
            .store_response(key, body, answer, kept)
            .await
            .map_err(|fault| fault.into_store_error(self.0.timeout))
    }

    /// Keeps the answer to a batch that was ours, or gives the claim up, where that failed: again and again, for as long as
    /// the claim may live, which was made for `claimed`. Others would be told all the time that the batch is under way.
    pub async fn retry_store_response(
        &self,
        key: [u8; 32],
        body: [u8; 32],
        answer: Option<Vec<u8>>,
        kept: Duration,
        claimed: Duration,
    ) {
        let Some(answer) = answer else { return self.release_idempotency_key(key, claimed).await };
        let begun = Instant::now();
        while begun.elapsed() < claimed {
            sleep(AGAIN_EVERY).await;
            if self.store_response(key, body, Some(&answer), kept).await.is_ok() {
                return;
            }
        }
    }

    /// Gives up a claim that was made for `claimed`, again and again until it is known to be given up.
    pub async fn release_idempotency_key(&self, key: [u8; 32], claimed: Duration) {
        let begun = Instant::now();
        let mut given_up = self.0.give_up(key).await;
        while given_up.is_err() && begun.elapsed() < claimed {
            sleep(AGAIN_EVERY).await;
            given_up = self.0.give_up_if_ours(key, begun, claimed).await;
        }
    }
}

impl Store {
    async fn lock_idempotency_key(
        &self,
        key: [u8; 32],
        body: [u8; 32],
        kept: Duration,
    ) -> Result<IdempotencyLock, Fault> {
        let tag = tag(key);
        let name = keys::idempotency(&tag);
        let mut set = redis::cmd("SET");
        set.arg(&name).arg(body.as_slice()).arg("NX").arg("PX").arg(millis(kept));
        if self.in_time(&tag, set).await? == Value::Okay {
            return Ok(IdempotencyLock::Acquired);
        }
        let mut get = redis::cmd("GET");
        get.arg(&name);
        Ok(match self.in_time(&tag, get).await? {
            Value::BulkString(value) if !value.starts_with(&body) => IdempotencyLock::BodyMismatch,
            Value::BulkString(value) if value.len() == BODY_BYTES => IdempotencyLock::InProgress,
            Value::BulkString(value) => IdempotencyLock::Completed(value[BODY_BYTES..].to_vec()),
            // It ended between the two: whoever comes next decides it.
            _ => IdempotencyLock::InProgress,
        })
    }

    async fn store_response(
        &self,
        key: [u8; 32],
        body: [u8; 32],
        answer: Option<&[u8]>,
        kept: Duration,
    ) -> Result<(), Fault> {
        let tag = tag(key);
        let name = keys::idempotency(&tag);
        let mut command = redis::cmd(if answer.is_some() { "SET" } else { "DEL" });
        command.arg(&name);
        if let Some(answer) = answer {
            command.arg([&body, answer].concat()).arg("PX").arg(millis(kept));
        }
        self.in_time(&tag, command).await.map(|_| ())
    }

    async fn give_up(&self, key: [u8; 32]) -> Result<(), Fault> {
        let tag = tag(key);
        let mut delete = redis::cmd("DEL");
        delete.arg(keys::idempotency(&tag));
        self.admin(self.shards.shard(&tag), delete).await.map(|_| ())
    }

    /// Gives a claim up that may have been given up since `begun`. One that another node has made since lasts longer than ours
    /// can, and is left alone.
    async fn give_up_if_ours(&self, key: [u8; 32], begun: Instant, claimed: Duration) -> Result<(), Fault> {
        let tag = tag(key);
        let mut left = redis::cmd("PTTL");
        left.arg(keys::idempotency(&tag));
        let left = self.admin(self.shards.shard(&tag), left).await?;
        let ours_at_most = millis(claimed.saturating_sub(begun.elapsed()));
        match left {
            Value::Int(left) if u64::try_from(left).is_ok_and(|left| left < ours_at_most) => {
                self.give_up(key).await
            }
            _ => Ok(()),
        }
    }

    /// A call that a request waits for: no longer than for a decision.
    async fn in_time(&self, tag: &Tag, command: Cmd) -> Result<Value, Fault> {
        self.shards.call(self.shards.shard(tag), command, Instant::now() + self.timeout).await
    }
}

fn tag(key: [u8; 32]) -> Tag {
    let half: [u8; 16] = std::array::from_fn(|index| key[index]);
    Tag::new(Subject(u128::from_be_bytes(half)))
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

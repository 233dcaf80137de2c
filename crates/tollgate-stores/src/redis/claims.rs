//! Batches that are sent twice to different nodes are decided once.

use std::time::{Duration, Instant};

use redis::{Cmd, Value};
use tollgate::counters::StoreError;
use tollgate::identity::Subject;

use super::error::Fault;
use super::keys::{self, Tag};
use super::{RedisCounters, Store};

/// What is known of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// Nobody has decided it: it is ours to decide.
    Ours,
    /// Somebody is at it.
    UnderWay,
    /// It was decided; this was the answer.
    Answered(Vec<u8>),
    /// Its key was used for another body.
    OtherBody,
}

/// Length of the fingerprint of a body.
const BODY_BYTES: usize = 32;

impl RedisCounters {
    /// Claims a batch by the fingerprints of its key and of its body, for as long as `kept`.
    ///
    /// # Errors
    /// When the store cannot be reached.
    pub async fn claim(&self, key: [u8; 32], body: [u8; 32], kept: Duration) -> Result<Claim, StoreError> {
        self.0.claim(key, body, kept).await.map_err(|fault| fault.into_store_error(self.0.timeout))
    }

    /// Keeps the answer to a batch that was ours. Without one (`None`) the claim is given up and the next may try.
    ///
    /// # Errors
    /// When the store cannot be reached: the claim then ends by itself.
    pub async fn answer_claim(
        &self,
        key: [u8; 32],
        body: [u8; 32],
        answer: Option<&[u8]>,
        kept: Duration,
    ) -> Result<(), StoreError> {
        self.0
            .answer_claim(key, body, answer, kept)
            .await
            .map_err(|fault| fault.into_store_error(self.0.timeout))
    }
}

impl Store {
    async fn claim(&self, key: [u8; 32], body: [u8; 32], kept: Duration) -> Result<Claim, Fault> {
        let tag = tag(key);
        let name = keys::claim(&tag);
        let mut set = redis::cmd("SET");
        set.arg(&name).arg(body.as_slice()).arg("NX").arg("PX").arg(millis(kept));
        if self.in_time(&tag, set).await? == Value::Okay {
            return Ok(Claim::Ours);
        }
        let mut get = redis::cmd("GET");
        get.arg(&name);
        Ok(match self.in_time(&tag, get).await? {
            Value::BulkString(value) if !value.starts_with(&body) => Claim::OtherBody,
            Value::BulkString(value) if value.len() == BODY_BYTES => Claim::UnderWay,
            Value::BulkString(value) => Claim::Answered(value[BODY_BYTES..].to_vec()),
            // It ended between the two: whoever comes next decides it.
            _ => Claim::UnderWay,
        })
    }

    async fn answer_claim(
        &self,
        key: [u8; 32],
        body: [u8; 32],
        answer: Option<&[u8]>,
        kept: Duration,
    ) -> Result<(), Fault> {
        let tag = tag(key);
        let name = keys::claim(&tag);
        let mut command = redis::cmd(if answer.is_some() { "SET" } else { "DEL" });
        command.arg(&name);
        if let Some(answer) = answer {
            command.arg([&body, answer].concat()).arg("PX").arg(millis(kept));
        }
        self.in_time(&tag, command).await.map(|_| ())
    }
}

impl Store {
    /// A call that a request waits for: no longer than for a decision.
    async fn in_time(&self, tag: &Tag, command: Cmd) -> Result<Value, Fault> {
        self.router.call(self.router.place(tag), command, Instant::now() + self.timeout).await
    }
}

fn tag(key: [u8; 32]) -> Tag {
    let half: [u8; 16] = std::array::from_fn(|index| key[index]);
    Tag::new(Subject(u128::from_be_bytes(half)))
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

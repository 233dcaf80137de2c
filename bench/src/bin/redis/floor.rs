//! The floor: the cheapest script, sent as tollgate sends its own.
//!
//! The same client library, the same names of keys, batches of the same size, two of them under way.

use std::sync::Arc;

use anyhow::{Result, bail};
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, Script, Value};
use tokio::sync::{Semaphore, mpsc, oneshot};

const SOURCE: &str = include_str!("floor.lua");
const BATCH_MAX: usize = 128;
const BATCHES_IN_FLIGHT: usize = 2;
const QUEUE_MAX: usize = 4_096;

/// A token bucket on Redis and nothing else.
#[derive(Clone)]
pub struct Floor {
    jobs: mpsc::Sender<Job>,
    hash: Arc<str>,
    /// Tokens per microsecond and the capacity, as the script reads them.
    limit: [u8; 16],
}

struct Job {
    command: Cmd,
    answer: oneshot::Sender<Value>,
}

impl Floor {
    pub async fn open(url: &str, requests: u32, seconds: u64) -> Result<Self> {
        let mut connection = redis::Client::open(url)?.get_multiplexed_async_connection().await?;
        connection.send_packed_command(redis::cmd("SCRIPT").arg("LOAD").arg(SOURCE)).await?;
        let (jobs, queue) = mpsc::channel(QUEUE_MAX);
        tokio::spawn(send_batches(queue, connection));
        let rate = f64::from(requests) / (seconds as f64 * 1e6);
        let hash = Script::new(SOURCE).get_hash().into();
        let mut limit = [0; 16];
        limit[..8].copy_from_slice(&rate.to_le_bytes());
        limit[8..].copy_from_slice(&f64::from(requests).to_le_bytes());
        Ok(Self { jobs, hash, limit })
    }

    /// Whether a request of a client is admitted.
    pub async fn decide(&self, client: usize) -> Result<bool> {
        let (answer, reply) = oneshot::channel();
        let mut command = redis::cmd("EVALSHA");
        command.arg(&*self.hash).arg(1).arg(key(client)).arg(self.limit.as_slice());
        self.jobs.send(Job { command, answer }).await?;
        match reply.await? {
            Value::Array(items) => Ok(items.first() == Some(&Value::Int(1))),
            other => bail!("the floor's script answered {other:?}"),
        }
    }
}

/// As long and as evenly distributed as tollgate's.
fn key(client: usize) -> String {
    let tag = (client as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    format!("rl:1t{{{tag:026}}}:default:1d")
}

async fn send_batches(mut queue: mpsc::Receiver<Job>, connection: MultiplexedConnection) {
    let in_flight = Arc::new(Semaphore::new(BATCHES_IN_FLIGHT));
    let mut jobs = Vec::with_capacity(BATCH_MAX);
    while queue.recv_many(&mut jobs, BATCH_MAX).await > 0 {
        let Ok(permit) = Arc::clone(&in_flight).acquire_owned().await else { return };
        let batch = std::mem::replace(&mut jobs, Vec::with_capacity(BATCH_MAX));
        let connection = connection.clone();
        tokio::spawn(async move {
            send_batch(batch, connection).await;
            drop(permit);
        });
    }
}

async fn send_batch(batch: Vec<Job>, mut connection: MultiplexedConnection) {
    let mut pipeline = Pipeline::with_capacity(batch.len());
    let mut waiting = Vec::with_capacity(batch.len());
    for Job { command, answer } in batch {
        pipeline.add_command(command);
        waiting.push(answer);
    }
    // A caller without a reply reports it.
    let Ok(values) = connection.send_packed_commands(&pipeline, 0, waiting.len()).await else { return };
    for (answer, value) in waiting.into_iter().zip(values) {
        let _ = answer.send(value);
    }
}

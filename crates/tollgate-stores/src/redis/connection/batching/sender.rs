//! Sends queued calls in batches and distributes the replies.

use std::sync::Arc;
use std::time::Instant;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, Value};
use tokio::sync::{Semaphore, mpsc};

use super::link::Link;
use crate::redis::connection::call::Call;
use crate::redis::connection::error::Fault;
use crate::redis::script;

/// Calls in one write.
const BATCH_MAX: usize = 128;
const BATCHES_IN_FLIGHT_MAX: usize = 2;

/// One result per command of a batch.
type Replies = Vec<Result<Value, Fault>>;

/// Sends queued calls in batches until the queue is closed.
pub(super) async fn send_batches(mut queue: mpsc::Receiver<Call>, link: Arc<Link>) {
    let in_flight = Arc::new(Semaphore::new(BATCHES_IN_FLIGHT_MAX));
    let mut calls = Vec::with_capacity(BATCH_MAX);
    while queue.recv_many(&mut calls, BATCH_MAX).await > 0 {
        let Ok(permit) = Arc::clone(&in_flight).acquire_owned().await else { return };
        // A caller that has stopped waiting is not charged.
        calls.retain(Call::start);
        let batch = std::mem::replace(&mut calls, Vec::with_capacity(BATCH_MAX));
        let link = Arc::clone(&link);
        tokio::spawn(async move {
            send_batch(batch, &link).await;
            drop(permit);
        });
    }
}

async fn send_batch(batch: Vec<Call>, link: &Link) {
    let Some(connection) = link.current() else {
        for call in batch {
            let _ = call.reply.send(Err(Fault::NotSent));
        }
        return;
    };
    let mut waiting = Vec::with_capacity(batch.len());
    let mut pipeline = Pipeline::with_capacity(batch.len());
    for call in batch {
        if call.asking {
            pipeline.add_command(redis::cmd("ASKING")).ignore();
        }
        pipeline.add_command(call.command);
        waiting.push((call.asking, call.reply));
    }
    if waiting.is_empty() {
        return;
    }
    let sent = Instant::now();
    let mut replies = match exchange(&connection, &pipeline).await {
        Ok(replies) => replies,
        Err(fault) => {
            if fault != Fault::NoReply {
                link.discard(&connection);
            } else if link.is_current(&connection) {
                link.note_no_reply(sent);
            }
            for (_, reply) in waiting {
                let _ = reply.send(Err(fault.clone()));
            }
            return;
        }
    };
    link.note_served(&connection);
    if replies.contains(&Err(Fault::NoScript)) {
        load_script_and_retry(&connection, &pipeline, &mut replies).await;
    }
    let mut replies = replies.into_iter();
    for (asking, reply) in waiting {
        if asking {
            replies.next();
        }
        let _ = reply.send(replies.next().unwrap_or(Err(Fault::ConnectionLost)));
    }
}

async fn exchange(connection: &Arc<MultiplexedConnection>, pipeline: &Pipeline) -> Result<Replies, Fault> {
    let mut connection = MultiplexedConnection::clone(connection);
    let replies = connection.send_packed_commands(pipeline, 0, pipeline.len()).await;
    let replies = replies.map_err(|error| Fault::from_connection(&error))?;
    Ok(replies.into_iter().map(check_error).collect())
}

/// Loads the script and repeats the calls that failed without it. They charged nothing.
async fn load_script_and_retry(
    connection: &Arc<MultiplexedConnection>,
    pipeline: &Pipeline,
    replies: &mut Replies,
) {
    let commands: Vec<&Cmd> = pipeline.cmd_iter().collect();
    let mut retry = Pipeline::with_capacity(commands.len() + 1);
    retry.add_command(script::load());
    // Positions in the first and in the second batch.
    let mut retried = Vec::new();
    for (index, _) in replies.iter().enumerate().filter(|(_, reply)| **reply == Err(Fault::NoScript)) {
        // ASKING holds for one command, and the first attempt used it.
        if index.checked_sub(1).is_some_and(|before| is_asking(commands[before])) {
            retry.add_command(redis::cmd("ASKING"));
        }
        retried.push((index, retry.len()));
        retry.add_command((*commands[index]).clone());
    }
    let second = exchange(connection, &retry).await;
    for (index, position) in retried {
        replies[index] = match &second {
            // SCRIPT LOAD failed, for want of a permission: report that.
            Ok(second) if let Some(Err(fault)) = second.first() => Err(fault.clone()),
            Ok(second) => second.get(position).cloned().unwrap_or(Err(Fault::ConnectionLost)),
            // The next batch deals with the connection.
            Err(fault) => Err(fault.clone()),
        };
    }
}

fn is_asking(command: &Cmd) -> bool {
    matches!(command.args_iter().next(), Some(redis::Arg::Simple(name)) if name == b"ASKING")
}

/// Turns an error reply into a fault.
pub(super) fn check_error(value: Value) -> Result<Value, Fault> {
    match value {
        Value::ServerError(error) => Err(Fault::from_server(&error)),
        value => Ok(value),
    }
}

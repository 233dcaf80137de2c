//! Bytes that a counter takes in Redis: with its key, its end and its share of the tables.

use std::sync::Arc;

use anyhow::{Context, Result};
use tollgate_bench::report::{Table, Targets};
use tollgate_testkit::{Client, RedisServer};

use crate::Plan;
use crate::host;
use crate::load::{Limits, TASKS};

pub fn measure(plan: &Plan, targets: &mut Targets) -> Result<()> {
    let server = host::start_server()?;
    let mut table = Table::new(["token buckets", "bytes each", "MEMORY USAGE of one", "its key"]);
    let counts = if plan.quick { vec![100_000] } else { vec![100_000, 1_000_000] };
    for count in counts {
        let Filled { each, usage, key } = fill(&server, count)?;
        table.row([
            count.to_string(),
            format!("{each:.1}"),
            format!("{usage:.0}"),
            format!("{} bytes: {key}", key.len()),
        ]);
        targets.at_most(format!("bytes per token bucket, used_memory over {count}"), each, 120.0);
        targets.at_most(format!("bytes per token bucket, MEMORY USAGE, of {count}"), usage, 120.0);
    }
    println!("\nMemory: growth of used_memory ÷ counters, filled by checks\n\n{table}");
    print_parts(&server)
}

struct Filled {
    each: f64,
    usage: f64,
    key: String,
}

/// So many clients, one request each, under a limit that forgets nothing for a day.
fn fill(server: &RedisServer, count: usize) -> Result<Filled> {
    server.flush_all();
    let runtime = host::runtime()?;
    runtime.block_on(async {
        let store = host::open(&host::patient(server)).await?;
        let limits = Arc::new(Limits::one(crate::load::limit(tollgate::Algorithm::TokenBucket, 1, 86_400)?));
        limits.decide(&store, count).await?; // the script and the buffers are not the counters'
        let before = server.memory_used();
        let callers = (0..TASKS).map(|caller| {
            let (store, limits) = (store.clone(), Arc::clone(&limits));
            tokio::spawn(async move {
                for client in (caller..count).step_by(TASKS) {
                    anyhow::ensure!(limits.decide(&store, client).await?, "a new client was refused");
                }
                Ok(())
            })
        });
        for caller in callers.collect::<Vec<_>>() {
            caller.await??;
        }
        let grown = server.memory_used().saturating_sub(before) as f64;
        let counters = server.command(&[b"DBSIZE"]).int();
        anyhow::ensure!(usize::try_from(counters)? > count, "{counters} counters of {count} are there");
        let key = server.command(&[b"RANDOMKEY"]).to_string();
        let usage = server.command(&[b"MEMORY", b"USAGE", key.as_bytes(), b"SAMPLES", b"0"]).int() as f64;
        Ok(Filled { each: grown / count as f64, usage, key })
    })
}

/// What the parts of a counter take in this build of Redis, by leaving them out one after another.
fn print_parts(server: &RedisServer) -> Result<()> {
    let state: &[u8] = b"17 bytes of state";
    let bare = stored(server, 44, b"1", false)?;
    let with_state = stored(server, 44, state, false)?;
    let with_end = stored(server, 44, state, true)?;
    let mut table = Table::new(["plain SET, 100,000 keys of 44 bytes", "bytes each"]);
    table.row(["key, its entry, its place in the table".to_owned(), format!("{bare:.1}")]);
    table.row(["+ 17 bytes of state".to_owned(), format!("{:.1}", with_state - bare)]);
    table.row(["+ when it ends".to_owned(), format!("{:.1}", with_end - with_state)]);
    table.row([
        "= what any 44-byte key with 17 bytes and an end takes here".to_owned(),
        format!("{with_end:.1}"),
    ]);
    let allocator = server.info("memory").get("mem_allocator").cloned().unwrap_or_default();
    let version = server.info("server").get("redis_version").cloned().unwrap_or_default();
    println!("Redis {version}, {allocator}\n\n{table}");
    Ok(())
}

const PARTS: usize = 100_000;

fn stored(server: &RedisServer, key_bytes: usize, value: &[u8], ends: bool) -> Result<f64> {
    server.flush_all();
    let mut client = Client::connect(server.address(), std::time::Duration::from_secs(10))?;
    client.command(&[b"PING"])?;
    let before = server.memory_used();
    for number in 0..PARTS {
        let key = format!("rl:1t{{{number:026}}}:default:1d");
        anyhow::ensure!(key.len() == key_bytes, "the key has {} bytes", key.len());
        let end: &[&[u8]] = if ends { &[b"PX", b"86400000"] } else { &[] };
        let command = [&[b"SET", key.as_bytes(), value], end].concat();
        let reply = client.command(&command).context("SET")?;
        anyhow::ensure!(!reply.is_error(), "{reply}");
    }
    Ok(server.memory_used().saturating_sub(before) as f64 / PARTS as f64)
}

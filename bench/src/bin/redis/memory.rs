//! Bytes of a counter in Redis, with its key, its expiry and its share of the tables.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use tollgate_bench::report::{Table, Targets};
use tollgate_testkit::{RedisServer, RespClient};

use crate::Plan;
use crate::host::{self, Used};
use crate::load::{Limits, TASKS, closed_loop};

/// How long decisions on existing counters are measured.
const LASTING: Duration = Duration::from_secs(2);

pub fn measure(plan: &Plan, targets: &mut Targets) -> Result<()> {
    let server = host::start_server()?;
    let counts = if plan.quick { vec![100_000] } else { vec![100_000, 1_000_000, 6_000_000] };
    let alone = alone(&server)?;
    let mut table = Table::new([
        "token buckets",
        "bytes each",
        "÷ a key of its own",
        "in a hash",
        "Redis µs per decision",
        "a key",
    ]);
    for count in counts {
        let Filled { each, hashes, micros, key } = fill(&server, count)?;
        table.row([
            count.to_string(),
            format!("{each:.1}"),
            format!("{:.2}", each / alone),
            format!("{:.1}", count as f64 / hashes),
            format!("{micros:.1}"),
            key,
        ]);
        targets.at_most(format!("bytes per token bucket, used_memory over {count}"), each, 120.0);
    }
    let allocator = server.info("memory").get("mem_allocator").cloned().unwrap_or_default();
    let version = server.info("server").get("redis_version").cloned().unwrap_or_default();
    println!(
        "\nMemory: growth of used_memory ÷ counters, filled by checks; Redis {version}, {allocator}\n\n{table}"
    );
    println!("17 bytes of state under a key of 44 bytes with an expiry, by plain SET: {alone:.1} bytes\n");
    Ok(())
}

struct Filled {
    each: f64,
    hashes: f64,
    /// CPU time of Redis for a decision on one of them.
    micros: f64,
    key: String,
}

/// One request each of `count` clients, under a limit whose counters do not expire for a day.
fn fill(server: &RedisServer, count: usize) -> Result<Filled> {
    server.flush_all();
    let runtime = host::runtime()?;
    runtime.block_on(async {
        let store = host::open(&host::patient(server)).await?;
        let limits = Arc::new(Limits::one(crate::load::limit(tollgate::Algorithm::TokenBucket, 10, 86_400)?));
        limits.decide(&store, count).await?; // loads the script and the buffers first
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
        let keys = server.command(&[b"EVAL", COUNT, b"0"]).to_string();
        let (hashes, counters) = keys.split_once(' ').context("two numbers")?;
        anyhow::ensure!(counters.parse::<usize>()? > count, "{counters} counters of {count} are there");
        let key = server.command(&[b"RANDOMKEY"]).to_string();
        let before = Used::so_far(server)?;
        let ask = move |client| {
            let (store, limits) = (store.clone(), Arc::clone(&limits));
            async move { limits.decide(&store, client).await }
        };
        let decided = closed_loop(TASKS, count, LASTING, ask).await? as f64;
        let micros = Used::so_far(server)?.since(&before).redis_us / decided;
        Ok(Filled { each: grown / count as f64, hashes: hashes.parse()?, micros, key })
    })
}

/// Hashes, and the counters in them.
const COUNT: &[u8] = b"local keys, counters = redis.call('KEYS', 'rl:1t*'), 0
    for _, key in ipairs(keys) do counters = counters + redis.call('HLEN', key) end
    return #keys .. ' ' .. counters";

const ALONE: usize = 100_000;

/// The bytes of a counter with its own key: a name of the same length and the same state.
fn alone(server: &RedisServer) -> Result<f64> {
    server.flush_all();
    let mut client = RespClient::connect(server.address(), Duration::from_secs(10))?;
    client.command(&[b"PING"])?;
    let before = server.memory_used();
    for number in 0..ALONE {
        let key = format!("rl:1t{{{number:026}}}:default:1d");
        let command: [&[u8]; 5] = [b"SET", key.as_bytes(), b"17 bytes of state", b"PX", b"86400000"];
        let reply = client.command(&command).context("SET")?;
        anyhow::ensure!(!reply.is_error(), "{reply}");
    }
    Ok(server.memory_used().saturating_sub(before) as f64 / ALONE as f64)
}

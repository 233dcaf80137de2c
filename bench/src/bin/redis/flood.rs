//! A client that continues although it is refused: calls to Redis per refused request.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use tollgate::Algorithm;
use tollgate_bench::report::{Table, Targets};
use tollgate_stores::redis::RedisCounters;

use crate::Plan;
use crate::host::{self, script_calls};
use crate::load::{self, Limits};

const NODES: usize = 4;
/// Requests per second to each node.
const RATE: f64 = 2_000.0;
const STEP: Duration = Duration::from_millis(5);
const ALGORITHMS: [(Algorithm, &str); 4] = [
    (Algorithm::TokenBucket, "token bucket"),
    (Algorithm::FixedWindow, "fixed window"),
    (Algorithm::SlidingWindowCounter, "sliding window counter"),
    (Algorithm::SlidingWindowLog, "sliding window log"),
];

pub fn measure(plan: &Plan, targets: &mut Targets) -> Result<()> {
    let lasting = Duration::from_secs(if plan.quick { 3 } else { 10 });
    let runtime = host::runtime()?;
    let mut table = Table::new(["100 per 60 s", "admitted", "refused", "calls", "calls/refused"]);
    for (client, (algorithm, name)) in ALGORITHMS.into_iter().enumerate() {
        let Figures { admitted, refused, calls } = runtime.block_on(flood(client, algorithm, lasting))?;
        let per_refused = calls / refused as f64;
        table.row([
            name.to_owned(),
            admitted.to_string(),
            refused.to_string(),
            format!("{calls:.0}"),
            format!("{per_refused:.4}"),
        ]);
        targets.at_most(format!("calls per refused request, {name}"), per_refused, 0.01);
    }
    println!(
        "\nOne client floods {NODES} nodes with {RATE} requests/s each for {} s, default settings\n\n{table}",
        lasting.as_secs()
    );
    Ok(())
}

struct Figures {
    admitted: u64,
    refused: u64,
    calls: f64,
}

async fn flood(client: usize, algorithm: Algorithm, lasting: Duration) -> Result<Figures> {
    let server = host::start_server()?;
    let limits = Arc::new(Limits::one(load::limit(algorithm, 100, 60)?));
    let mut nodes = Vec::new();
    for _ in 0..NODES {
        nodes.push(host::open(&host::patient(&server)).await?);
    }
    let (before, _) = script_calls(&server)?;
    let nodes = nodes.into_iter().map(|node| tokio::spawn(knock(node, Arc::clone(&limits), client, lasting)));
    let (mut admitted, mut refused) = (0, 0);
    for node in nodes.collect::<Vec<_>>() {
        let (yes, no) = node.await??;
        (admitted, refused) = (admitted + yes, refused + no);
    }
    Ok(Figures { admitted, refused, calls: script_calls(&server)?.0 - before })
}

async fn knock(
    node: RedisCounters,
    limits: Arc<Limits>,
    client: usize,
    lasting: Duration,
) -> Result<(u64, u64)> {
    let (start, mut sent) = (Instant::now(), 0.0);
    let (mut admitted, mut refused) = (0, 0);
    while start.elapsed() < lasting {
        let due = start.elapsed().as_secs_f64() * RATE;
        while sent < due {
            sent += 1.0;
            if limits.decide(&node, client).await? { admitted += 1 } else { refused += 1 }
        }
        tokio::time::sleep(STEP).await;
    }
    Ok((admitted, refused))
}

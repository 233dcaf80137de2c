//! CPU time of a decision, ours and the server's, and calls.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use tollgate_bench::report::{Table, Targets, median, median_ratio};
use tollgate_stores::redis::RedisSettings;
use tollgate_testkit::RedisServer;

use crate::Plan;
use crate::floor::Floor;
use crate::host::{self, Used};
use crate::load::{Limits, TASKS, closed_loop};

const WARM_UP: Duration = Duration::from_millis(500);
const DAY: u64 = 86_400;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum How {
    Floor,
    Exact,
    Leased,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Case {
    callers: usize,
    clients: usize,
    limits: usize,
    how: How,
}

impl Case {
    fn all() -> Vec<Self> {
        let mut cases = Vec::new();
        for clients in [10_000, 1] {
            cases.push(Self { callers: TASKS, clients, limits: 1, how: How::Floor });
            for limits in [1, 4] {
                let case = |how| Self { callers: TASKS, clients, limits, how };
                cases.extend([How::Exact, How::Leased].map(case));
            }
        }
        // Nothing to put into a batch: what a node with little to ask of a server pays, and the server.
        cases.extend([How::Floor, How::Exact].map(|how| Self {
            callers: 1,
            clients: 10_000,
            limits: 1,
            how,
        }));
        cases
    }

    fn name(&self) -> String {
        let clients = if self.clients == 1 { "1 hot key" } else { "10,000 keys" };
        let limits = if self.limits == 1 { "1 limit" } else { "4 limits" };
        let how = match self.how {
            How::Floor => "floor script",
            How::Exact => "exact",
            How::Leased => "leases on",
        };
        let callers = if self.callers == 1 { ", 1 caller" } else { "" };
        format!("{clients}, {limits}, {how}{callers}")
    }

    async fn measure(self, server: &RedisServer, lasting: Duration) -> Result<Sample> {
        server.flush_all();
        let Self { callers, clients, limits, how } = self;
        if how == How::Floor {
            let floor =
                Floor::open(&server.url(), if clients == 1 { 100_000_000 } else { 10_000 }, DAY).await?;
            let ask = move |client| {
                let floor = floor.clone();
                async move { floor.decide(client).await }
            };
            closed_loop(callers, clients, WARM_UP, ask.clone()).await?;
            return Sample::take(server, closed_loop(callers, clients, lasting, ask)).await;
        }
        let settings = RedisSettings { leases: how == How::Leased, ..host::patient(server) };
        let (store, limits) = (host::open(&settings).await?, Arc::new(Limits::ample(limits, clients)?));
        let ask = move |client| {
            let (store, limits) = (store.clone(), Arc::clone(&limits));
            async move { limits.decide(&store, client).await }
        };
        closed_loop(callers, clients, WARM_UP, ask.clone()).await?;
        Sample::take(server, closed_loop(callers, clients, lasting, ask)).await
    }
}

/// Per decision.
struct Sample {
    used: Used,
    per_second: f64,
}

impl Sample {
    async fn take(server: &RedisServer, load: impl Future<Output = Result<u64>>) -> Result<Self> {
        let (before, started) = (Used::so_far(server)?, std::time::Instant::now());
        let decisions = load.await? as f64;
        let (took, used) = (started.elapsed(), Used::so_far(server)?.since(&before));
        anyhow::ensure!(decisions > 0.0, "nothing was admitted");
        let used = Used {
            client_us: used.client_us / decisions,
            redis_us: used.redis_us / decisions,
            script_us: used.script_us / decisions,
            calls: used.calls / decisions,
        };
        Ok(Self { used, per_second: decisions / took.as_secs_f64() })
    }
}

pub fn measure(plan: &Plan, targets: &mut Targets) -> Result<()> {
    let lasting = Duration::from_secs(if plan.quick { 1 } else { 2 });
    let server = host::start_server()?;
    let runtime = host::runtime()?;
    let mut samples: BTreeMap<Case, Vec<Sample>> = BTreeMap::new();
    for round in 1..=plan.rounds {
        for case in Case::all() {
            let task = runtime.block_on(case.measure(&server, lasting))?;
            let Used { client_us, redis_us, .. } = task.used;
            eprintln!(
                "round {round}: {:<36} {client_us:6.2} µs here, {redis_us:6.2} µs in Redis",
                case.name()
            );
            samples.entry(case).or_default().push(task);
        }
    }
    print_table(plan, lasting, &samples);
    for clients in [10_000, 1] {
        evaluate(clients, &samples, targets);
    }
    Ok(())
}

fn print_table(plan: &Plan, lasting: Duration, samples: &BTreeMap<Case, Vec<Sample>>) {
    println!(
        "\nCPU per decision: {TASKS} callers in a closed loop, one core each; median of {} round(s) of {} s\n",
        plan.rounds,
        lasting.as_secs()
    );
    let header = [
        "",
        "our µs",
        "Redis µs",
        "of it the script",
        "calls/decision",
        "Redis ÷ floor",
        "script ÷ floor",
        "decisions/s",
    ];
    let mut table = Table::new(header);
    for case in Case::all() {
        let Some(rounds) = samples.get(&case) else { continue };
        let middle = |figure: fn(&Sample) -> f64| median(rounds.iter().map(figure));
        let [redis, script] = ratios(case, samples);
        table.row([
            case.name(),
            format!("{:.2}", middle(|s| s.used.client_us)),
            format!("{:.2}", middle(|s| s.used.redis_us)),
            format!("{:.2}", middle(|s| s.used.script_us)),
            format!("{:.4}", middle(|s| s.used.calls)),
            format!("{redis:.2}"),
            format!("{script:.2}"),
            format!("{:.0}", middle(|s| s.per_second)),
        ]);
    }
    println!("{table}");
}

/// The server's CPU time and the script's part of it, to those of the floor.
fn ratios(case: Case, samples: &BTreeMap<Case, Vec<Sample>>) -> [f64; 2] {
    let floor = Case { limits: 1, how: How::Floor, ..case };
    let of = |case: &Case, figure: fn(&Sample) -> f64| -> Vec<f64> {
        samples.get(case).map(|rounds| rounds.iter().map(figure).collect()).unwrap_or_default()
    };
    let figures: [fn(&Sample) -> f64; 2] = [|s| s.used.redis_us, |s| s.used.script_us];
    figures.map(|figure| median_ratio(of(&case, figure), of(&floor, figure)))
}

fn evaluate(clients: usize, samples: &BTreeMap<Case, Vec<Sample>>, targets: &mut Targets) {
    let exact = Case { callers: TASKS, clients, limits: 1, how: How::Exact };
    let [redis, script] = ratios(exact, samples);
    let keys = if clients == 1 { "1 hot key" } else { "10,000 keys" };
    targets.at_most(format!("Redis CPU ÷ floor, one limit, {keys}"), redis, 1.3);
    targets.at_most(format!("script time ÷ floor, one limit, {keys}"), script, 1.3);
    for limits in [1, 4] {
        let rounds = samples.get(&Case { limits, ..exact }).map_or(&[][..], Vec::as_slice);
        let calls = median(rounds.iter().map(|s| s.used.calls));
        targets.at_most(format!("calls per exact decision, {limits} limit(s), {keys}"), calls, 1.001);
    }
}

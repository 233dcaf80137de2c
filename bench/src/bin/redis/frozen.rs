//! A server that freezes under load: how long decisions wait until the breaker opens and after, and how soon the server is
//! used again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tollgate_bench::report::{Table, Targets, median};
use tollgate_stores::redis::RedisCounters;

use crate::Plan;
use crate::host;
use crate::load::{Limits, TASKS};

/// Requests per second of all callers together.
const RATE: usize = 2_000;
const CLIENTS: usize = 10_000;
const CALM: Duration = Duration::from_secs(2);
const FROZEN: Duration = Duration::from_secs(3);
const AFTER: Duration = Duration::from_secs(2);

pub fn measure(plan: &Plan, targets: &mut Targets) -> Result<()> {
    let runtime = host::runtime()?;
    let mut rounds = Vec::new();
    for round in 1..=plan.rounds {
        let outage = runtime.block_on(freeze_once())?;
        eprintln!("round {round}: {}", outage.said());
        rounds.push(outage);
    }
    let mut table =
        Table::new(["a decision, ms", "decisions", "p50", "p99", "longest", "no answer from Redis"]);
    for (phase, name) in
        ["before", "frozen, until the breaker opens", "frozen, after that", "thawed"].iter().enumerate()
    {
        let middle =
            |figure: &dyn Fn(&Phase) -> f64| median(rounds.iter().map(|round| figure(&round.phases[phase])));
        table.row([
            (*name).to_owned(),
            format!("{:.0}", middle(&|phase| phase.waits_ms.len() as f64)),
            format!("{:.3}", middle(&|phase| phase.quantile(0.5))),
            format!("{:.3}", middle(&|phase| phase.quantile(0.99))),
            format!("{:.3}", middle(&|phase| phase.quantile(1.0))),
            format!("{:.0}", middle(&|phase| phase.failed as f64)),
        ]);
    }
    let middle = |figure: &dyn Fn(&Outage) -> f64| median(rounds.iter().map(figure));
    let (breaker_opened, recovered) =
        (middle(&|outage| outage.left_alone_ms), middle(&|outage| outage.recovered_ms));
    println!(
        "\nRedis frozen for {} s under {RATE} requests/s, {CLIENTS} keys, default settings; median of {} round(s)\n\n{table}",
        FROZEN.as_secs(),
        plan.rounds
    );
    let answered = middle(&|outage| outage.answered_ms);
    println!(
        "left alone after {breaker_opened:.0} ms; after SIGCONT the first answer came in {answered:.0} ms, and none was \
         missing after {recovered:.0} ms\n"
    );
    let added =
        |outage: &Outage, phase: usize| outage.phases[phase].quantile(0.99) - outage.phases[0].quantile(0.5);
    targets.at_most("frozen: added p99 until left alone, ms", middle(&|outage| added(outage, 1)), 20.0);
    targets.at_most("frozen: added p99 after that, ms", middle(&|outage| added(outage, 2)), 1.0);
    targets.at_most("frozen: first answer after SIGCONT, ms", answered, 1_000.0);
    targets.at_most("frozen: last missing answer after SIGCONT, ms", recovered, 1_000.0);
    targets.at_most("frozen: refused because of it", middle(&|outage| outage.refused as f64), 0.0);
    Ok(())
}

struct Outage {
    /// Before, until the breaker opens, after that, thawed.
    phases: [Phase; 4],
    left_alone_ms: f64,
    /// From SIGCONT to the first reply, and to the end of the last decision without one.
    answered_ms: f64,
    recovered_ms: f64,
    refused: usize,
}

#[derive(Default)]
struct Phase {
    /// Sorted.
    waits_ms: Vec<f64>,
    failed: usize,
}

impl Phase {
    fn quantile(&self, share: f64) -> f64 {
        let last = self.waits_ms.len().saturating_sub(1);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "an index below the length"
        )]
        let index = (last as f64 * share).ceil() as usize;
        self.waits_ms.get(index).copied().unwrap_or(f64::NAN)
    }
}

/// One decision.
struct Waited {
    from: Instant,
    to: Instant,
    outcome: Outcome,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Admitted,
    Refused,
    NoAnswer,
}

/// When what happened.
struct Times {
    frozen: Instant,
    breaker_opened: Instant,
    thawed: Instant,
}

async fn freeze_once() -> Result<Outage> {
    let server = Arc::new(host::start_server()?);
    let store = host::open(&host::settings(&server)).await?;
    let limits = Arc::new(Limits::ample(1, CLIENTS)?);
    let end = Instant::now() + CALM + FROZEN + AFTER;
    let callers =
        (0..TASKS).map(|caller| tokio::spawn(ask_steadily(store.clone(), Arc::clone(&limits), caller, end)));
    let callers: Vec<_> = callers.collect();
    tokio::time::sleep(CALM).await;
    let frozen = Instant::now();
    let freezing = tokio::task::spawn_blocking({
        let server = Arc::clone(&server);
        move || server.freeze()
    });
    let breaker_opened =
        when_breaker_opens(&store, frozen + FROZEN).await.context("the breaker did not open")?;
    freezing.await?;
    tokio::time::sleep((frozen + FROZEN).saturating_duration_since(Instant::now())).await;
    let thawed = Instant::now();
    let thawing = Arc::clone(&server);
    tokio::task::spawn_blocking(move || thawing.thaw()).await?;
    let mut all = Vec::new();
    for caller in callers {
        all.extend(caller.await?);
    }
    Ok(Outage::new(&all, &Times { frozen, breaker_opened, thawed }))
}

async fn when_breaker_opens(store: &RedisCounters, end: Instant) -> Option<Instant> {
    while Instant::now() < end {
        if store.servers().iter().any(|link| link.breaker_open) {
            return Some(Instant::now());
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    None
}

async fn ask_steadily(store: RedisCounters, limits: Arc<Limits>, caller: usize, end: Instant) -> Vec<Waited> {
    let pause = Duration::from_secs(1).mul_f64(TASKS as f64 / RATE as f64);
    tokio::time::sleep(pause.mul_f64(caller as f64 / TASKS as f64)).await;
    let mut turns = tokio::time::interval(pause);
    let (mut asked, mut waited) = (0, Vec::new());
    while Instant::now() < end {
        turns.tick().await;
        let from = Instant::now();
        asked += 1;
        let outcome = match limits.decide(&store, (caller + asked * TASKS) % CLIENTS).await {
            Ok(true) => Outcome::Admitted,
            Ok(false) => Outcome::Refused,
            Err(_) => Outcome::NoAnswer,
        };
        waited.push(Waited { from, to: Instant::now(), outcome });
    }
    waited
}

impl Outage {
    fn new(all: &[Waited], times: &Times) -> Self {
        let mut phases: [Phase; 4] = Default::default();
        for waited in all {
            let phase = &mut phases[times.phase(waited)];
            phase.waits_ms.push((waited.to - waited.from).as_secs_f64() * 1e3);
            phase.failed += usize::from(waited.outcome == Outcome::NoAnswer);
        }
        for phase in &mut phases {
            phase.waits_ms.sort_by(f64::total_cmp);
        }
        let failures = all.iter().filter(|waited| waited.outcome == Outcome::NoAnswer);
        let last_failure = failures.map(|waited| waited.to).max().unwrap_or(times.thawed);
        let answers =
            all.iter().filter(|waited| waited.outcome == Outcome::Admitted && waited.to > times.thawed);
        let first_answer = answers.map(|waited| waited.to).min().unwrap_or(times.thawed + AFTER);
        Self {
            phases,
            left_alone_ms: (times.breaker_opened - times.frozen).as_secs_f64() * 1e3,
            answered_ms: first_answer.saturating_duration_since(times.thawed).as_secs_f64() * 1e3,
            recovered_ms: last_failure.saturating_duration_since(times.thawed).as_secs_f64() * 1e3,
            refused: all.iter().filter(|waited| waited.outcome == Outcome::Refused).count(),
        }
    }

    fn said(&self) -> String {
        let [_, first, second, _] = &self.phases;
        format!(
            "p99 {:.1} ms until left alone, {:.3} ms after; answers again after {:.0} ms, all after {:.0} ms",
            first.quantile(0.99),
            second.quantile(0.99),
            self.answered_ms,
            self.recovered_ms
        )
    }
}

impl Times {
    fn phase(&self, waited: &Waited) -> usize {
        match waited.from {
            _ if waited.to < self.frozen => 0,
            from if from < self.breaker_opened => 1,
            from if from < self.thawed => 2,
            _ => 3,
        }
    }
}

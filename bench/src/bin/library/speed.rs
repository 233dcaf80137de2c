//! Time per check by contender, number of keys and number of threads.
//!
//! Keys are stored in one order and checked in another; each thread's requests are in memory in the order they are sent,
//! because a key just read from a socket is in the cache. Limits are so high that no check is refused.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use tollgate_bench::contenders::{BareMap, Check, Contender, Governor, Store};
use tollgate_bench::machine::{pin_to, resident_bytes, shuffled, thread_cpu_ns};
use tollgate_bench::report::{Table, Targets, median, median_ratio};

use crate::{Effort, Figures, measure_apart};

/// To get another column, implement [`Contender`] and add a line here.
const CONTENDERS: [(&str, Measure); 4] = [
    ("bare map", measure_case::<BareMap>),
    (GOVERNOR, measure_case::<Governor>),
    (STORE, measure_case::<Store>),
    (CHECK, measure_case::<Check>),
];
const GOVERNOR: &str = "governor";
const STORE: &str = "tollgate store";
const CHECK: &str = "tollgate check";
const SHARE_MIN: f64 = 0.9;
const RETRIES_MAX: u32 = 3;

type Measure = fn(Case) -> Result<Sample>;

/// The number of keys, of threads, and of checks per thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Case {
    keys: usize,
    threads: usize,
    checks: usize,
}

/// `cpu_ns` is CPU time per check over all threads; `wall_ns` is wall time per check; `share` is the part of that time in
/// which the threads were running.
#[derive(Clone, Copy, Debug)]
struct Sample {
    cpu_ns: f64,
    wall_ns: f64,
    share: f64,
    bytes_per_key: f64,
}

pub(crate) fn measure(of: &[&str]) -> Result<Figures> {
    let [name, keys, threads, checks] = of else { bail!("expected name, keys, threads and checks") };
    let case = Case { keys: keys.parse()?, threads: threads.parse()?, checks: checks.parse()? };
    let (_, measure) = CONTENDERS.iter().find(|(known, _)| known == name).context("unknown name")?;
    let Sample { cpu_ns, wall_ns, share, bytes_per_key } = measure(case)?;
    Ok([cpu_ns, wall_ns, share, bytes_per_key])
}

fn measure_case<C: Contender>(case: Case) -> Result<Sample> {
    let questions: Vec<Vec<String>> =
        (0..case.threads).map(|thread| shuffled(case.keys, thread).into_iter().map(name).collect()).collect();
    let resident = resident_bytes()?;
    let mut contender = C::new(case.keys)?;
    for key in 0..case.keys {
        contender.store(&name(key));
    }
    let grown = resident_bytes()?.saturating_sub(resident);

    let (cpu_ns, wall) = ask_all(&contender, &questions, case.checks)?;
    let checks = (case.checks * case.threads) as f64;
    let wall_ns = wall.as_nanos() as f64;
    Ok(Sample {
        cpu_ns: cpu_ns as f64 / checks,
        wall_ns: wall_ns / checks,
        share: cpu_ns as f64 / (wall_ns * case.threads as f64),
        bytes_per_key: grown as f64 / case.keys as f64,
    })
}

/// All threads start together. CPU times are added; the slowest thread determines the wall time.
fn ask_all<C: Contender>(contender: &C, questions: &[Vec<String>], checks: usize) -> Result<(i64, Duration)> {
    let start = Barrier::new(questions.len());
    let run = |core: usize, questions: &[String]| {
        pin_to(core)?;
        ask(contender, questions, questions.len().min(checks)); // warm-up
        start.wait();
        let (cpu, wall) = (thread_cpu_ns(), Instant::now());
        let admitted = ask(contender, questions, checks);
        let elapsed = (thread_cpu_ns() - cpu, wall.elapsed());
        ensure!(admitted == checks, "{} checks were refused", checks - admitted);
        Ok(elapsed)
    };
    let times: Vec<(i64, Duration)> = thread::scope(|scope| {
        let run = &run;
        let threads: Vec<_> = questions
            .iter()
            .enumerate()
            .map(|(core, questions)| scope.spawn(move || run(core, questions)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().map_err(|_| anyhow!("a thread panicked"))?)
            .collect::<Result<_>>()
    })?;
    let cpu_ns = times.iter().map(|(cpu_ns, _)| cpu_ns).sum();
    let wall = times.iter().map(|(_, wall)| *wall).max().unwrap_or_default();
    Ok((cpu_ns, wall))
}

fn ask<C: Contender>(contender: &C, questions: &[String], checks: usize) -> usize {
    questions.iter().cycle().take(checks).filter(|key| contender.check(black_box(key))).count()
}

pub(crate) fn name(key: usize) -> String {
    format!("user-{key:07}:/api/v1/items")
}

type Samples = BTreeMap<(Case, &'static str), Vec<Sample>>;

pub(crate) fn compare(Effort { rounds, shorten }: Effort) -> Result<()> {
    let case = |keys, threads, checks| Case { keys, threads, checks: checks / shorten };
    let cases = [
        case(1, 1, 8_000_000),
        case(1, 2, 8_000_000),
        case(1_000_000, 1, 4_000_000),
        case(1_000_000, 2, 4_000_000),
    ];
    let mut samples = Samples::new();
    for round in 1..=rounds {
        eprintln!("speed: round {round} of {rounds}");
        for case in cases {
            for (name, _) in CONTENDERS {
                let sample = measure_undisturbed(name, case).with_context(|| format!("{name}, {case:?}"))?;
                samples.entry((case, name)).or_default().push(sample);
            }
        }
    }

    println!(
        "\nOne check in the process; medians of {rounds} round(s), in brackets the ratio to {GOVERNOR}\n"
    );
    print_table("CPU ns/check", &cases, &samples, |sample| sample.cpu_ns);
    print_table("wall ns/check", &cases, &samples, |sample| sample.wall_ns);
    print_table("bytes/key", &cases[2..3], &samples, |sample| sample.bytes_per_key);
    println!("{}", targets(cases, &samples));
    let disturbed = samples.values().flatten().filter(|sample| sample.share < SHARE_MIN).count();
    if disturbed > 0 {
        println!(
            "The machine was not quiet: in {disturbed} measurements the threads shared their cores with others.\n"
        );
    }
    Ok(())
}

fn targets([one_key, _, alone, together]: [Case; 4], samples: &Samples) -> Targets {
    let cpu = |case, name| samples[&(case, name)].iter().map(|sample| sample.cpu_ns);
    let to_governor = |case, name| median_ratio(cpu(case, name), cpu(case, GOVERNOR));
    // By CPU time, as if each thread had its own core, so that other load on the machine does not count.
    let scaling = |name| 2.0 * median_ratio(cpu(alone, name), cpu(together, name));
    let mut targets = Targets::default();
    targets.at_most("store / governor, 1 key", to_governor(one_key, STORE), 1.2);
    targets.at_most("store / governor, 1 M keys", to_governor(alone, STORE), 0.6);
    targets.at_most("check / governor, 1 M keys", to_governor(alone, CHECK), 1.0);
    targets.at_least("store, two threads / one, 1 M keys", scaling(STORE), 1.7);
    targets.at_least("check, two threads / one, 1 M keys", scaling(CHECK), 1.7);
    targets
}

/// A sample in which threads had to share their cores is repeated, up to a bound.
fn measure_undisturbed(name: &str, case: Case) -> Result<Sample> {
    let mut best = sample_apart(name, case)?;
    for _ in 0..RETRIES_MAX {
        if best.share >= SHARE_MIN {
            return Ok(best);
        }
        let again = sample_apart(name, case)?;
        if again.share > best.share {
            best = again;
        }
    }
    Ok(best)
}

fn sample_apart(name: &str, case: Case) -> Result<Sample> {
    let numbers = [case.keys, case.threads, case.checks].map(|number| number.to_string());
    let [cpu_ns, wall_ns, share, bytes_per_key] =
        measure_apart("speed", [name].into_iter().chain(numbers.iter().map(String::as_str)))?;
    Ok(Sample { cpu_ns, wall_ns, share, bytes_per_key })
}

fn print_table(figure_name: &str, cases: &[Case], samples: &Samples, figure: fn(&Sample) -> f64) {
    let figures = |case: Case, name: &'static str| samples[&(case, name)].iter().map(figure);
    let mut table = Table::new([figure_name].into_iter().chain(CONTENDERS.iter().map(|(name, _)| *name)));
    for case in cases {
        let cells = CONTENDERS.iter().map(|(name, _)| {
            let ratio = median_ratio(figures(*case, name), figures(*case, GOVERNOR));
            format!("{:.1} ({ratio:.2})", median(figures(*case, name)))
        });
        let label = format!("keys {}, threads {}", case.keys, case.threads);
        table.row([label].into_iter().chain(cells));
    }
    println!("{table}");
}

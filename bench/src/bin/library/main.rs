//! What one check costs in the process: limiters as libraries, against governor and a bare map lookup.
//!
//! `library [--quick]`. Every measurement runs in a process of its own, so that one limiter's heap, hash seeds and
//! pages are not another's inheritance, and memory is what the process grew by. Keys are stored in one order
//! and asked for in another; each thread's questions lie in memory in the order they are asked, as a key just
//! read from a socket is warm. A limit is so high that no check is refused.

use std::collections::BTreeMap;
use std::fs;
use std::hint::black_box;
use std::num::NonZeroU32;
use std::process::Command;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use tollgate_bench::report::{Table, median, median_ratio};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// One limiter under test. To get another column, implement this and add a line to `CONTENDERS`.
trait Contender: Sync {
    /// An empty one, for at most `keys_max` keys.
    fn new(keys_max: usize) -> Self;

    /// Charges one unit and says whether it was admitted. Reads the clock itself, as a service would.
    #[expect(clippy::ptr_arg, reason = "governor looks up a key by its own type")]
    fn check(&self, key: &String) -> bool;

    /// Stores a key before the measurement.
    fn store(&mut self, key: &String) {
        self.check(key);
    }
}

type Measure = fn(Case) -> Result<Sample>;

const CONTENDERS: [(&str, Measure); 2] =
    [("bare map", measure::<BareMap>), ("governor", measure::<Governor>)];
const RATIOS_TO: &str = "governor";
const SHARE_MIN: f64 = 0.9;
const RETRIES_MAX: u32 = 3;

/// What any limiter with a million keys must do at least: find one. No lock, no clock, no write.
struct BareMap(hashbrown::HashMap<String, u64>);

impl Contender for BareMap {
    fn new(_: usize) -> Self {
        Self(hashbrown::HashMap::new())
    }

    fn check(&self, key: &String) -> bool {
        self.0.get(key).is_some_and(|value| *value == 0)
    }

    fn store(&mut self, key: &String) {
        self.0.insert(key.clone(), 0);
    }
}

struct Governor(DefaultKeyedRateLimiter<String>);

impl Contender for Governor {
    fn new(_: usize) -> Self {
        // One unit each nanosecond, governor's smallest step.
        let quota =
            NonZeroU32::new(1_000_000_000).map_or(Quota::per_second(NonZeroU32::MIN), Quota::per_second);
        Self(RateLimiter::keyed(quota))
    }

    fn check(&self, key: &String) -> bool {
        self.0.check_key(key).is_ok()
    }
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => compare(5, 1),
        ["--quick"] => compare(1, 4),
        ["--measure", name, keys, threads, checks] => {
            let case = Case { keys: keys.parse()?, threads: threads.parse()?, checks: checks.parse()? };
            let (_, measure) = CONTENDERS.iter().find(|(known, _)| *known == name).context("unknown name")?;
            let Sample { cpu_ns, wall_ns, share, bytes_per_key } = measure(case)?;
            println!("{cpu_ns} {wall_ns} {share} {bytes_per_key}");
            Ok(())
        }
        _ => bail!("usage: library [--quick]"),
    }
}

/// How many keys are stored, how many threads ask, how many checks each thread makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Case {
    keys: usize,
    threads: usize,
    checks: usize,
}

/// `cpu_ns` is CPU time per check, all threads together; `wall_ns` is time per check as it passed; `share` is how much
/// of that time the threads really had their cores.
#[derive(Clone, Copy, Debug)]
struct Sample {
    cpu_ns: f64,
    wall_ns: f64,
    share: f64,
    bytes_per_key: f64,
}

fn measure<C: Contender>(case: Case) -> Result<Sample> {
    let questions: Vec<Vec<String>> = (0..case.threads).map(|thread| questions(case.keys, thread)).collect();
    let resident = resident_bytes()?;
    let mut contender = C::new(case.keys);
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

/// All threads start together; CPU times are added, the slowest thread decides the wall time.
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

/// Threads that the scheduler leaves on one core do not contend, and would look twice as good.
fn pin_to(core: usize) -> Result<()> {
    let mut cores = CpuSet::new();
    cores.set(core);
    sched_setaffinity(None, &cores).with_context(|| format!("cannot run on core {core}"))
}

fn ask<C: Contender>(contender: &C, questions: &[String], checks: usize) -> usize {
    questions.iter().cycle().take(checks).filter(|key| contender.check(black_box(key))).count()
}

fn name(key: usize) -> String {
    format!("user-{key:07}:/api/v1/items")
}

/// Every key once, in an order that differs by thread.
fn questions(keys: usize, thread: usize) -> Vec<String> {
    let mut order: Vec<usize> = (0..keys).collect();
    let mut random = 0x9E37_79B9_7F4A_7C15_usize ^ (thread + 1);
    for last in (1..keys).rev() {
        // xorshift64: good enough to defeat a prefetcher
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        order.swap(last, random % (last + 1));
    }
    order.into_iter().map(name).collect()
}

fn thread_cpu_ns() -> i64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

fn resident_bytes() -> Result<usize> {
    let statm = fs::read_to_string("/proc/self/statm")?;
    let pages: usize = statm.split(' ').nth(1).context("/proc/self/statm is short")?.parse()?;
    Ok(pages * rustix::param::page_size())
}

type Samples = BTreeMap<(Case, &'static str), Vec<Sample>>;

fn compare(rounds: usize, shorten: usize) -> Result<()> {
    let case = |keys, threads, checks| Case { keys, threads, checks: checks / shorten };
    let cases = [
        case(1, 1, 8_000_000),
        case(1, 2, 8_000_000),
        case(1_000_000, 1, 4_000_000),
        case(1_000_000, 2, 4_000_000),
    ];
    let mut samples = Samples::new();
    for round in 1..=rounds {
        eprintln!("round {round} of {rounds}");
        for case in cases {
            for (name, _) in CONTENDERS {
                let sample = measure_undisturbed(name, case).with_context(|| format!("{name}, {case:?}"))?;
                samples.entry((case, name)).or_default().push(sample);
            }
        }
    }

    println!(
        "\nOne check in the process; medians of {rounds} round(s), in brackets the ratio to {RATIOS_TO}\n"
    );
    print_table("CPU ns/check", &cases, &samples, |sample| sample.cpu_ns);
    print_table("wall ns/check", &cases, &samples, |sample| sample.wall_ns);
    print_table("bytes/key", &cases[2..3], &samples, |sample| sample.bytes_per_key);
    let disturbed = samples.values().flatten().filter(|sample| sample.share < SHARE_MIN).count();
    if disturbed > 0 {
        println!(
            "The machine was not quiet: in {disturbed} measurements the threads did not have their cores.\n"
        );
    }
    Ok(())
}

/// Threads that had to share their cores did not really run together: such a sample is taken again, up to a point.
fn measure_undisturbed(name: &str, case: Case) -> Result<Sample> {
    let mut best = measure_apart(name, case)?;
    for _ in 0..RETRIES_MAX {
        if best.share >= SHARE_MIN {
            return Ok(best);
        }
        let again = measure_apart(name, case)?;
        if again.share > best.share {
            best = again;
        }
    }
    Ok(best)
}

fn measure_apart(name: &str, case: Case) -> Result<Sample> {
    let numbers = [case.keys, case.threads, case.checks].map(|number| number.to_string());
    let output = Command::new(std::env::current_exe()?)
        .args(["--measure", name])
        .args(numbers)
        .env("MIMALLOC_PURGE_DELAY", "0") // tables outgrown while filling go back at once, not some time later
        .output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout)?;
    let numbers: Vec<f64> = text.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
    let [cpu_ns, wall_ns, share, bytes_per_key] = numbers[..] else { bail!("unexpected answer {text:?}") };
    Ok(Sample { cpu_ns, wall_ns, share, bytes_per_key })
}

fn print_table(figure_name: &str, cases: &[Case], samples: &Samples, figure: fn(&Sample) -> f64) {
    let figures = |case: Case, name: &'static str| samples[&(case, name)].iter().map(figure);
    let mut table = Table::new([figure_name].into_iter().chain(CONTENDERS.iter().map(|(name, _)| *name)));
    for case in cases {
        let cells = CONTENDERS.iter().map(|(name, _)| {
            let ratio = median_ratio(figures(*case, name), figures(*case, RATIOS_TO));
            format!("{:.1} ({ratio:.2})", median(figures(*case, name)))
        });
        let label = format!("keys {}, threads {}", case.keys, case.threads);
        table.row([label].into_iter().chain(cells));
    }
    println!("{table}");
}

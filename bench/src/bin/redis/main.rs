//! The cost of a decision on shared counters, and its memory: `RedisCounters` against the cheapest script.
//!
//! `redis [--quick] [--tollgate BINARY] [cost|memory|hot|flood|frozen|service]`, run by `bench/run`. Every section
//! starts its own `redis-server` on core 0 and calls it from core 1. Figures are CPU time, calls and bytes, which are
//! reliable on a shared machine; wall time is reported only for waits.

mod cost;
mod flood;
mod floor;
mod frozen;
mod host;
mod hot;
mod load;
mod memory;
mod service;

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use tollgate_bench::report::Targets;

// As in the service.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const SECTIONS: [&str; 6] = ["cost", "memory", "hot", "flood", "frozen", "service"];

fn main() -> Result<()> {
    let plan = Plan::from_args()?;
    let mut targets = Targets::default();
    for section in &plan.sections {
        let outcome = match section.as_str() {
            "cost" => cost::measure(&plan, &mut targets),
            "memory" => memory::measure(&plan, &mut targets),
            "hot" => hot::measure(&plan, &mut targets),
            "flood" => flood::measure(&plan, &mut targets),
            "frozen" => frozen::measure(&plan, &mut targets),
            _ => {
                service::measure(&plan);
                Ok(())
            }
        };
        outcome.with_context(|| format!("section {section}"))?;
    }
    println!("{targets}");
    Ok(())
}

/// How much is measured.
struct Plan {
    quick: bool,
    rounds: u32,
    sections: Vec<String>,
    tollgate: PathBuf,
}

impl Plan {
    fn from_args() -> Result<Self> {
        let tollgate = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/release/tollgate");
        let mut plan = Self { quick: false, rounds: 5, sections: Vec::new(), tollgate: tollgate.into() };
        let mut args = std::env::args().skip(1);
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--quick" => (plan.quick, plan.rounds) = (true, 1),
                "--tollgate" => plan.tollgate = args.next().context("--tollgate needs a path")?.into(),
                section if SECTIONS.contains(&section) => plan.sections.push(arg),
                _ => bail!("usage: redis [--quick] [--tollgate BINARY] [{}]", SECTIONS.join("|")),
            }
        }
        if plan.sections.is_empty() {
            plan.sections = SECTIONS.map(str::to_owned).to_vec();
        }
        Ok(plan)
    }
}

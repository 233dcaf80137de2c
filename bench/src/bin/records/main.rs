//! What records cost and how fast they move.
//!
//! `records [--quick] [--tollgate BINARY] [cost|drain|search]`, run by `bench/run`.

mod cost;
mod drain;
mod postgres;
mod search;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};

const SECTIONS: [&str; 3] = ["cost", "drain", "search"];

/// What is measured, for how long, and the tollgate binary, which this package does not build.
struct Plan {
    is_quick: bool,
    /// Starts of the pair of servers that the target is about; others have a quarter.
    starts: u32,
    /// As long as many windows are collected before they are stored: each turn contains that work once.
    turn: Duration,
    tollgate: PathBuf,
    sections: Vec<String>,
}

impl Plan {
    fn from_args() -> Result<Self> {
        let tollgate = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/release/tollgate");
        let mut plan = Plan {
            is_quick: false,
            starts: 8,
            turn: Duration::from_secs(20),
            tollgate: tollgate.into(),
            sections: Vec::new(),
        };
        let mut args = std::env::args().skip(1);
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--quick" => (plan.is_quick, plan.starts) = (true, 3),
                "--tollgate" => plan.tollgate = args.next().context("--tollgate needs a path")?.into(),
                section if SECTIONS.contains(&section) => plan.sections.push(arg),
                _ => bail!("usage: records [--quick] [--tollgate BINARY] [{}]", SECTIONS.join("|")),
            }
        }
        Ok(plan)
    }

    fn has(&self, section: &str) -> bool {
        self.sections.is_empty() || self.sections.iter().any(|named| named == section)
    }
}

fn main() -> Result<()> {
    let plan = Plan::from_args()?;
    if plan.has("cost") {
        cost::run(&plan)?;
    }
    if plan.has("drain") {
        drain::run(plan.is_quick)?;
    }
    if plan.has("search") {
        search::run(plan.is_quick)?;
    }
    Ok(())
}

//! The cost of rules, users and keys in a database, and how soon a change is in force: `tollgate` on SQLite, PostgreSQL
//! and MariaDB.
//!
//! `sql [--quick] [--tollgate BINARY] [size|outage|spread]`, run by `bench/run`. Every section starts private servers and nodes.

mod node;
mod outage;
mod size;
mod spread;

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use tollgate_bench::report::Targets;

const SECTIONS: [&str; 3] = ["size", "outage", "spread"];

fn main() -> Result<()> {
    let plan = Plan::from_args()?;
    let mut targets = Targets::default();
    for section in &plan.sections {
        let outcome = match section.as_str() {
            "size" => size::measure(&plan, &mut targets),
            "outage" => outage::measure(&plan, &mut targets),
            _ => spread::measure(&plan, &mut targets),
        };
        outcome.with_context(|| format!("section {section}"))?;
    }
    println!("{targets}");
    Ok(())
}

/// How much is measured.
struct Plan {
    quick: bool,
    sections: Vec<String>,
    tollgate: PathBuf,
}

impl Plan {
    fn from_args() -> Result<Self> {
        let tollgate = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/release/tollgate");
        let mut plan = Self { quick: false, sections: Vec::new(), tollgate: tollgate.into() };
        let mut args = std::env::args().skip(1);
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--quick" => plan.quick = true,
                "--tollgate" => plan.tollgate = args.next().context("--tollgate needs a path")?.into(),
                section if SECTIONS.contains(&section) => plan.sections.push(arg),
                _ => bail!("usage: sql [--quick] [--tollgate BINARY] [{}]", SECTIONS.join("|")),
            }
        }
        if plan.sections.is_empty() {
            plan.sections = SECTIONS.map(str::to_owned).to_vec();
        }
        Ok(plan)
    }
}

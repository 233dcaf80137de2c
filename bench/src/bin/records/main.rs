//! What records cost and how fast they move.
//!
//! `records [--quick] [--tollgate BINARY] [cost]`, run by `bench/run`. The server runs on core 0, wrk on core 1; servers with and
//! without records alternate. The CPU time of the server includes the writers: spool and SQLite.

mod cost;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// What is measured, for how long, and the tollgate binary, which this package does not build.
struct Plan {
    rounds: u32,
    duration: Duration,
    tollgate: PathBuf,
    sections: Vec<String>,
}

impl Plan {
    fn from_args() -> Result<Self> {
        let tollgate = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/release/tollgate");
        let mut plan = Plan {
            rounds: 5,
            duration: Duration::from_secs(20),
            tollgate: tollgate.into(),
            sections: Vec::new(),
        };
        let mut args = std::env::args().skip(1);
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--quick" => (plan.rounds, plan.duration) = (2, Duration::from_secs(12)),
                "--tollgate" => plan.tollgate = args.next().context("--tollgate needs a path")?.into(),
                "cost" => plan.sections.push(arg),
                _ => bail!("usage: records [--quick] [--tollgate BINARY] [cost]"),
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
    Ok(())
}

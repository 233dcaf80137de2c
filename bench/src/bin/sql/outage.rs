//! The database is killed under load, and a node is started without it.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use tollgate_bench::report::{Table, Targets};
use tollgate_testkit::PostgresServer;

use crate::Plan;
use crate::node::{Node, Place, percentile, until};

pub fn measure(plan: &Plan, targets: &mut Targets) -> Result<()> {
    let lasting = Duration::from_secs(if plan.quick { 2 } else { 10 });
    let postgres = PostgresServer::start();
    let place = Place::new(plan, Some(&postgres.create_database()), "")?;
    let node = place.start()?;
    until(Instant::now(), "the database", || Ok(node.new_key("probe").is_ok()))?;
    let (key, _) = node.new_key("alice")?;
    until(Instant::now(), "the key", || node.knows(&key))?;
    // The snapshot is saved shortly after a change is in force.
    thread::sleep(Duration::from_secs(2));

    let mut table = Table::new(["PostgreSQL", "checks", "changed", "p50 ms", "p99 ms"]);
    let mut with = Seen::during(&node, &key, lasting)?;
    table.row(with.row("serves")?);
    postgres.kill9();
    let mut without = Seen::during(&node, &key, lasting)?;
    table.row(without.row("killed")?);
    let changed = without.changed;
    let added =
        percentile(&mut without.took, 0.99)?.as_secs_f64() - percentile(&mut with.took, 0.99)?.as_secs_f64();
    drop(node);
    let begun = Instant::now();
    let node = place.start()?;
    let started = until(begun, "a decision by the snapshot", || node.knows(&key))?;
    let mut after = Seen::during(&node, &key, lasting)?;
    table.row(after.row("killed, node started again")?);
    println!("\nThe database is killed; checks by an API key, one after another\n\n{table}");
    println!("A node that starts without the database uses its snapshot after {started:.2?}\n");
    targets.at_most("decisions changed by the outage", (changed + after.changed) as f64, 0.0);
    targets.at_most("added p99 without the database, ms", added * 1e3, 1.0);
    targets.at_most("start without the database, s", started.as_secs_f64(), 2.0);
    Ok(())
}

/// The answers to checks by one key over a period.
#[derive(Default)]
struct Seen {
    took: Vec<Duration>,
    changed: usize,
}

impl Seen {
    fn during(node: &Node, key: &str, lasting: Duration) -> Result<Self> {
        let mut seen = Self::default();
        let begun = Instant::now();
        while begun.elapsed() < lasting {
            let asked = Instant::now();
            let known = node.knows(key)?;
            seen.took.push(asked.elapsed());
            seen.changed += usize::from(!known);
        }
        ensure!(!seen.took.is_empty(), "no check was answered");
        Ok(seen)
    }

    fn row(&mut self, what: &str) -> Result<[String; 5]> {
        let mut at =
            |part| percentile(&mut self.took, part).map(|took| format!("{:.2}", took.as_secs_f64() * 1e3));
        let (middle, high) = (at(0.5)?, at(0.99)?);
        Ok([what.into(), self.took.len().to_string(), self.changed.to_string(), middle, high])
    }
}

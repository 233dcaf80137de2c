//! Two servers under the same load at the same time, on one core.
//!
//! The speed of a shared machine changes by a third within seconds. Servers that are loaded in turn get different speeds; loaded at the same
//! time, with 16 connections each, both get the same, and the ratio of their CPU times repeats within a few percent.

use std::thread;
use std::time::Duration;

use anyhow::{Result, anyhow};

use crate::process::Server;
use crate::report::{median, quartiles};
use crate::wrk;

/// A server and how it is loaded.
pub struct Loaded<'a> {
    pub server: &'a Server,
    pub url: String,
    pub shape: &'a str,
}

impl<'a> Loaded<'a> {
    /// Over plain HTTP.
    pub fn new(server: &'a Server, shape: &'a str) -> Self {
        Loaded { server, url: format!("http://{}", server.address), shape }
    }

    fn run(&self, core: usize, duration: Duration) -> Result<wrk::Load> {
        wrk::run_with(&self.url, &[self.shape], core, wrk::CONNECTIONS / 2, duration)
    }
}

/// The CPU time of a server, compared with that of another, in several turns.
#[derive(Default)]
pub struct Comparison {
    ratios: Vec<f64>,
    cpu_us: [Vec<f64>; 2],
}

impl Comparison {
    /// Loads both from `core` for a while, and adds a turn.
    pub fn add_turn(
        &mut self,
        baseline: &Loaded<'_>,
        other: &Loaded<'_>,
        core: usize,
        duration: Duration,
    ) -> Result<()> {
        let before = [baseline.server.cpu()?, other.server.cpu()?];
        let (first, second) = thread::scope(|scope| {
            let first = scope.spawn(|| baseline.run(core, duration));
            let second = other.run(core, duration);
            (first.join(), second)
        });
        let (first, second) = (first.map_err(|_| anyhow!("a load generator panicked"))??, second?);
        let used = [baseline.server.cpu()? - before[0], other.server.cpu()? - before[1]];
        let [one, two] = [(used[0], first), (used[1], second)]
            .map(|(used, load)| used.as_secs_f64() * 1e6 / load.requests);
        self.cpu_us[0].push(one);
        self.cpu_us[1].push(two);
        self.ratios.push(two / one);
        Ok(())
    }

    /// The median of the ratios.
    pub fn ratio(&self) -> f64 {
        median(self.ratios.iter().copied())
    }

    /// CPU microseconds per request of the baseline and of the other.
    pub fn cpu_us(&self) -> [f64; 2] {
        self.cpu_us.each_ref().map(|rounds| median(rounds.iter().copied()))
    }

    /// Such as `1.20 (1.18 to 1.23)`: the median and the quartiles.
    pub fn text(&self) -> String {
        let [low, high] = quartiles(self.ratios.iter().copied());
        format!("{:.2} ({low:.2} to {high:.2})", self.ratio())
    }
}

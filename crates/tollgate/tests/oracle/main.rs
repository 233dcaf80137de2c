//! The algorithms against a model in exact fractions: random traces, and the published bounds.
//!
//! The long run, 10 million decisions:
//! `ORACLE_DECISIONS=10000000 cargo test --release -p tollgate --test oracle -- --nocapture`

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a test may panic and print"
)]

mod bounds;
mod calendar;
mod compare;
mod limiter;
mod model;
mod properties;
mod random;
mod refunds;

use std::thread;

use self::compare::{Compared, Trace};

/// Steps of one trace.
const STEPS: u64 = 100;

#[expect(clippy::disallowed_methods, reason = "the length of a test run is no setting of the library")]
fn decisions_wanted() -> u64 {
    let set = std::env::var("ORACLE_DECISIONS").ok();
    set.map_or(200_000, |text| text.parse().expect("ORACLE_DECISIONS is a number"))
}

#[test]
fn every_verdict_equals_the_exact_model() {
    let wanted = decisions_wanted();
    let traces = wanted.div_ceil(STEPS);
    let halves = [0..traces / 2, traces / 2..traces];
    let run = |seeds: std::ops::Range<u64>| {
        let mut sum = Compared::default();
        for seed in seeds {
            let mut trace = Trace::new(seed);
            (0..STEPS).for_each(|_| trace.step());
            sum.decisions += trace.compared.decisions;
            sum.verdicts += trace.compared.verdicts;
            sum.retries += trace.compared.retries;
        }
        sum
    };
    let sums = thread::scope(|scope| {
        let threads = halves.map(|seeds| scope.spawn(|| run(seeds)));
        threads.map(|thread| thread.join().expect("no mismatch"))
    });
    let total = |each: fn(&Compared) -> u64| sums.iter().map(each).sum::<u64>();
    let (decisions, verdicts, retries) =
        (total(|c| c.decisions), total(|c| c.verdicts), total(|c| c.retries));
    println!(
        "{decisions} decisions ({verdicts} verdicts) compared, 0 mismatches; {retries} waits tried, 0 wrong"
    );
    assert!(decisions >= wanted.max(100_000));
    assert!(retries > decisions / 20, "only {retries} waits were verified");
}

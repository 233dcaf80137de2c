//! Time per check by number of rules. Each request matches as many rules in a large set as in a small one.

use std::hint::black_box;

use anyhow::{Result, bail, ensure};
use tollgate::Limiter;
use tollgate_bench::contenders::{Clock, counters};
use tollgate_bench::machine::{pin_to, shuffled, thread_cpu_ns};
use tollgate_bench::report::{Table, Targets, median, median_ratio};
use tollgate_bench::rules::{Question, many};

use crate::{Effort, Figures, measure_apart};

const FEW: usize = 10;
const MANY: usize = 10_000;
/// Few enough that their counters stay in the cache: the rules are measured.
const USERS: usize = 10_000;

pub(crate) fn measure(of: &[&str]) -> Result<Figures> {
    let [rules, checks] = of else { bail!("expected rules and checks") };
    let (rules, checks): (usize, usize) = (rules.parse()?, checks.parse()?);
    let questions: Vec<Question> =
        shuffled(USERS, 0).into_iter().map(|user| Question::new(user, rules)).collect();
    let limiter = Limiter::new(many(rules)?, counters(USERS));
    let clock = Clock::new();
    let ask = |checks: usize| -> Result<usize> {
        let mut admitted = 0;
        for question in questions.iter().cycle().take(checks) {
            let admits = black_box(question).ask(|request| limiter.check_now(request, clock.now()).admits());
            admitted += usize::from(admits?);
        }
        Ok(admitted)
    };
    pin_to(0)?;
    ask(USERS)?; // warm-up
    let start = thread_cpu_ns();
    let admitted = ask(checks)?;
    let cpu_ns = (thread_cpu_ns() - start) as f64 / checks as f64;
    ensure!(admitted == checks, "{} checks were refused", checks - admitted);
    Ok([cpu_ns, 0.0, 0.0, 0.0])
}

pub(crate) fn compare(Effort { rounds, shorten }: Effort) -> Result<()> {
    let checks = (4_000_000 / shorten).to_string();
    let mut figures = [Vec::new(), Vec::new()];
    for round in 1..=rounds {
        eprintln!("rules: round {round} of {rounds}");
        for (figures, rules) in figures.iter_mut().zip([FEW, MANY]) {
            figures.push(measure_apart("rules", [rules.to_string(), checks.clone()])?[0]);
        }
    }
    let [few, many] = figures;
    println!(
        "\nOne check against few and many rules, {USERS} users, four rules matched and one limit charged\n"
    );
    let mut table = Table::new(["rules", "CPU ns/check"]);
    for (rules, figures) in [(FEW, &few), (MANY, &many)] {
        table.row([rules.to_string(), format!("{:.1}", median(figures.iter().copied()))]);
    }
    println!("{table}");
    let mut targets = Targets::default();
    targets.at_most("10,000 rules / 10 rules", median_ratio(many, few), 1.5);
    println!("{targets}");
    Ok(())
}

//! The cost of one check in the process: tollgate against governor and a bare map lookup.
//!
//! `library [--quick] [speed|rules|memory]`. Every measurement runs in its own process, so that heap, hash
//! seeds and pages of one limiter do not affect another, and memory is the growth of the process.

mod memory;
mod rule_sets;
mod speed;

use std::process::Command;

use anyhow::{Result, bail, ensure};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    if let ["--measure", section, of @ ..] = &args[..] {
        let figures = match *section {
            "speed" => speed::measure(of)?,
            "rules" => rule_sets::measure(of)?,
            "memory" => memory::measure(of)?,
            other => bail!("unknown section {other}"),
        };
        println!("{}", figures.map(|figure| figure.to_string()).join(" "));
        return Ok(());
    }
    let (options, sections): (Vec<&str>, Vec<&str>) = args.iter().partition(|arg| arg.starts_with("--"));
    let effort = match options[..] {
        [] => Effort { rounds: 5, shorten: 1 },
        ["--quick"] => Effort { rounds: 1, shorten: 4 },
        _ => bail!("usage: library [--quick] [speed|rules|memory]"),
    };
    for section in if sections.is_empty() { vec!["speed", "rules", "memory"] } else { sections } {
        match section {
            "speed" => speed::compare(effort)?,
            "rules" => rule_sets::compare(effort)?,
            "memory" => memory::compare()?,
            other => bail!("unknown section {other}"),
        }
    }
    Ok(())
}

/// The number of rounds, and the factor by which each is shortened.
#[derive(Clone, Copy)]
struct Effort {
    rounds: usize,
    shorten: usize,
}

/// The result of a measurement; each section defines its figures.
type Figures = [f64; 4];

/// Runs a measurement in its own process.
fn measure_apart<S: AsRef<str>>(section: &str, of: impl IntoIterator<Item = S>) -> Result<Figures> {
    let output = Command::new(std::env::current_exe()?)
        .args(["--measure", section])
        .args(of.into_iter().map(|argument| argument.as_ref().to_owned()))
        .env("MIMALLOC_PURGE_DELAY", "0") // memory of outgrown tables is returned at once
        .output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout)?;
    let figures: Vec<f64> = text.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
    let Ok(figures) = Figures::try_from(figures) else { bail!("unexpected answer {text:?}") };
    Ok(figures)
}

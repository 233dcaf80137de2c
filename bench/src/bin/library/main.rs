//! What one check costs in the process: limiters as libraries, against governor and a bare map lookup.
//!
//! `library [--quick] [speed|rules|memory]`. Every measurement runs in a process of its own, so that one limiter's
//! heap, hash seeds and pages are not another's inheritance, and memory is what the process grew by.

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

/// How often contenders take turns, and by how much each turn is shortened.
#[derive(Clone, Copy)]
struct Effort {
    rounds: usize,
    shorten: usize,
}

/// What a measurement gives back; each section says what its figures are.
type Figures = [f64; 4];

/// Measures in a process of its own.
fn measure_apart<S: AsRef<str>>(section: &str, of: impl IntoIterator<Item = S>) -> Result<Figures> {
    let output = Command::new(std::env::current_exe()?)
        .args(["--measure", section])
        .args(of.into_iter().map(|argument| argument.as_ref().to_owned()))
        .env("MIMALLOC_PURGE_DELAY", "0") // tables outgrown while filling go back at once, not some time later
        .output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout)?;
    let figures: Vec<f64> = text.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
    let Ok(figures) = Figures::try_from(figures) else { bail!("unexpected answer {text:?}") };
    Ok(figures)
}

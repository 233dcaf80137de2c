//! `tollgate rules test`: rules tried on example requests.
//!
//! The same library that serves decides here, with counters of its own for each test and a clock that only moves
//! when a step says so. So a test that passes says what the service will do, and takes no time to say it.

mod examples;
mod trial;

use std::fmt::Write;
use std::path::Path;

use serde_json::{Value, json};

use self::examples::Example;
use self::trial::{Mismatch, Trial, try_out};
use super::file::{RuleFile, read_text};
use crate::exit::Exit;
use crate::failure::{Failure, counted};
use crate::output::{Output, Style, escape};

/// The format of test files, for `--help`.
pub(super) const HELP: &str = r#"Examples:
  tollgate rules test rules.toml tests.toml
  tollgate rules test tollgate.toml tests.toml --json

A test file:
  [[tests]]
  name = "free users get two a minute"
  request = { user = "alice", tier = "free", endpoint = "/api/v1/users", method = "GET" }

  [[tests.steps]]
  repeat = 2
  expect = { allowed = true }

  [[tests.steps]]
  expect = { allowed = false, rule = "free-tier", retry_after = 30 }

  [[tests.steps]]
  after = "30s"
  request = { method = "POST" }
  expect = { allowed = true, remaining = 0 }

A test has a name, a request and steps, and starts with fresh counters. `start` sets its
clock ("2026-03-29T00:30:00Z"; otherwise 2026-01-01T00:00:00Z). A test of one step may
have the step's keys itself.
  request  user, tenant, api_key, login, ip, tier, endpoint, method, cost, descriptors
  step     after (moves the clock), repeat, every (moves it between repetitions),
           request (what differs from the test's), expect
  expect   allowed, decision (admitted, refused, blocked), rule, limit,
           reason (over_limit, cost_exceeds_limit, cooldown),
           and of the last repetition remaining, delay, retry_after (seconds, or "never")

Exit codes: 0 all passed, 1 a test failed, 2 error."#;

pub(super) fn run(rules: &Path, tests: &Path, output: &Output) -> Result<Exit, Failure> {
    let path = tests.display().to_string();
    let rules = RuleFile::read(rules);
    let examples = read_text(tests).and_then(|text| {
        examples::read(&text).map_err(|problems| Failure::Mistakes { path: path.clone(), problems })
    });
    let (rules, examples) = (rules?, examples?);
    let trials: Vec<Trial<'_>> = examples.iter().map(|example| try_out(&rules.set, example)).collect();
    let failed = trials.iter().filter(|trial| !trial.passed()).count();
    if output.json() {
        output.value(&json!({
            "passed": trials.len() - failed,
            "failed": failed,
            "tests": trials.iter().map(trial_json).collect::<Vec<_>>(),
        }))?;
    } else {
        output.text(&told(&path, &trials, failed, output))?;
    }
    Ok(if failed == 0 { Exit::Ok } else { Exit::Refused })
}

fn told(path: &str, trials: &[Trial<'_>], failed: usize, output: &Output) -> String {
    let mut text = String::new();
    for Trial { example, requests, mismatches } in trials {
        let (style, word) = if mismatches.is_empty() { (Style::Good, "ok  ") } else { (Style::Bad, "FAIL") };
        let Example { name, .. } = example;
        let requests = output.paint(Style::Faint, &format!("({})", counted(*requests, "request")));
        let _ = writeln!(text, "{}  {} {requests}", output.paint(style, word), escape(name));
        for Mismatch { step, line, request, key, expected, actual } in mismatches {
            let place = match request {
                Some((number, of)) => format!("step {step}, request {number} of {of}"),
                None => format!("step {step}"),
            };
            let (expected, actual) = (escape(expected), escape(actual));
            let _ = writeln!(text, "      {path}:{line}: {place}: expected {key} = {expected}, got {actual}");
        }
    }
    let (style, word) = if failed == 0 { (Style::Good, "passed") } else { (Style::Bad, "failed") };
    let (tests, passed) = (counted(trials.len(), "test"), trials.len() - failed);
    let _ = writeln!(text, "{}: {tests}, {passed} passed, {failed} failed", output.paint(style, word));
    text
}

fn trial_json(trial: &Trial<'_>) -> Value {
    let mismatch = |Mismatch { step, line, request, key, expected, actual }: &Mismatch| {
        let request = request.map(|(number, _)| number);
        json!({"step": step, "line": line, "request": request, "key": key, "expected": expected, "actual": actual})
    };
    json!({
        "name": trial.example.name,
        "line": trial.example.line,
        "passed": trial.passed(),
        "requests": trial.requests,
        "mismatches": trial.mismatches.iter().map(mismatch).collect::<Vec<_>>(),
    })
}

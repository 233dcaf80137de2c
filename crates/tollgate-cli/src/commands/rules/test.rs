//! `tollgate rules test`: tests rules against sample requests.
//!
//! The service's own library makes the decisions. Each test has fresh counters and a simulated clock, so the results
//! match the service and a test takes no time.

mod cases;
mod runner;

use std::fmt::Write;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use self::runner::{Mismatch, TestResult, run_test};
use crate::input::rule_file::{RuleFiles, read_text};
use crate::output::format::plural;
use crate::output::{Style, escape};
use crate::{CliError, Exit, Output};

/// The format of test files, for `--help`.
pub(super) const HELP: &str = r#"Examples:
  tollgate rules test rules.toml tests.toml
  tollgate rules test tollgate.toml tests.toml --json
  tollgate rules test rules/*.toml tests.toml

A test file:
  [[tests]]
  name = "free users get two a minute"
  request = { user = "alice", tier = "free", endpoint = "/users", method = "GET" }

  [[tests.steps]]
  repeat = 2
  expect = { allowed = true }

  [[tests.steps]]
  expect = { allowed = false, rule = "free-tier", retry_after = 30 }

  [[tests.steps]]
  after = "30s"
  request = { method = "POST" }
  expect = { allowed = true, remaining = 0 }

A test has a name, a request and steps, and starts with fresh counters. `start`
sets its clock ("2026-03-29T00:30:00Z"; default 2026-01-01T00:00:00Z). A test
with one step may hold the keys of the step itself.
  request  user, tenant, api_key, login, ip, tier, endpoint, method, cost,
           descriptors
  step     after (advances the clock), repeat, every (advances it between
           repetitions), request (overrides fields of the test's), expect
  expect   allowed, decision (admitted, refused, blocked), rule, limit,
           reason (over_limit, cost_exceeds_limit, cooldown);
           for the last repetition also remaining, delay, retry_after
           (seconds, or "never")

Exit codes: 0 all passed, 1 a test failed, 2 error."#;

pub(super) fn run(rules: &[PathBuf], tests: &Path, output: &Output) -> Result<Exit, CliError> {
    let path = tests.display().to_string();
    let rules = RuleFiles::read(rules);
    let cases = read_text(tests).and_then(|text| {
        cases::read(&text).map_err(|problems| CliError::Invalid { path: path.clone(), problems })
    });
    let (rules, cases) = (rules?, cases?);
    let results: Vec<TestResult<'_>> = cases.iter().map(|case| run_test(&rules.set, case)).collect();
    let failed = results.iter().filter(|result| !result.passed()).count();
    let json = || {
        let tests: Vec<Value> = results.iter().map(result_json).collect();
        json!({ "passed": results.len() - failed, "failed": failed, "tests": tests })
    };
    output.result(json, || render(&path, &results, failed, output))?;
    Ok(if failed == 0 { Exit::Ok } else { Exit::Refused })
}

fn render(path: &str, results: &[TestResult<'_>], failed: usize, output: &Output) -> String {
    let mut text = String::new();
    for TestResult { case, requests, mismatches } in results {
        let (style, word) = if mismatches.is_empty() { (Style::Good, "ok  ") } else { (Style::Bad, "FAIL") };
        let requests = output.paint(Style::Faint, &format!("({})", plural(*requests, "request")));
        let _ = writeln!(text, "{}  {} {requests}", output.paint(style, word), escape(&case.name));
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
    let (tests, passed) = (plural(results.len(), "test"), results.len() - failed);
    let _ = writeln!(text, "{}: {tests}, {passed} passed, {failed} failed", output.paint(style, word));
    text
}

fn result_json(result: &TestResult<'_>) -> Value {
    let mismatch = |Mismatch { step, line, request, key, expected, actual }: &Mismatch| {
        let request = request.map(|(number, _)| number);
        json!({"step": step, "line": line, "request": request, "key": key, "expected": expected, "actual": actual})
    };
    json!({
        "name": result.case.name,
        "line": result.case.line,
        "passed": result.passed(),
        "requests": result.requests,
        "mismatches": result.mismatches.iter().map(mismatch).collect::<Vec<_>>(),
    })
}

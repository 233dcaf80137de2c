//! `tollgate rules lint`: reports all errors of a file at once.
//!
//! The service reads its settings file and imports with the same code, so a file that passes here is accepted there.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;

use serde_json::json;
use tollgate::Rule;
use tollgate::config::Problems;

use super::warnings::{Warning, warnings};
use crate::error::{CliError, ProblemLines, problem_json};
use crate::exit::Exit;
use crate::input::rule_file::RuleFile;
use crate::output::format::plural;
use crate::output::{Output, Style, escape};

pub(super) fn run(path: &Path, output: &Output) -> Result<Exit, CliError> {
    match RuleFile::read_all_sections(path) {
        Ok(file) => {
            report_valid(&file, output)?;
            Ok(Exit::Ok)
        }
        // The errors of the file are the result of the command, so they go to standard output.
        Err(CliError::Invalid { path, problems }) => {
            report_errors(&path, &problems, output)?;
            Ok(Exit::Error)
        }
        Err(error) => Err(error),
    }
}

fn report_valid(file: &RuleFile, output: &Output) -> Result<(), CliError> {
    let rules = file.set.rules();
    let warnings = warnings(rules);
    let Summary { rules, limits, layers } = Summary::new(rules);
    if output.json() {
        let warnings: Vec<_> = (warnings.iter())
            .map(|Warning { rule, reason }| json!({"line": file.line(rule), "rule": rule, "reason": reason}))
            .collect();
        return Ok(output.value(&json!({
            "file": file.path, "ok": true, "rules": rules, "limits": limits, "layers": layers,
            "for": if file.is_import { "apply" } else { "serve" }, "problems": [], "warnings": warnings,
        }))?);
    }
    let mut text = String::new();
    let label = output.paint(Style::Warning, "warning:");
    for Warning { rule, reason } in &warnings {
        let place = file.line(rule).map_or_else(|| file.path.clone(), |line| format!("{}:{line}", file.path));
        let _ = writeln!(text, "{place}: {label} rule {rule:?} {}", escape(reason));
    }
    let _ = writeln!(
        text,
        "{}: {}, {}; {}, {} in {}{}",
        file.path,
        output.paint(Style::Good, "no errors"),
        plural(warnings.len(), "warning"),
        plural(rules, "rule"),
        plural(limits, "limit"),
        plural(layers, "layer"),
        if file.is_import { ", for `rules apply`" } else { "" },
    );
    Ok(output.text(&text)?)
}

fn report_errors(path: &str, problems: &Problems, output: &Output) -> Result<(), CliError> {
    if output.json() {
        let problems: Vec<_> = problems.0.iter().map(problem_json).collect();
        let report = json!({"file": path, "ok": false, "problems": problems, "warnings": []});
        return Ok(output.value(&report)?);
    }
    let lines = ProblemLines { path, problems }.to_string();
    let lines: Vec<String> = lines.lines().map(escape).collect();
    let count = output.paint(Style::Bad, &plural(problems.0.len(), "error"));
    Ok(output.text(&format!("{}\n{path}: {count}\n", lines.join("\n")))?)
}

struct Summary {
    rules: usize,
    limits: usize,
    layers: usize,
}

impl Summary {
    fn new(rules: &[Rule]) -> Self {
        let limiting = rules.iter().filter(|rule| rule.action.limits());
        Summary {
            rules: rules.len(),
            limits: rules.iter().map(|rule| rule.limits.len()).sum(),
            layers: limiting.map(|rule| &*rule.layer).collect::<BTreeSet<_>>().len(),
        }
    }
}

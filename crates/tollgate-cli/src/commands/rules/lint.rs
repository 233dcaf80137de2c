//! `tollgate rules lint`: everything that is wrong with a rule file or a whole tollgate.toml, at once.
//!
//! The service reads its file, and what `rules apply` sends it, with the same code, so what passes here is what it takes.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;

use serde_json::json;
use tollgate::Rule;
use tollgate::config::Problems;

use super::file::RuleFile;
use super::warnings::{Warning, warnings};
use crate::exit::Exit;
use crate::failure::{Failure, Mistakes, counted, problem_json};
use crate::output::{Output, Style, escape};

pub(super) fn run(path: &Path, output: &Output) -> Result<Exit, Failure> {
    match RuleFile::read_whole(path) {
        Ok(file) => {
            report(&file, output)?;
            Ok(Exit::Ok)
        }
        // Mistakes are what was asked for, so they are the answer and not a complaint on standard error.
        Err(Failure::Mistakes { path, problems }) => {
            report_mistakes(&path, &problems, output)?;
            Ok(Exit::Error)
        }
        Err(failure) => Err(failure),
    }
}

fn report(file: &RuleFile, output: &Output) -> Result<(), Failure> {
    let rules = file.set.rules();
    let warnings = warnings(rules);
    let summary = Summary::new(rules);
    if output.json() {
        let warnings: Vec<_> = (warnings.iter())
            .map(|Warning { rule, reason }| json!({"line": file.line(rule), "rule": rule, "reason": reason}))
            .collect();
        let Summary { rules, limits, layers } = summary;
        return output.value(&json!({
            "file": file.path, "ok": true, "rules": rules, "limits": limits, "layers": layers,
            "for": if file.is_for_apply { "apply" } else { "serve" }, "problems": [], "warnings": warnings,
        }));
    }
    let mut text = String::new();
    let label = output.paint(Style::Warning, "warning:");
    for Warning { rule, reason } in &warnings {
        let place = file.line(rule).map_or_else(|| file.path.clone(), |line| format!("{}:{line}", file.path));
        let _ = writeln!(text, "{place}: {label} rule {rule:?} {}", escape(reason));
    }
    let verdict = output.paint(Style::Good, "no mistakes");
    let _ = writeln!(
        text,
        "{}: {verdict}, {}; {}, {} in {}{}",
        file.path,
        counted(warnings.len(), "warning"),
        counted(summary.rules, "rule"),
        counted(summary.limits, "limit"),
        counted(summary.layers, "layer"),
        if file.is_for_apply { ", for `rules apply`" } else { "" },
    );
    output.text(&text)
}

fn report_mistakes(path: &str, problems: &Problems, output: &Output) -> Result<(), Failure> {
    if output.json() {
        let problems: Vec<_> = problems.0.iter().map(problem_json).collect();
        return output.value(&json!({"file": path, "ok": false, "problems": problems, "warnings": []}));
    }
    let mistakes = Mistakes { path, problems }.to_string();
    let lines: Vec<String> = mistakes.lines().map(escape).collect();
    let count = output.paint(Style::Bad, &counted(problems.0.len(), "mistake"));
    output.text(&format!("{}\n{path}: {count}\n", lines.join("\n")))
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

//! `tollgate rules lint`: reports all errors of a file at once.
//!
//! The service reads its settings file and imports with the same code, so a file that passes here is accepted there.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::io;
use std::path::Path;

use serde_json::json;
use tollgate::Rule;
use tollgate::config::Problems;

use super::warnings::{Warning, no_limit_without_tier, warnings};
use crate::error::{CliError, ProblemLines, problem_json};
use crate::input::rule_file::RuleFile;
use crate::output::format::plural;
use crate::output::{Style, escape};
use crate::{Exit, Output};

const UNLIMITED: &str =
    "clients that no rule matches are not limited: add a rule without conditions, or default_limit";

pub(super) fn run(path: &Path, output: &Output) -> Result<Exit, CliError> {
    match RuleFile::read_all_sections(path) {
        Ok(file) => Ok(report_valid(&file, output)?),
        // The errors of the file are the result of the command, so they go to standard output.
        Err(CliError::Invalid { path, problems }) => {
            report_errors(&path, &problems, output)?;
            Ok(Exit::Error)
        }
        Err(error) => Err(error),
    }
}

fn report_valid(file: &RuleFile, output: &Output) -> io::Result<Exit> {
    let rules = file.set.rules();
    let mut warnings = warnings(&file.set);
    // What a server has beside the items of an import is unknown here.
    if !file.is_import {
        let has_default_tier = file.set.settings().default_tier.is_some();
        warnings.extend(no_limit_without_tier(rules).filter(|_| !has_default_tier));
    }
    let notes = file.notes.iter().cloned();
    warnings.extend(notes.map(|(rule, reason)| Warning { rule, reason }));
    let limits = rules.iter().map(|rule| rule.limits.len()).sum();
    let limiting = rules.iter().filter(|rule| rule.action.limits());
    let layers = limiting.map(|rule| &*rule.layer).collect::<BTreeSet<_>>().len();
    let unlimited = Some(UNLIMITED).filter(|_| !file.is_import && leaves_clients_unlimited(rules));
    let json = || {
        let warning = |Warning { rule, reason }: &Warning| json!({"line": file.line(rule), "rule": rule, "reason": reason});
        json!({
            "file": file.path, "ok": true, "rules": rules.len(), "limits": limits, "layers": layers,
            "for": if file.is_import { "apply" } else { "serve" }, "problems": [],
            "warnings": warnings.iter().map(warning)
                .chain(unlimited.map(|reason| json!({"line": null, "rule": null, "reason": reason})))
                .collect::<Vec<_>>(),
        })
    };
    output.result(json, || {
        let mut text = String::new();
        let label = output.paint(Style::Warning, "warning:");
        for Warning { rule, reason } in &warnings {
            let line = file.line(rule).map(|line| format!(":{line}")).unwrap_or_default();
            let _ = writeln!(text, "{}{line}: {label} rule {rule:?} {}", file.path, escape(reason));
        }
        if let Some(reason) = unlimited {
            let _ = writeln!(text, "{}: {label} {reason}", file.path);
        }
        let _ = writeln!(
            text,
            "{}: {}, {}; {}, {} in {}{}",
            file.path,
            output.paint(Style::Good, "no errors"),
            plural(warnings.len() + unlimited.iter().count(), "warning"),
            plural(rules.len(), "rule"),
            plural(limits, "limit"),
            plural(layers, "layer"),
            if file.is_import { ", for `rules apply`" } else { "" },
        );
        text
    })
}

/// Whether there are limits, but none without conditions. Then the built-in default does not apply, either.
fn leaves_clients_unlimited(rules: &[Rule]) -> bool {
    let mut limiting = rules.iter().filter(|rule| rule.enforces()).peekable();
    limiting.peek().is_some() && !limiting.any(Rule::matches_every_request)
}

fn report_errors(path: &str, problems: &Problems, output: &Output) -> io::Result<Exit> {
    let json = || {
        let problems: Vec<_> = problems.0.iter().map(problem_json).collect();
        json!({"file": path, "ok": false, "problems": problems, "warnings": []})
    };
    output.result(json, || {
        let lines = ProblemLines { path, problems }.to_string();
        let lines: Vec<String> = lines.lines().map(escape).collect();
        let count = output.paint(Style::Bad, &plural(problems.0.len(), "error"));
        format!("{}\n{path}: {count}\n", lines.join("\n"))
    })
}

//! `tollgate rules lint`: reports all errors of files at once.
//!
//! The service reads its settings file and imports with the same code, so a file that passes here is accepted there.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::io;
use std::path::PathBuf;

use serde_json::{Value as Json, json};
use tollgate::Rule;
use tollgate::config::Problems;

use super::warnings::{
    Warning, default_beside_user_rules, no_limit_without_tier, unknown_default_tier, warnings,
};
use crate::error::{CliError, ProblemLines, problem_json};
use crate::input::rule_file::{RuleFile, RuleFiles, Sections};
use crate::output::format::plural;
use crate::output::{Style, escape};
use crate::{Exit, Output};

const UNLIMITED: &str =
    "clients that no rule matches are not limited: add a rule without conditions, or default_limit";

pub(super) fn run(paths: &[PathBuf], output: &Output) -> Result<Exit, CliError> {
    let (mut files, mut invalid) = (Vec::new(), Vec::new());
    for path in paths {
        match RuleFile::read(path, Sections::All) {
            Ok(file) => files.push(file),
            Err(CliError::Invalid { path, problems }) => invalid.push((path, problems)),
            Err(error) => return Err(error),
        }
    }
    if invalid.is_empty() {
        match RuleFiles::merge(files) {
            Ok(files) => return Ok(report_valid(&files, output)?),
            Err(CliError::Invalid { path, problems }) => invalid.push((path, problems)),
            Err(error) => return Err(error),
        }
    }
    // The errors of the files are the result of the command, so they go to standard output.
    report_errors(paths, &invalid, output)?;
    Ok(Exit::Error)
}

/// All warnings about the rules.
fn rule_warnings(files: &RuleFiles) -> Vec<Warning> {
    let mut all = warnings(&files.set);
    // What a server has beside the items of an import is unknown here.
    if !files.is_import {
        let has_default_tier = files.set.settings().default_tier.is_some();
        all.extend(no_limit_without_tier(files.set.rules()).filter(|_| !has_default_tier));
        all.extend(default_beside_user_rules(&files.set));
    }
    let notes = files.notes.iter().cloned();
    all.extend(notes.map(|(rule, reason)| Warning { rule, reason }));
    all
}

/// Warnings that concern no single rule, by file.
fn file_warnings(files: &RuleFiles) -> Vec<(String, String)> {
    let unlimited = !files.is_import && leaves_clients_unlimited(files.set.rules());
    let unlimited = unlimited.then(|| (files.paths.join(", "), UNLIMITED.to_owned()));
    let tier = unknown_default_tier(&files.set).filter(|_| !files.is_import);
    let tier = tier.map(|warning| (files.paths.join(", "), warning));
    files.file_warnings.iter().cloned().chain(unlimited).chain(tier).collect()
}

fn report_valid(files: &RuleFiles, output: &Output) -> io::Result<Exit> {
    let rules = files.set.rules();
    let (of_rules, of_files) = (rule_warnings(files), file_warnings(files));
    let limits = rules.iter().map(|rule| rule.limits.len()).sum();
    let limiting = rules.iter().filter(|rule| rule.action.limits());
    let layers = limiting.map(|rule| &*rule.layer).collect::<BTreeSet<_>>().len();
    let json = || {
        let of_rule = |Warning { rule, reason }: &Warning| {
            let (file, line) = files.place(rule).unzip();
            json!({"file": file, "line": line, "rule": rule, "reason": reason})
        };
        let of_file = |(file, reason): &(String, String)| json!({"file": file, "line": null, "rule": null, "reason": reason});
        let warnings: Vec<Json> = of_rules.iter().map(of_rule).chain(of_files.iter().map(of_file)).collect();
        json!({
            "file": files.paths.join(", "), "files": files.paths, "ok": true, "rules": rules.len(), "limits": limits,
            "layers": layers, "for": if files.is_import { "apply" } else { "serve" }, "problems": [], "warnings": warnings,
        })
    };
    output.result(json, || {
        let mut text = String::new();
        let label = output.paint(Style::Warning, "warning:");
        for Warning { rule, reason } in &of_rules {
            let _ =
                writeln!(text, "{}: {label} rule {rule:?} {}", files.describe_place(rule), escape(reason));
        }
        for (file, reason) in &of_files {
            let _ = writeln!(text, "{file}: {label} {reason}");
        }
        let _ = writeln!(
            text,
            "{}: {}, {}; {}, {} in {}{}",
            files.paths.join(", "),
            output.paint(Style::Good, "no errors"),
            plural(of_rules.len() + of_files.len(), "warning"),
            plural(rules.len(), "rule"),
            plural(limits, "limit"),
            plural(layers, "layer"),
            if files.is_import { ", for `rules apply`" } else { "" },
        );
        text
    })
}

/// Whether there are limits, but none without conditions. Then the built-in default does not apply, either.
fn leaves_clients_unlimited(rules: &[Rule]) -> bool {
    let mut limiting = rules.iter().filter(|rule| rule.enforces()).peekable();
    limiting.peek().is_some() && !limiting.any(Rule::matches_every_request)
}

fn report_errors(paths: &[PathBuf], invalid: &[(String, Problems)], output: &Output) -> io::Result<Exit> {
    let json = || {
        let in_file = |(path, problems): &(String, Problems)| {
            let of = |problem| {
                let mut json = problem_json(problem);
                json["file"] = path.as_str().into();
                json
            };
            problems.0.iter().map(of).collect::<Vec<Json>>()
        };
        let problems: Vec<Json> = invalid.iter().flat_map(in_file).collect();
        let files: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
        json!({"file": files.join(", "), "files": files, "ok": false, "problems": problems, "warnings": []})
    };
    output.result(json, || {
        let report = |(path, problems): &(String, Problems)| {
            let lines = ProblemLines { path, problems }.to_string();
            let lines: Vec<String> = lines.lines().map(escape).collect();
            let count = output.paint(Style::Bad, &plural(problems.0.len(), "error"));
            format!("{}\n{path}: {count}\n", lines.join("\n"))
        };
        invalid.iter().map(report).collect()
    })
}

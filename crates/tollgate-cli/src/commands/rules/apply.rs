//! `tollgate rules diff`, `apply` and `export`: files under version control and a running server.
//!
//! The plan is the server's: an import that is only tried tells what it would change, and at which version. The same
//! import is then done on condition that the version is still that one, so what was agreed to is what is done.

use std::path::PathBuf;

use clap::{ArgAction, Args};
use http::StatusCode;
use serde_json::Value;

use super::export::Exported;
use super::sources::{FileKind, Sources};
use crate::client::{Answer, Client, Expect};
use crate::confirm::Confirm;
use crate::exit::Exit;
use crate::failure::{Failure, counted};
use crate::items::succeeded;
use crate::output::{Output, Style};
use crate::plan::{Counts, rendered};
use crate::url::query;

/// What is compared with what.
#[derive(Args)]
struct Comparison {
    /// Files with [[rules]], [[tiers]], [[quotas]], [[blocks]] and [[limits]], in TOML or JSON; - reads standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Delete what the server's database has and the files do not, within the kinds they hold
    #[arg(long, action = ArgAction::SetTrue)]
    prune: bool,
    /// Only these kinds; all that the files hold if not given
    #[arg(long, value_name = "KIND", value_delimiter = ',')]
    kinds: Vec<FileKind>,
}

/// The flags of `rules diff`.
#[derive(Args)]
pub(super) struct Diff {
    #[command(flatten)]
    comparison: Comparison,
}

/// The flags of `rules apply`.
#[derive(Args)]
pub(super) struct Apply {
    #[command(flatten)]
    comparison: Comparison,
    /// Print the plan, and change nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    confirm: Confirm,
}

/// The flags of `rules export`.
#[derive(Args)]
pub(super) struct Export {
    /// Which kinds
    #[arg(long, value_name = "KIND", value_delimiter = ',', default_value = "rules,tiers")]
    kinds: Vec<FileKind>,
}

pub(super) fn diff(diff: &Diff, client: &Client, output: &Output) -> Result<Exit, Failure> {
    let sources = Sources::read(&diff.comparison.files, &diff.comparison.kinds)?;
    let plan = import(&sources, diff.comparison.prune, None, client)?;
    print(&plan, "would be", output)?;
    Ok(if Counts::of(&plan.body).total() == 0 { Exit::Ok } else { Exit::Refused })
}

pub(super) fn apply(apply: &Apply, client: &Client, output: &Output) -> Result<Exit, Failure> {
    let Comparison { files, prune, kinds } = &apply.comparison;
    let sources = Sources::read(files, kinds)?;
    let plan = import(&sources, *prune, None, client)?;
    let counts = Counts::of(&plan.body);
    if apply.dry_run || counts.total() == 0 {
        print(&plan, "would be", output)?;
        return Ok(Exit::Ok);
    }
    if !output.json() {
        output.text(&rendered(&plan.body, output))?;
    }
    let act = format!("delete {}", counted(counts.deleted, "item"));
    if counts.deleted > 0 && !apply.confirm.agreed(&act)? {
        return Ok(Exit::Refused);
    }
    let version = plan.body["version"].as_u64().ok_or_else(|| client.no_such_list("version"))?;
    let done = import(&sources, *prune, Some(version), client)?;
    if output.json() {
        output.text(&format!("{}\n", done.text.trim_end()))?;
    } else {
        output.text(&summary(&done.body, "", output))?;
    }
    Ok(Exit::Ok)
}

pub(super) fn export(export: &Export, client: &Client, output: &Output) -> Result<Exit, Failure> {
    let mut kinds = export.kinds.clone();
    kinds.sort_unstable();
    kinds.dedup();
    let exported = Exported::ask(&kinds, client)?;
    if output.json() {
        output.value(&exported.body())?;
    } else {
        output.text(&exported.toml())?;
    }
    Ok(Exit::Ok)
}

/// Imports what the files hold, all or nothing: while the server is at a version, or only to see what would change.
fn import(sources: &Sources, prune: bool, version: Option<u64>, client: &Client) -> Result<Answer, Failure> {
    let kinds = sources.kinds();
    let pairs = [
        ("dry_run", version.is_none().then_some("true")),
        ("prune", prune.then_some("true")),
        ("kinds", Some(&*kinds)),
    ];
    let expect = version.map_or(Expect::Anything, Expect::Version);
    let path = format!("/v1/admin/import{}", query(&pairs));
    match client.post_bulk(&path, &sources.body(), expect) {
        Err(error) if error.status() == Some(StatusCode::PRECONDITION_FAILED) => Err(Failure::Overtaken),
        answer => Ok(succeeded(client, answer?)?),
    }
}

fn print(plan: &Answer, tense: &str, output: &Output) -> Result<(), Failure> {
    if output.json() {
        return output.text(&format!("{}\n", plan.text.trim_end()));
    }
    output.text(&rendered(&plan.body, output))?;
    output.text(&summary(&plan.body, tense, output))
}

/// `2 created, 1 updated, 0 deleted, 7 unchanged`.
fn summary(body: &Value, tense: &str, output: &Output) -> String {
    let counts = Counts::of(body);
    let unchanged = body["unchanged"].as_u64();
    let unchanged = unchanged.map(|count| format!(", {count} unchanged")).unwrap_or_default();
    if counts.total() == 0 {
        return format!("{}{unchanged}\n", output.paint(Style::Good, "no changes"));
    }
    let gap = if tense.is_empty() { "" } else { " " };
    let Counts { created, updated, deleted } = counts;
    format!("{created} {tense}{gap}created, {updated} updated, {deleted} deleted{unchanged}\n")
}

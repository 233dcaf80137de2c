//! `tollgate rules diff` and `apply`: files under version control, applied to a server.
//!
//! The server makes the plan: a dry-run import returns the changes and the version they apply to. The real import is
//! conditional on that version, so exactly the confirmed plan is applied.

use std::io;
use std::path::PathBuf;

use clap::{ArgAction, Args};
use http::StatusCode;
use serde_json::Value;

use crate::client::url::query;
use crate::client::{ApiResponse, Precondition};
use crate::commands::items::DryRunArg;
use crate::input::confirm::ConfirmArgs;
use crate::input::import_set::ImportSet;
use crate::item_kind::ItemKind;
use crate::output::Style;
use crate::output::changes::{self, Counts};
use crate::output::format::plural;
use crate::{CliError, Client, Exit, Output};

#[derive(Args)]
pub(crate) struct ImportArgs {
    /// Files with [[rules]], [[tiers]], [[quotas]], [[blocks]] and [[limits]], in TOML or JSON; - reads standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Delete items of the server's database that are not in the files, within the kinds that the files hold
    #[arg(long, action = ArgAction::SetTrue)]
    prune: bool,
    /// Only these kinds; all in the files by default
    #[arg(long, value_name = "KIND", value_delimiter = ',')]
    kinds: Vec<ItemKind>,
}

#[derive(Args)]
pub(crate) struct Apply {
    #[command(flatten)]
    import: ImportArgs,
    #[command(flatten)]
    dry: DryRunArg,
    #[command(flatten)]
    confirm: ConfirmArgs,
}

pub(super) fn diff(args: &ImportArgs, client: &Client, output: &Output) -> Result<Exit, CliError> {
    let imports = ImportSet::read(&args.files, &args.kinds)?;
    let plan = import(&imports, args.prune, None, client)?;
    print(&plan, &imports, output, || plan_text(&plan.body, output))?;
    Ok(if Counts::of(&plan.body).total() == 0 { Exit::Ok } else { Exit::Refused })
}

pub(super) fn apply(apply: &Apply, client: &Client, output: &Output) -> Result<Exit, CliError> {
    let ImportArgs { files, prune, kinds } = &apply.import;
    let imports = ImportSet::read(files, kinds)?;
    let plan = import(&imports, *prune, None, client)?;
    let counts = Counts::of(&plan.body);
    if apply.dry.dry_run || counts.total() == 0 {
        return Ok(print(&plan, &imports, output, || plan_text(&plan.body, output))?);
    }
    if !output.json() {
        output.text(&changes::render(&plan.body, output))?;
    }
    let action = format!("delete {}", plural(counts.deleted, "item"));
    if counts.deleted > 0 && !apply.confirm.confirmed(&action)? {
        return Ok(Exit::Refused);
    }
    let version = plan.body["version"].as_u64().ok_or_else(|| client.missing_field("version"))?;
    let applied = import(&imports, *prune, Some(version), client)?;
    Ok(print(&applied, &imports, output, || summary(&applied.body, false, output))?)
}

/// Imports all items or none: if the configuration is still at `version`, or as a dry run without one.
pub(super) fn import(
    imports: &ImportSet,
    prune: bool,
    version: Option<u64>,
    client: &Client,
) -> Result<ApiResponse, CliError> {
    let kinds = imports.kinds();
    let pairs = [
        ("dry_run", version.is_none().then_some("true")),
        ("prune", prune.then_some("true")),
        ("kinds", Some(&*kinds)),
    ];
    let precondition = version.map_or(Precondition::None, Precondition::Version);
    let path = format!("/v1/admin/import{}", query(&pairs));
    match client.bulk().post(&path, &imports.body(), precondition) {
        Err(error) if error.status() == Some(StatusCode::PRECONDITION_FAILED) => Err(CliError::Conflict),
        response => Ok(response?),
    }
}

/// Prints a plan or a result, with the warnings of the server and those about the files.
fn print(
    response: &ApiResponse,
    imports: &ImportSet,
    output: &Output,
    text: impl FnOnce() -> String,
) -> io::Result<Exit> {
    if imports.warnings.is_empty() {
        output.warnings(&response.body);
        return output.response(&response.text, text);
    }
    let mut body = response.body.clone();
    let of_server = body["warnings"].as_array().cloned().unwrap_or_default();
    body["warnings"] =
        of_server.into_iter().chain(imports.warnings.iter().map(|one| one.as_str().into())).collect();
    output.warnings(&body);
    output.result(|| body, text)
}

fn plan_text(body: &Value, output: &Output) -> String {
    changes::render(body, output) + &summary(body, true, output)
}

/// `2 created, 1 updated, 0 deleted, 7 unchanged`; for a plan `2 to create, 1 to update, 0 to delete, 7 unchanged`.
fn summary(body: &Value, is_plan: bool, output: &Output) -> String {
    let Counts { created, updated, deleted } = Counts::of(body);
    let unchanged = body["unchanged"].as_u64();
    let unchanged = unchanged.map(|count| format!(", {count} unchanged")).unwrap_or_default();
    if created + updated + deleted == 0 {
        return format!("{}{unchanged}\n", output.paint(Style::Good, "no changes"));
    }
    if is_plan {
        return format!("{created} to create, {updated} to update, {deleted} to delete{unchanged}\n");
    }
    format!("{created} created, {updated} updated, {deleted} deleted{unchanged}\n")
}

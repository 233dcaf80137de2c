//! `tollgate rules`: rule files, offline, and the rules of a server.

mod apply;
mod enable;
mod export;
mod history;
mod lint;
mod list;
mod test;
mod warnings;

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::items::{DeleteArgs, Items, NameArg, PutArgs};
use crate::input::item_file;
use crate::item_kind::ItemKind;
use crate::{CliError, Client, Exit, Output};

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Report all errors of rule files, and warn about suspicious rules
    #[command(after_help = "\
Examples:
  tollgate rules lint rules.toml
  tollgate rules lint tollgate.toml --json
  tollgate rules lint rules/*.toml
  generate-rules | tollgate rules lint -

The file is read as `serve` reads it, but without the environment. Files that it
names (certificates, key_secret_file) are checked too. A file with [[quotas]],
[[blocks]] or [[limits]], with tier descriptions, or in JSON is read as `rules
apply` reads it, without the items on the server. Several files are read as one:
a name or a setting may occur only once.

Warnings: rules that never apply, limits that never decide, and rules that
refuse every request.

Exit codes: 0 no errors (there may be warnings), 2 errors.")]
    Lint {
        /// Rule files, import files or a settings file; - reads standard input
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
    /// List the rules of files, or those of the server
    #[command(after_help = "\
Examples:
  tollgate rules list rules.toml
  tollgate rules list tollgate.toml --json
  tollgate rules list
  tollgate rules list --prefix api- --action block --limit 20

With files, the command works offline. Without one, it lists the rules of the
server: those of its settings file (source: file) and those of its database
(source: database).")]
    List(list::List),
    /// Test rules against sample requests with a simulated clock
    #[command(after_help = test::HELP)]
    Test {
        /// Rule files or a settings file; - reads standard input
        #[arg(required = true)]
        rules: Vec<PathBuf>,
        /// Test file: sample requests and expected decisions
        tests: PathBuf,
    },
    #[command(flatten)]
    Remote(RemoteCommand),
}

/// Subcommands that need a server.
#[derive(Subcommand)]
pub(crate) enum RemoteCommand {
    /// Print one rule of the server as TOML
    #[command(after_help = "\
Examples:
  tollgate rules get free-tier
  tollgate rules get free-tier --json
  tollgate rules get free-tier > r.toml")]
    Get(NameArg),
    /// Create or replace a rule on the server
    #[command(after_help = "\
Examples:
  tollgate rules put rule.toml
  tollgate rules put rule.toml --dry-run
  tollgate rules put rule.toml --if-version 12
  generate-rule | tollgate rules put -

JSON with a `version`, as printed by `rules get --json`, is written only if the
rule is still at that version.")]
    Put(Put),
    /// Delete a rule on the server
    #[command(after_help = "\
Examples:
  tollgate rules delete no-bots
  tollgate rules delete no-bots --yes
  tollgate rules delete no-bots --dry-run")]
    Delete {
        #[command(flatten)]
        rule: NameArg,
        #[command(flatten)]
        delete: DeleteArgs,
    },
    /// Switch rules of the server on, all of them or none
    #[command(after_help = "\
Examples:
  tollgate rules enable free-tier
  tollgate rules enable login-guard signup-guard --dry-run")]
    Enable(enable::Enable),
    /// Switch rules of the server off, all of them or none
    #[command(after_help = "\
Examples:
  tollgate rules disable free-tier
  tollgate rules disable login-guard signup-guard --dry-run

A disabled rule is listed, but never matches.")]
    Disable(enable::Enable),
    /// List the changes of a rule, newest first
    #[command(after_help = "\
Examples:
  tollgate rules history free-tier
  tollgate rules history free-tier --limit 5 --json
  tollgate audit show 1204            the difference of one entry")]
    History(history::History),
    /// Restore an earlier definition of a rule, also of a deleted one
    #[command(after_help = "\
Examples:
  tollgate rules rollback free-tier --to 41 --dry-run
  tollgate rules rollback free-tier --to 41
  tollgate rules rollback free-tier --to 41 --yes

The command prints the difference and asks for confirmation. The definition
is written like any other change: checked, audited and revocable.

Exit codes: 0 restored or no changes, 1 not confirmed, 2 error.")]
    Rollback(history::Rollback),
    /// Show what `apply` would change on the server
    #[command(after_help = "\
Examples:
  tollgate rules diff rules.toml
  tollgate rules diff rules/*.toml --prune

Exit codes: 0 no changes, 1 changes, 2 error.")]
    Diff(apply::ImportArgs),
    /// Apply files to the server, all of them or nothing
    #[command(after_help = "\
Examples:
  tollgate rules apply rules.toml
  tollgate rules apply rules/*.toml --dry-run
  tollgate rules apply rules/*.toml --prune --yes
  generate-rules | tollgate rules apply -

Files hold [[rules]] and optionally [[tiers]], [[quotas]], [[blocks]] and
[[limits]] (per user and endpoint).

- Items that are not in the files stay unchanged. With --prune they are
  deleted, but only those of kinds that occur in the files. `rules = []` counts
  as a kind without items: --prune then deletes all rules.
- Deletions ask for confirmation.
- Applying the same files again changes nothing.
- If the configuration changes between plan and apply, nothing is applied.

Exit codes: 0 applied or no changes, 1 not confirmed, 2 error.")]
    Apply(apply::Apply),
    /// Print the rules and tiers of the server's database as TOML for `apply`
    #[command(after_help = "\
Examples:
  tollgate rules export > rules.toml
  tollgate rules export --kinds rules,tiers,quotas,blocks
  tollgate rules export --json")]
    Export(export::Export),
}

#[derive(Args)]
pub(crate) struct Put {
    /// File with one [[rules]] entry, or its JSON; - reads standard input
    file: PathBuf,
    #[command(flatten)]
    options: PutArgs,
}

/// Runs a subcommand. Those that work on files do not call `connect`.
pub(crate) fn run(
    command: &Command,
    output: &Output,
    connect: impl FnOnce() -> Result<Client, CliError>,
) -> Result<Exit, CliError> {
    match command {
        Command::Lint { files } => lint::run(files, output),
        Command::List(list) => match &*list.files {
            [] => {
                list::list(list, &Items { kind: ItemKind::Rule, tenant: None, client: &connect()?, output })
            }
            [_, ..] if list.limit.limit.is_some() => {
                Err(CliError::Arguments("--limit cannot be combined with a file".to_owned()))
            }
            files => list::list_files(files, output),
        },
        Command::Test { rules, tests } => test::run(rules, tests, output),
        Command::Remote(command) => run_remote(command, &connect()?, output),
    }
}

fn run_remote(command: &RemoteCommand, client: &Client, output: &Output) -> Result<Exit, CliError> {
    let items = Items { kind: ItemKind::Rule, tenant: None, client, output };
    match command {
        RemoteCommand::Get(rule) => items.print_toml(&rule.name),
        RemoteCommand::Put(put) => items.put_item(&item_file::read(&put.file, ItemKind::Rule)?, &put.options),
        RemoteCommand::Delete { rule, delete } => items.delete(&rule.name, delete),
        RemoteCommand::Enable(names) => enable::run(names, true, &items),
        RemoteCommand::Disable(names) => enable::run(names, false, &items),
        RemoteCommand::History(history) => history::history(history, &items),
        RemoteCommand::Rollback(rollback) => history::rollback(rollback, &items),
        RemoteCommand::Diff(diff) => apply::diff(diff, client, output),
        RemoteCommand::Apply(apply) => apply::apply(apply, client, output),
        RemoteCommand::Export(export) => export::run(export, client, output),
    }
}

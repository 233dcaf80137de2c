//! `tollgate rules`: rule files, offline, and the rules of a running server.

mod apply;
mod apply_file;
mod export;
pub(super) mod file;
mod lint;
mod list;
mod server;
mod sources;
mod test;
mod warnings;

use std::path::PathBuf;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand};

use super::item_file;
use crate::client::Client;
use crate::confirm::Confirm;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::items::{self, Kind, Writing};
use crate::output::Output;

/// The flags of `rules`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tollgate rules lint rules.toml                 find mistakes, offline
  tollgate rules test rules.toml tests.toml      try rules on example requests, offline
  tollgate rules list                            the rules of the server
  tollgate rules diff rules/*.toml               what apply would change there
  tollgate rules apply rules/*.toml --prune      make the server's rules those of the files")]
pub(crate) struct Rules {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Find every mistake of a rule file, a file for `rules apply` or a whole tollgate.toml, and rules that are hardly meant
    #[command(after_help = "\
Examples:
  tollgate rules lint rules.toml
  tollgate rules lint tollgate.toml --json
  generate-rules | tollgate rules lint -

The file is read as `serve` reads it, without the environment: files that it names (certificates, key_secret_file) are
looked at too. One with [[quotas]], [[blocks]] or [[limits]], with descriptions of tiers, or in JSON is read as
`rules apply` reads it, without what else is on the server. Warned of are rules that can never apply, limits that never
decide, and rules that refuse everything.

Exit codes: 0 no mistakes (there may be warnings), 2 mistakes.")]
    Lint {
        /// A rule file, a file for `rules apply` or a whole tollgate.toml; - reads standard input
        file: PathBuf,
    },
    /// Print the rules of a file in the order they are looked at, or those of the server by name
    #[command(after_help = "\
Examples:
  tollgate rules list rules.toml
  tollgate rules list tollgate.toml --json
  tollgate rules list
  tollgate rules list --prefix api- --action block --limit 20

With a file this is done offline; without one the server is asked, which knows the rules of its own file
(source: file) and those of its database.")]
    List(server::List),
    /// Try rules on example requests, with a clock of their own
    #[command(after_help = test::HELP)]
    Test {
        /// A rule file or a whole tollgate.toml; - reads standard input
        rules: PathBuf,
        /// The example requests and what is expected of them
        tests: PathBuf,
    },
    /// Print one rule of the server as TOML
    #[command(after_help = "\
Examples:
  tollgate rules get free-tier
  tollgate rules get free-tier --json
  tollgate rules get free-tier > r.toml; $EDITOR r.toml; tollgate rules put r.toml")]
    Get {
        /// Its name
        #[arg(value_parser = NonEmptyStringValueParser::new())]
        name: String,
    },
    /// Create a rule on the server, or replace it
    #[command(after_help = "\
Examples:
  tollgate rules put rule.toml
  tollgate rules put rule.toml --dry-run
  tollgate rules put rule.toml --if-version 12
  echo '{\"name\": \"no-bots\", \"action\": \"block\", \"when\": {\"ips\": [\"192.0.2.0/24\"]}}' | tollgate rules put -

JSON with a `version`, as `rules get --json` prints it, is only put while the server is at that version.")]
    Put(server::Put),
    /// Delete a rule of the server
    #[command(after_help = "\
Examples:
  tollgate rules delete no-bots
  tollgate rules delete no-bots --yes
  tollgate rules delete no-bots --dry-run")]
    Delete {
        /// Its name
        #[arg(value_parser = NonEmptyStringValueParser::new())]
        name: String,
        #[command(flatten)]
        confirm: Confirm,
        #[command(flatten)]
        writing: Writing,
    },
    /// Print what `apply` would change on the server
    #[command(after_help = "\
Examples:
  tollgate rules diff rules.toml
  tollgate rules diff rules/*.toml --prune

Exit codes: 0 nothing would change, 1 something would, 2 error.")]
    Diff(apply::Diff),
    /// Bring the server to what the files say: print the plan, then do all of it or nothing
    #[command(after_help = "\
Examples:
  tollgate rules apply rules.toml
  tollgate rules apply rules/*.toml --dry-run
  tollgate rules apply rules/*.toml --prune --yes
  generate-rules | tollgate rules apply -

The files hold [[rules]], and if you like [[tiers]], [[quotas]], [[blocks]] and [[limits]] of single users. What they
do not name stays, unless --prune is given: then it is deleted, within the kinds that the files hold (`rules = []`
holds none of them, so all rules go). Deleting is asked about. Applying the same files again changes nothing. If somebody else changes the
configuration between the plan and the deed, nothing is done.

Exit codes: 0 done or nothing to do, 1 somebody said no, 2 error.")]
    Apply(apply::Apply),
    /// Print the rules and tiers of the server's database as TOML that `apply` takes
    #[command(after_help = "\
Examples:
  tollgate rules export > rules.toml
  tollgate rules export --kinds rules,tiers,quotas,blocks
  tollgate rules export --json")]
    Export(apply::Export),
}

/// A file is read offline; a client is only asked for where there is none.
pub(crate) fn run(
    rules: &Rules,
    output: &Output,
    client: impl FnOnce() -> Result<Client, Failure>,
) -> Result<Exit, Failure> {
    match &rules.command {
        Command::Lint { file } => lint::run(file, output),
        Command::List(list) => match &list.file {
            Some(_) if list.count.limit.is_some() => Err(Failure::Arguments(
                "--limit is for the rules of a server: a file is listed whole".to_owned(),
            )),
            Some(file) => list::run(file, output),
            None => server::list(list, &client()?, output),
        },
        Command::Test { rules, tests } => test::run(rules, tests, output),
        Command::Get { name } => item_file::print(&client()?, Kind::Rule, name, output),
        Command::Put(put) => server::put(put, &client()?, output),
        Command::Delete { name, confirm, writing } => {
            items::delete(&client()?, Kind::Rule, name, (confirm, writing), output)
        }
        Command::Diff(diff) => apply::diff(diff, &client()?, output),
        Command::Apply(apply) => apply::apply(apply, &client()?, output),
        Command::Export(export) => apply::export(export, &client()?, output),
    }
}

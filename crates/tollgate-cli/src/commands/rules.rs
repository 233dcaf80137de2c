//! `tollgate rules`: rule files, offline.

mod file;
mod lint;
mod list;
mod test;
mod warnings;

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Output;

/// The flags of `rules`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tollgate rules lint rules.toml
  tollgate rules list tollgate.toml
  tollgate rules test rules.toml tests.toml")]
pub(crate) struct Rules {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Find every mistake of a rule file, and rules that can never apply
    #[command(after_help = "\
Examples:
  tollgate rules lint rules.toml
  tollgate rules lint tollgate.toml --json
  generate-rules | tollgate rules lint -

Exit codes: 0 no mistakes (there may be warnings), 2 mistakes.")]
    Lint {
        /// A rule file or a whole tollgate.toml; - reads standard input
        file: PathBuf,
    },
    /// Print the rules in the order they are looked at
    #[command(after_help = "\
Examples:
  tollgate rules list rules.toml
  tollgate rules list tollgate.toml --json")]
    List {
        /// A rule file or a whole tollgate.toml; - reads standard input
        file: PathBuf,
    },
    /// Try rules on example requests, with a clock of their own
    #[command(after_help = test::HELP)]
    Test {
        /// A rule file or a whole tollgate.toml; - reads standard input
        rules: PathBuf,
        /// The example requests and what is expected of them
        tests: PathBuf,
    },
}

pub(crate) fn run(rules: &Rules, output: &Output) -> Result<Exit, Failure> {
    match &rules.command {
        Command::Lint { file } => lint::run(file, output),
        Command::List { file } => list::run(file, output),
        Command::Test { rules, tests } => test::run(rules, tests, output),
    }
}

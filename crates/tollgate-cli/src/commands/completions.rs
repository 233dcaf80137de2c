//! `tollgate completions`: shell completions.

use clap::{Args, Command};
use clap_complete::Shell;

use crate::{CliError, Exit, Output};

#[derive(Args)]
#[command(after_help = "\
Examples:
  tollgate completions bash > /etc/bash_completion.d/tollgate
  tollgate completions zsh > ~/.zfunc/_tollgate
  tollgate completions fish > ~/.config/fish/completions/tollgate.fish")]
pub(crate) struct Completions {
    /// Shell
    shell: Shell,
}

pub(crate) fn run(
    completions: &Completions,
    mut command: Command,
    output: &Output,
) -> Result<Exit, CliError> {
    // Into a buffer first: the generator panics if a write fails, for example on a closed pipe.
    let mut script = Vec::new();
    clap_complete::generate(completions.shell, &mut command, "tollgate", &mut script);
    output.bytes(&script)?;
    Ok(Exit::Ok)
}

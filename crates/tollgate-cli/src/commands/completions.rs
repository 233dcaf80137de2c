//! `tollgate completions`: what a shell needs to complete our flags.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::args::Cli;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Output;

/// The flags of `completions`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tollgate completions bash > /etc/bash_completion.d/tollgate
  tollgate completions zsh > ~/.zfunc/_tollgate
  tollgate completions fish > ~/.config/fish/completions/tollgate.fish")]
pub(crate) struct Completions {
    /// The shell
    shell: Shell,
}

pub(crate) fn run(completions: &Completions, output: &Output) -> Result<Exit, Failure> {
    // Into a buffer first: the generator panics where a write fails, and a closed pipe is no error of ours.
    let mut script = Vec::new();
    clap_complete::generate(completions.shell, &mut Cli::command(), "tollgate", &mut script);
    output.bytes(&script)?;
    Ok(Exit::Ok)
}

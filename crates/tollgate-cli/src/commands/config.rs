//! `tollgate config`: the settings in force.

use clap::{Args, Subcommand};
use serde_json::Value;

use super::serve::SettingsFlags;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Output;

/// The flags of `config`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tollgate config show
  tollgate config show --config tollgate.toml")]
pub(crate) struct Config {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Print the settings that `serve` would use with the same flags, without secrets
    #[command(after_help = "\
Examples:
  tollgate config show
  tollgate config show --config tollgate.toml --json
  tollgate config show --listen 0.0.0.0:8080 --data-dir /var/lib/tollgate
  TOLLGATE_LOG__LEVEL=debug tollgate config show

Defaults are spelled out, and short forms of rules shown as the rules they stand for. With --json the sections and
their keys are objects, named as in the file.")]
    Show(SettingsFlags),
}

pub(crate) fn run(config: &Config, output: &Output) -> Result<Exit, Failure> {
    let Command::Show(flags) = &config.command;
    let shown = flags.load()?.show();
    if output.json() {
        // What is shown is TOML that was just written: secrets are masked in one place.
        let settings: Value =
            toml::from_str(&shown).map_err(|error| Failure::Arguments(error.to_string()))?;
        output.value(&settings)?;
    } else {
        output.text(&shown)?;
    }
    Ok(Exit::Ok)
}

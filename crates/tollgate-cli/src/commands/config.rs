//! `tollgate config`: the effective settings.

use clap::{Args, Subcommand};
use serde_json::Value;

use super::serve::SettingsFlags;
use crate::error::CliError;
use crate::exit::Exit;
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

The output includes defaults, and expands short forms to full rules. With --json it has the same sections and keys
as the file.")]
    Show(SettingsFlags),
}

pub(crate) fn run(config: &Config, output: &Output) -> Result<Exit, CliError> {
    let Command::Show(flags) = &config.command;
    let shown = flags.load()?.to_toml();
    if output.json() {
        // Converted from the TOML, so that secrets are masked in one place only.
        let settings: Value =
            toml::from_str(&shown).map_err(|error| CliError::Arguments(error.to_string()))?;
        output.value(&settings)?;
    } else {
        output.text(&shown)?;
    }
    Ok(Exit::Ok)
}

//! `tollgate config`: the effective settings and their schema.

use clap::Subcommand;
use tollgate_server::config::settings::schema;

use super::serve::SettingsFlags;
use crate::output::toml;
use crate::{CliError, Exit, Output};

/// The order of the sections.
const SECTIONS: [&str; 12] = [
    "enabled",
    "on_store_failure",
    "server",
    "counters",
    "database",
    "auth",
    "callers",
    "log",
    "api",
    "identity",
    "progressive_penalties",
    "rules",
];

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Print the settings that `serve` would use with the same flags, without secrets
    #[command(after_help = "\
Examples:
  tollgate config show
  tollgate config show --config tollgate.toml --json
  tollgate config show --listen 0.0.0.0:8080 --data-dir /var/lib/tollgate
  TOLLGATE_LOG__LEVEL=debug tollgate config show

The output includes defaults of settings, and expands short forms to full rules.
With --json it has the same sections and keys as the file.
Warnings go to standard error.")]
    Show(SettingsFlags),
    /// Print the JSON Schema of the settings file, for editors
    #[command(after_help = "\
Examples:
  tollgate config schema > tollgate.schema.json

An editor with TOML support applies it to a file whose first line is
  #:schema ./tollgate.schema.json
`tollgate init` writes both files.")]
    Schema,
}

pub(crate) fn run(command: &Command, output: &Output) -> Result<Exit, CliError> {
    let Command::Show(flags) = command else {
        output.text(schema())?;
        return Ok(Exit::Ok);
    };
    let settings = flags.load()?;
    settings.warnings.iter().for_each(|warning| output.warning(warning));
    let settings = settings.to_json();
    Ok(output.result(|| settings.clone(), || toml::document(&settings, &SECTIONS))?)
}

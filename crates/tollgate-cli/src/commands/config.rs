//! `tollgate config`: the settings in force.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::json;
use tollgate_server::settings::{Flags, Settings, environment};

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
    /// Print the settings that `serve` would use: file, environment and defaults, without secrets
    #[command(after_help = "\
Examples:
  tollgate config show
  tollgate config show --config tollgate.toml
  TOLLGATE_LOG__LEVEL=debug tollgate config show")]
    Show {
        /// The settings file
        #[arg(long, value_name = "FILE", env = "TOLLGATE_CONFIG")]
        config: Option<PathBuf>,
    },
}

pub(crate) fn run(config: &Config, output: &Output) -> Result<Exit, Failure> {
    let Command::Show { config } = &config.command;
    let flags = Flags { config: config.clone(), ..Flags::default() };
    let shown = Settings::load(&flags, environment())?.show();
    if output.json() {
        output.value(&json!({ "toml": shown }))?;
    } else {
        output.text(&shown)?;
    }
    Ok(Exit::Ok)
}

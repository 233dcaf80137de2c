//! The `tollgate` command: parses the arguments, runs the command, and returns its exit code.

mod args;
mod client;
mod commands;
mod error;
mod exit;
mod input;
mod item_kind;
mod output;
mod secret;
mod synonyms;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use crate::args::{Cli, Command};
use crate::client::Client;
use crate::error::CliError;
use crate::exit::Exit;
use crate::input::connection;
use crate::output::{Color, Output};

/// Checks over HTTP allocate, and mimalloc is faster than the system allocator there.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // Before clap parses: its error messages repeat the arguments.
    if secret::contains_misplaced_key(std::env::args_os().skip(1)) {
        let json = std::env::args_os().any(|argument| argument == "--json");
        let error = CliError::Arguments(format!("an argument {}", secret::FULL_KEY));
        return error.report(&Output::new(json, Color::Auto)).into();
    }
    let Cli { global, command } = Cli::parse();
    let output = Output::new(global.json, global.color);
    synonyms::note_used(std::env::args_os().skip(1), &output);
    let connect = || {
        let client = connection::connect(&global.connection)?;
        if let Some(warning) = client.warning() {
            output.warning(&warning);
        }
        Ok(client)
    };
    let exit = run(&command, &output, connect).unwrap_or_else(|error| error.report(&output));
    exit.into()
}

/// Runs a command. Only commands that need a server call `connect`, so offline commands work with an invalid URL.
fn run(
    command: &Command,
    output: &Output,
    connect: impl FnOnce() -> Result<Client, CliError>,
) -> Result<Exit, CliError> {
    match command {
        Command::Serve(flags) => commands::serve::run(flags, output),
        Command::Gateway(gateway) => commands::gateway::run(gateway, output),
        Command::Init(init) => commands::init::run(init, output),
        Command::Doctor(doctor) => commands::doctor::run(doctor, output),
        Command::Backup(backup) => commands::backup::run(backup, output),
        Command::Restore(restore) => commands::restore::run(restore, output),
        Command::Migrate(migrate) => commands::migrate::run(migrate, output),
        Command::Check(request) => commands::check::run(request, &connect()?, output),
        Command::Status(request) => commands::status::run(request, &connect()?, output),
        Command::Reset(target) => commands::reset::run(target, &connect()?, output),
        Command::Explain(request) => commands::explain::run(request, &connect()?, output),
        Command::Inspect(inspect) => commands::inspect::run(inspect, &connect()?, output),
        Command::Top(top) => commands::top::run(top, &connect()?, output),
        Command::Rules(rules) => commands::rules::run(rules, output, connect),
        Command::Tiers(tiers) => commands::tiers::run(tiers, &connect()?, output),
        Command::Quotas(quotas) => commands::quotas::run(quotas, &connect()?, output),
        Command::Users(users) => commands::users::run(users, &connect()?, output),
        Command::Keys(keys) => commands::keys::run(keys, &connect()?, output),
        Command::Limits(limits) => commands::limits::run(limits, &connect()?, output),
        Command::Penalties(penalties) => commands::penalties::run(penalties, &connect()?, output),
        Command::Upstreams => commands::upstreams::run(&connect()?, output),
        Command::Reload => commands::reload::run(&connect()?, output),
        Command::Audit(audit) => commands::audit::run(audit, &connect()?, output),
        Command::Decisions(decisions) => commands::decisions::run(decisions, output, connect),
        Command::Archive(archive) => commands::archive::run(archive, output),
        Command::Usage(usage) => commands::usage::run(usage, &connect()?, output),
        Command::Report(report) => commands::report::run(report, &connect()?, output),
        Command::Config(config) => commands::config::run(config, output),
        Command::Completions(completions) => commands::completions::run(completions, Cli::command(), output),
        Command::Man(man) => commands::man::run(man, Cli::command(), output),
    }
}

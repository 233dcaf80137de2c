//! The `tollgate` command: parse, dispatch, and turn the outcome into an exit code.

mod args;
mod client;
mod commands;
mod confirm;
mod connection;
mod exit;
mod failure;
mod items;
mod moment;
mod output;
mod plan;
mod record;
mod render;
mod secret;
mod table;
mod toml_text;
mod url;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Cli, Color, Command};
use crate::client::Client;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Output;

/// The server allocates on every check that a protocol asks it to: the system allocator is the slower one there.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    if secret::has_stray_key(std::env::args_os().skip(1)) {
        let json = std::env::args_os().any(|argument| argument == "--json");
        let failure = Failure::Arguments(format!("an argument {}", secret::WHOLE));
        return Output::new(json, Color::Auto).failure(&failure).into();
    }
    let Cli { global, command } = Cli::parse();
    let output = Output::new(global.json, global.color);
    let client = || {
        let client = connection::client(&global)?;
        if let Some(warning) = client.warning() {
            output.warning(&warning);
        }
        Ok(client)
    };
    let exit = run(&command, &output, client).unwrap_or_else(|failure| output.failure(&failure));
    exit.into()
}

/// Commands that talk to a server ask for the client, so that a wrong URL troubles no other command.
fn run(
    command: &Command,
    output: &Output,
    client: impl FnOnce() -> Result<Client, Failure>,
) -> Result<Exit, Failure> {
    match command {
        Command::Serve(serve) => commands::serve::run(serve, output),
        Command::Migrate(migrate) => commands::migrate::run(migrate, output),
        Command::Check(facts) => commands::check::run(facts, &client()?, output),
        Command::Status(place) => commands::status::run(place, &client()?, output),
        Command::Reset(place) => commands::reset::run(place, &client()?, output),
        Command::Explain(facts) => commands::explain::run(facts, &client()?, output),
        Command::Inspect(inspect) => commands::inspect::run(inspect, &client()?, output),
        Command::Rules(rules) => commands::rules::run(rules, output, client),
        Command::Tiers(tiers) => commands::tiers::run(tiers, &client()?, output),
        Command::Quotas(quotas) => commands::quotas::run(quotas, &client()?, output),
        Command::Users(users) => commands::users::run(users, &client()?, output),
        Command::Keys(keys) => commands::keys::run(keys, &client()?, output),
        Command::Audit(audit) => commands::audit::run(audit, &client()?, output),
        Command::Config(config) => commands::config::run(config, output),
        Command::Completions(completions) => commands::completions::run(completions, output),
        Command::Man(man) => commands::man::run(man, output),
    }
}

//! The command line: global flags and the tree of commands.

use clap::{Args, Parser, Subcommand};

use crate::commands::audit::Audit;
use crate::commands::backup::Backup;
use crate::commands::completions::Completions;
use crate::commands::doctor::Doctor;
use crate::commands::explain::ExplainArgs;
use crate::commands::gateway::Gateway;
use crate::commands::init::Init;
use crate::commands::inspect::Inspect;
use crate::commands::man::Man;
use crate::commands::migrate::Migrate;
use crate::commands::report::Report;
use crate::commands::request_args::{RequestArgs, TargetArgs};
use crate::commands::restore::Restore;
use crate::commands::serve::SettingsFlags;
use crate::commands::top::Top;
use crate::commands::usage::UsageArgs;
use crate::commands::{archive, config, decisions, keys, limits, penalties, quotas, rules, tiers, users};
use crate::input::connection::ConnectionArgs;
use crate::output::Color;

/// A rate limiter whose every decision is exact, shared and explainable.
#[derive(Parser)]
#[command(name = "tollgate", version, max_term_width = 100, after_help = EXAMPLES)]
pub(crate) struct Cli {
    /// Flags of every command.
    #[command(flatten)]
    pub(crate) global: Global,
    /// The command to run.
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXAMPLES: &str = "\
Examples:
  tollgate serve                               run with embedded storage
  tollgate rules lint rules.toml               report errors in a rule file
  tollgate rules test rules.toml tests.toml    test rules offline
  tollgate check --user alice --endpoint /a    check a request
  tollgate explain --user alice --endpoint /a  show the decision rule by rule
  tollgate rules apply rules/*.toml            update a server's rules
  tollgate keys create ci --scope check        create an API key, shown once
  tollgate users block alice --reason spam     block a user

Server URL and key are read from --url and --key, then TOLLGATE_URL and
TOLLGATE_KEY, then ~/.config/tollgate/config.toml (`url`, and `key` or
`key_file`; the file must not be readable by others). For https://, --ca-file,
--cert-file and --cert-key-file can be set in the same file (`ca_file`,
`cert_file`, `cert_key_file`) or with TOLLGATE_CA_FILE, TOLLGATE_CERT_FILE and
TOLLGATE_CERT_KEY_FILE.

Tables fit the terminal, or COLUMNS if it is set.

Exit codes: 0 admitted or done, 1 refused, 2 error.";

/// Flags of every command.
#[derive(Args)]
pub(crate) struct Global {
    /// Print JSON
    #[arg(long, global = true, help_heading = "Global options")]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) connection: ConnectionArgs,
    /// When to use colors; auto: on a terminal, unless `NO_COLOR` is set
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto", help_heading = "Global options")]
    pub(crate) color: Color,
}

/// The command to run.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Run the service
    #[command(after_help = "\
Examples:
  tollgate serve
  tollgate serve --config tollgate.toml
  tollgate serve --listen 0.0.0.0:8080 --data-dir /var/lib/tollgate
  TOLLGATE_LOG__LEVEL=debug tollgate serve

Flags override the environment (TOLLGATE_SECTION__KEY), which overrides the
file.")]
    Serve(SettingsFlags),
    /// Protect an API: run the service with a reverse proxy in front of it
    #[command(after_help = "\
Examples:
  tollgate gateway --upstream http://127.0.0.1:3000
  tollgate gateway --upstream http://10.0.0.5:3000 --upstream http://10.0.0.6:3000
  tollgate gateway --config tollgate.toml

Without --upstream the routes are those of [proxy] in the settings file.")]
    Gateway(Gateway),
    /// Write a commented settings file
    Init(Init),
    /// Check the database, Redis, key secret, clocks and versions that a node depends on
    Doctor(Doctor),
    /// Update the database schema, as `serve` does at startup
    Migrate(Migrate),
    /// Back up the settings and the data directory of a node, also while it runs
    Backup(Backup),
    /// Restore a backup into an empty data directory
    Restore(Restore),
    /// Check a request against its limits and count it
    #[command(
        override_usage = "tollgate check [OPTIONS] --endpoint <ENDPOINT>\n       \
        <--user|--api-key|--ip|--tenant|--login> <CLIENT>",
        after_help = "\
Examples:
  tollgate check --user alice --endpoint /api/v1/users
  tollgate check --api-key K --endpoint /search --method GET --cost 5 --json
  tollgate check --ip 203.0.113.7 --endpoint /login --descriptor plan=eu
  tollgate check --user alice --endpoint /api/v1/users --limit 10 --window 60

Exit codes: 0 admitted, 1 refused or blocked, 2 error. --cost 0 counts nothing."
    )]
    Check(RequestArgs),
    /// Show how much of a limit is left, without counting anything
    #[command(
        override_usage = "tollgate status [OPTIONS] --endpoint <ENDPOINT>\n       \
        <--user|--api-key|--ip|--tenant|--login> <CLIENT>",
        after_help = "\
Examples:
  tollgate status --user alice --endpoint /api/v1/users
  tollgate status --user alice --endpoint /api/v1/users --json

Without --cost, the status is that of a request of cost 1."
    )]
    Status(RequestArgs),
    /// Reset the counters of a client (requires a key)
    #[command(
        override_usage = "tollgate reset [OPTIONS] --endpoint <ENDPOINT>\n       \
        <--user|--api-key|--ip|--tenant|--login> <CLIENT>",
        after_help = "\
Examples:
  TOLLGATE_KEY=$(cat data/admin.key) \\
    tollgate reset --user alice --endpoint /api/v1/users"
    )]
    Reset(TargetArgs),
    /// Explain rule by rule how a request would be decided
    #[command(
        override_usage = "tollgate explain [OPTIONS] --endpoint <ENDPOINT>\n       \
        <--user|--api-key|--ip|--tenant|--login> <CLIENT>",
        after_help = "\
Examples:
  tollgate explain --user alice --tier free --endpoint /api/users --method GET
  tollgate explain --ip 203.0.113.7 --endpoint /login --json
  tollgate explain --user alice --endpoint /login --all

Exit codes: 0 whatever the decision, 2 error."
    )]
    Explain(ExplainArgs),
    /// Show the live counters of a user, key or address (requires a key)
    #[command(after_help = "\
Examples:
  TOLLGATE_KEY=$(cat data/admin.key) tollgate inspect alice
  tollgate inspect ip:203.0.113.7 --endpoint /login
  tollgate inspect api_key:K --tier pro --json")]
    Inspect(Inspect),
    /// Show the busiest and most refused clients, live (requires a key)
    Top(Top),
    /// Lint and test rule files; manage the rules of a server
    #[command(
        subcommand,
        after_help = "\
Examples:
  tollgate rules lint rules.toml                 report errors, offline
  tollgate rules test rules.toml tests.toml      test rules offline
  tollgate rules list                            list the rules of the server
  tollgate rules diff rules/*.toml               show what apply would change
  tollgate rules apply rules/*.toml --prune      make the server match"
    )]
    Rules(rules::Command),
    /// Manage tiers (requires a key)
    #[command(
        subcommand,
        after_help = "\
Examples:
  tollgate tiers list
  tollgate tiers put premium --limit 1000 --window 1m
  tollgate tiers delete trial"
    )]
    Tiers(tiers::Command),
    /// Manage per-user quotas (requires a key)
    #[command(
        subcommand,
        after_help = "\
Examples:
  tollgate quotas list --tier pro
  tollgate quotas set alice --tier pro --requests-per-day 50000
  tollgate quotas delete alice"
    )]
    Quotas(quotas::Command),
    /// Block and unblock users, keys and networks (requires a key)
    #[command(
        subcommand,
        after_help = "\
Examples:
  tollgate users block alice --reason 'scraping' --until 24h
  tollgate users unblock alice
  tollgate users blocked"
    )]
    Users(users::Command),
    /// Create, list, rotate and revoke API keys (requires a key)
    #[command(
        subcommand,
        after_help = "\
Examples:
  tollgate keys create 'checkout service' --scope check
  tollgate keys list --user alice
  tollgate keys rotate 4kq2mz7ehv3xw5ta --overlap 24h
  tollgate keys revoke 4kq2mz7ehv3xw5ta"
    )]
    Keys(keys::Command),
    /// Manage limits of single users on single endpoints (requires a key)
    #[command(
        subcommand,
        after_help = "\
Examples:
  tollgate limits set alice /api/search --limit 100 --window 1m
  tollgate limits list --user alice
  tollgate limits delete alice /api/search"
    )]
    Limits(limits::Command),
    /// List and pardon clients in cooldown (requires a key)
    #[command(
        subcommand,
        after_help = "\
Examples:
  tollgate penalties list
  tollgate penalties pardon alice"
    )]
    Penalties(penalties::Command),
    /// List the upstreams of the reverse proxy and their health (requires a key)
    #[command(after_help = "\
Examples:
  tollgate upstreams
  tollgate upstreams --json")]
    Upstreams,
    /// Make the server read its settings file again (requires a key)
    #[command(after_help = "\
Examples:
  tollgate reload
  tollgate reload --json

An invalid file changes nothing: the error lists everything wrong in it.")]
    Reload,
    /// Show the audit log (requires a key)
    Audit(Audit),
    /// Search and follow the decision log (requires a key)
    #[command(
        subcommand,
        after_help = "\
Examples:
  tollgate decisions search --since 1h --decision throttled
  tollgate decisions tail --client alice"
    )]
    Decisions(decisions::Command),
    /// Archive records beyond their retention; list, verify, restore and prune the archive
    #[command(
        subcommand,
        after_help = "\
Examples:
  tollgate archive list
  tollgate archive run --config tollgate.toml
  tollgate archive verify
  tollgate archive restore --since 2026-01-01T00:00:00Z --into sqlite:///tmp/old.db
  tollgate archive prune --dry-run"
    )]
    Archive(archive::Command),
    /// Show the requests of a client by period and route (requires a key)
    Usage(UsageArgs),
    /// Write a report of traffic and refusals as an HTML file (requires a key)
    Report(Report),
    /// Print the effective settings, or their schema
    #[command(
        subcommand,
        after_help = "\
Examples:
  tollgate config show
  tollgate config show --config tollgate.toml
  tollgate config schema > tollgate.schema.json"
    )]
    Config(config::Command),
    /// Print shell completions
    Completions(Completions),
    /// Print the manual page, or write one page per command
    Man(Man),
}

//! The command line as it is written: global flags and commands.

use std::ffi::OsString;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::commands::audit::Audit;
use crate::commands::completions::Completions;
use crate::commands::config::Config;
use crate::commands::inspect::Inspect;
use crate::commands::keys::Keys;
use crate::commands::man::Man;
use crate::commands::migrate::Migrate;
use crate::commands::quotas::Quotas;
use crate::commands::rules::Rules;
use crate::commands::serve::Serve;
use crate::commands::tiers::Tiers;
use crate::commands::users::Users;
use crate::commands::{Counters, Facts};
use crate::secret::Secret;

/// A rate limiter whose every decision is exact, shared and explainable.
#[derive(Parser)]
#[command(name = "tollgate", version, after_help = EXAMPLES)]
pub(crate) struct Cli {
    /// Flags of every command.
    #[command(flatten)]
    pub(crate) global: Global,
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXAMPLES: &str = "\
Examples:
  tollgate serve                                          run the service, with everything embedded
  tollgate rules lint rules.toml                          find every mistake of a rule file
  tollgate rules test rules.toml tests.toml               try rules on example requests, offline
  tollgate check --user alice --endpoint /api/v1/users    ask whether a request may pass
  tollgate explain --user alice --endpoint /api/v1/users  see why, rule by rule
  tollgate rules apply rules/*.toml                       bring a server's rules to what the files say
  tollgate keys create ci --scope check                   make an API key, shown once
  tollgate users block alice --reason scraping --for 24h  keep someone out

The server and the key come from --url and --key, else from TOLLGATE_URL and TOLLGATE_KEY, else from
~/.config/tollgate/config.toml (`url`, and `key` or `key_file`; nobody else may read it). For https:// the files of
--ca-file, --cert-file and --cert-key-file come from there too (`ca_file`, `cert_file`, `cert_key_file`), or from
TOLLGATE_CA_FILE, TOLLGATE_CERT_FILE and TOLLGATE_CERT_KEY_FILE.

Exit codes: 0 admitted or done, 1 refused, 2 error.";

/// Flags of every command.
#[derive(Args)]
pub(crate) struct Global {
    /// Print JSON
    #[arg(long, global = true, help_heading = "Global options")]
    pub(crate) json: bool,
    /// Where tollgate listens; `http://127.0.0.1:8080` if nothing says otherwise
    #[arg(
        long,
        global = true,
        env = "TOLLGATE_URL",
        hide_env_values = true,
        help_heading = "Global options"
    )]
    pub(crate) url: Option<String>,
    /// The caller's or administrator's key; better in `TOLLGATE_KEY` or a file, for others can see command lines
    #[arg(
        long,
        global = true,
        env = "TOLLGATE_KEY",
        hide_env_values = true,
        help_heading = "Global options"
    )]
    pub(crate) key: Option<Secret>,
    /// For https://: certificates (PEM) of authorities that are trusted beside the system's
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "TOLLGATE_CA_FILE",
        hide_env_values = true,
        help_heading = "Global options"
    )]
    pub(crate) ca_file: Option<OsString>,
    /// For https://: the certificate (PEM) that is shown to a server that asks for one
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "TOLLGATE_CERT_FILE",
        hide_env_values = true,
        help_heading = "Global options"
    )]
    pub(crate) cert_file: Option<OsString>,
    /// The private key (PEM) of that certificate, if it is not in the same file
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "TOLLGATE_CERT_KEY_FILE",
        hide_env_values = true,
        help_heading = "Global options"
    )]
    pub(crate) cert_key_file: Option<OsString>,
    /// When to use colours; auto: on a terminal, unless `NO_COLOR` is set
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto", help_heading = "Global options")]
    pub(crate) color: Color,
}

/// When to use colours. Its variants have no comments of their own: clap would print them, one to a line.
#[derive(Copy, Clone, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Color {
    Auto,
    Always,
    Never,
}

/// What to do.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Run the service, with everything embedded
    Serve(Serve),
    /// Bring the schema of the database up to date, as `serve` does when it starts
    Migrate(Migrate),
    /// Ask whether a request may pass, and count it
    #[command(after_help = "\
Examples:
  tollgate check --user alice --endpoint /api/v1/users
  tollgate check --api-key K --endpoint /search --method GET --cost 5 --json
  tollgate check --ip 203.0.113.7 --endpoint /login --descriptor plan=eu
  tollgate check --user alice --endpoint /api/v1/users --limit 10 --window 60

Exit codes: 0 admitted, 1 refused or blocked, 2 error. A cost of 0 only looks.")]
    Check(Facts),
    /// See how much of its limit a user has left, without counting anything
    #[command(after_help = "\
Examples:
  tollgate status --user alice --endpoint /api/v1/users
  tollgate status --user alice --endpoint /api/v1/users --json")]
    Status(Facts),
    /// Forget what a user has used (needs a key)
    #[command(after_help = "\
Examples:
  TOLLGATE_KEY=$(cat data/admin.key) tollgate reset --user alice --endpoint /api/v1/users")]
    Reset(Counters),
    /// See what would become of a request and why, rule by rule, without counting it
    #[command(after_help = "\
Examples:
  tollgate explain --user alice --tier free --endpoint /api/v1/users --method GET
  tollgate explain --ip 203.0.113.7 --endpoint /login --json

Exit codes: 0 whatever the decision would be, 2 error.")]
    Explain(Facts),
    /// Print the live counters of a user, key or address in plain words (needs a key)
    #[command(after_help = "\
Examples:
  TOLLGATE_KEY=$(cat data/admin.key) tollgate inspect alice
  tollgate inspect ip:203.0.113.7 --endpoint /login
  tollgate inspect api_key:K --tier pro --json")]
    Inspect(Inspect),
    /// Check and try rule files, offline; manage the rules of a server (needs a key)
    Rules(Rules),
    /// Manage the plans of clients (needs a key)
    Tiers(Tiers),
    /// Manage what single users may do (needs a key)
    Quotas(Quotas),
    /// Keep users, keys, tenants and networks out, and let them in again (needs a key)
    Users(Users),
    /// Make, list, rotate and revoke API keys (needs a key)
    Keys(Keys),
    /// See who changed what (needs a key)
    Audit(Audit),
    /// Print the settings in force
    Config(Config),
    /// Print completions for a shell
    Completions(Completions),
    /// Print the manual page, or write one page per command
    Man(Man),
}

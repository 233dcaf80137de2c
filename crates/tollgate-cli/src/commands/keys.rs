//! `tollgate keys`: API keys.
//!
//! A new key is printed alone on standard output, so that a script can capture it. Everything else goes to standard error.

mod import;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::{Value, json};

use super::items::{DeleteArgs, DryRunArg, Items};
use super::list::{Columns, LimitArg};
use crate::client::ApiResponse;
use crate::input::confirm::ConfirmArgs;
use crate::input::expiry::{Expiry, parse_duration, parse_expiry};
use crate::item_kind::ItemKind;
use crate::output::format::{format_time, joined, text_of};
use crate::output::table::Cell;
use crate::output::{Style, escape};
use crate::{CliError, Client, Exit, Output};

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Create a key and print it; it is shown only once
    #[command(after_help = "\
Examples:
  tollgate keys create 'mobile app' --user alice --tier pro --expires 90d
  tollgate keys create 'checkout service' --scope check,read --tenant acme
  tollgate keys create batch --user bob --expires 2027-01-31T00:00:00Z
  KEY=$(tollgate keys create ci --scope admin --quiet)

A key with scopes can call the API. A key without scopes only identifies a
client.")]
    Create(Box<Create>),
    /// Import keys of another system, or their SHA-256 hashes
    #[command(after_help = "\
Examples:
  tollgate keys import keys.jsonl
  tollgate keys import keys.jsonl --dry-run
  psql -At -c \"SELECT json_build_object('name', name, 'key_sha256', hash,
    'user_id', user_id) FROM api_keys\" | tollgate keys import -

Each line is a JSON object with name, key or key_sha256, and the fields of
POST /v1/admin/keys:
  {\"name\": \"shop\", \"key\": \"sk_live_51Hx0000000\", \"user_id\": \"alice\"}
Keys are hashed before they are sent. Keys that were imported before are
skipped, so an interrupted import can be run again.

Exit codes: 0 imported, 2 some lines are invalid; the others are imported.")]
    Import(import::Import),
    /// List keys
    #[command(after_help = "\
Examples:
  tollgate keys list
  tollgate keys list --user alice --active
  tollgate keys list --active --expires-before 30d
  tollgate keys list --tenant acme --limit 20 --json")]
    List {
        /// Only keys of this user
        #[arg(long, alias = "user-id")]
        user: Option<String>,
        /// Only keys of this tenant
        #[arg(long)]
        tenant: Option<String>,
        /// Only keys of this tier
        #[arg(long)]
        tier: Option<String>,
        /// Only keys that are neither revoked nor expired
        #[arg(long)]
        active: bool,
        /// Only keys that expire before this time, or within this duration
        #[arg(long, value_name = "TIME|SPAN", value_parser = parse_expiry)]
        expires_before: Option<Expiry>,
        #[command(flatten)]
        limit: LimitArg,
    },
    /// Print the details of a key, without its secret
    #[command(after_help = "\
Examples:
  tollgate keys show 4kq2mz7ehv3xw5ta
  tollgate keys show 4kq2mz7ehv3xw5ta --json")]
    Show(KeyIdArg),
    /// Replace the secret of a key and print it; it is shown only once
    #[command(after_help = "\
Examples:
  tollgate keys rotate 4kq2mz7ehv3xw5ta
  tollgate keys rotate 4kq2mz7ehv3xw5ta --overlap 7d --quiet
  tollgate keys rotate 4kq2mz7ehv3xw5ta --overlap 0s --yes

Id, owner and usage stay the same.")]
    Rotate(Rotate),
    /// Revoke a key permanently; it remains listed
    #[command(after_help = "\
Examples:
  tollgate keys revoke 4kq2mz7ehv3xw5ta
  tollgate keys revoke 4kq2mz7ehv3xw5ta --yes")]
    Revoke {
        #[command(flatten)]
        key: KeyIdArg,
        #[command(flatten)]
        confirm: ConfirmArgs,
        #[command(flatten)]
        dry: DryRunArg,
    },
    /// Delete a key; it is no longer listed
    #[command(after_help = "\
Examples:
  tollgate keys delete 4kq2mz7ehv3xw5ta
  tollgate keys delete 4kq2mz7ehv3xw5ta --yes")]
    Delete {
        #[command(flatten)]
        key: KeyIdArg,
        #[command(flatten)]
        delete: DeleteArgs,
    },
}

#[derive(Args)]
pub(crate) struct KeyIdArg {
    /// Key id: the part between tg_ and the second _
    #[arg(value_parser = parse_id)]
    id: String,
}

#[derive(Args)]
pub(crate) struct Rotate {
    #[command(flatten)]
    key: KeyIdArg,
    /// How long the old secret stays valid; 0s invalidates it immediately
    #[arg(long, value_name = "SPAN", value_parser = parse_duration, default_value = "24h")]
    overlap: String,
    /// Print only the key
    #[arg(long, short)]
    quiet: bool,
    #[command(flatten)]
    confirm: ConfirmArgs,
    #[command(flatten)]
    dry: DryRunArg,
}

/// The flags of `keys create`. They serialize to the request body.
#[derive(Args, Serialize)]
pub(crate) struct Create {
    /// Name, for example what the key is used for
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    name: String,
    /// User that the key belongs to
    #[arg(long, alias = "user-id")]
    #[serde(rename = "user_id")]
    user: Option<String>,
    /// Tenant (organization) that the key belongs to
    #[arg(long)]
    tenant: Option<String>,
    /// Tier of the key
    #[arg(long)]
    tier: Option<String>,
    /// What the key may do; separate several with commas or repeat the flag
    #[arg(long = "scope", value_name = "SCOPE", value_delimiter = ',', value_parser = SCOPES)]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    scopes: Vec<String>,
    /// Requests per second
    #[arg(long, value_name = "N")]
    requests_per_second: Option<u32>,
    /// Requests per hour
    #[arg(long, value_name = "N")]
    requests_per_hour: Option<u32>,
    /// Requests per day
    #[arg(long, value_name = "N")]
    requests_per_day: Option<u32>,
    /// Burst size: requests allowed at once
    #[arg(long, alias = "burst-size", value_name = "N")]
    burst: Option<u32>,
    /// Expiry: a duration (24h, 90d) or a time (2027-01-31T12:00:00Z); never by default
    #[arg(long, value_name = "WHEN", value_parser = parse_expiry)]
    #[serde(flatten, serialize_with = "expiry_field")]
    expires: Option<Expiry>,
    /// Print only the key
    #[arg(long, short)]
    #[serde(skip)]
    quiet: bool,
    #[command(flatten)]
    #[serde(skip)]
    dry: DryRunArg,
}

const SCOPES: [&str; 6] = ["check", "read", "config", "reset", "override", "admin"];

#[allow(clippy::ref_option, reason = "the signature that serde expects")]
fn expiry_field<S: serde::Serializer>(expires: &Option<Expiry>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(expires.iter().map(|expires| match expires {
        Expiry::After(duration) => ("expires_in", duration),
        Expiry::At(time) => ("expires_at", time),
    }))
}

/// Parses `ID` or `tg_ID`.
fn parse_id(text: &str) -> Result<String, &'static str> {
    let id = text.strip_prefix("tg_").unwrap_or(text);
    if id.is_empty() { Err("must not be empty") } else { Ok(id.to_owned()) }
}

const COLUMNS: Columns = Columns {
    headings: &[
        "ID",
        "NAME",
        "STATUS",
        "USER",
        "TENANT",
        "TIER",
        "SCOPES",
        "EXPIRES",
        "LAST USED",
        "REQUESTS",
    ],
    optional: &["REQUESTS", "LAST USED", "TENANT", "TIER"],
    row,
};

/// The fields that `show` prints first.
const FIELDS: [&str; 16] = [
    "id",
    "name",
    "status",
    "user_id",
    "tenant",
    "tier",
    "scopes",
    "requests_per_second",
    "requests_per_hour",
    "requests_per_day",
    "burst",
    "expires_at",
    "last_used_at",
    "requests_total",
    "revoked_at",
    "revoked_by",
];

pub(crate) fn run(command: &Command, client: &Client, output: &Output) -> Result<Exit, CliError> {
    let items = Items { kind: ItemKind::Key, tenant: None, client, output };
    match command {
        Command::Create(create) => {
            let response = items.create(&**create, &create.dry)?;
            print_new_key(&items, &response, "created", None, create.quiet, &create.dry)
        }
        Command::Import(import) => import::run(import, &items),
        Command::List { user, tenant, tier, active, expires_before, limit } => {
            let filters = [
                ("user_id", user.as_deref()),
                ("tenant", tenant.as_deref()),
                ("tier", tier.as_deref()),
                ("active", active.then_some("true")),
                ("expires_before", expires_before.as_ref().map(Expiry::as_str)),
            ];
            items.list(&filters, limit, &COLUMNS)
        }
        Command::Show(key) => items.print_fields(&key.id, &FIELDS),
        Command::Rotate(rotate) => run_rotate(rotate, &items),
        Command::Revoke { key, confirm, dry } => {
            let id = &key.id;
            if !dry.dry_run && !confirm.confirmed(&format!("revoke key {id} permanently"))? {
                return Ok(Exit::Refused);
            }
            let response = items.post_action(id, "revoke", &json!({}), dry)?;
            items.report_written("revoked", id, &response, dry)
        }
        Command::Delete { key, delete } => items.delete(&key.id, delete),
    }
}

fn run_rotate(rotate: &Rotate, items: &Items<'_>) -> Result<Exit, CliError> {
    let Rotate { key, overlap, quiet, confirm, dry } = rotate;
    let id = &key.id;
    let immediately = tollgate::config::values::parse_span(overlap).is_ok_and(|span| span.as_micros() == 0);
    let action = format!("invalidate the current secret of key {id} immediately");
    if immediately && !dry.dry_run && !confirm.confirmed(&action)? {
        return Ok(Exit::Refused);
    }
    let response = items.post_action(id, "rotate", &json!({ "overlap": overlap }), dry)?;
    let note = if immediately {
        "the old secret is no longer valid".to_owned()
    } else {
        format!("the old secret stays valid for {overlap}")
    };
    print_new_key(items, &response, "rotated", Some(&note), *quiet, dry)
}

/// Prints the key to standard output, and notes about it to standard error.
fn print_new_key(
    items: &Items<'_>,
    response: &ApiResponse,
    action: &str,
    note: Option<&str>,
    quiet: bool,
    dry: &DryRunArg,
) -> Result<Exit, CliError> {
    let output = items.output;
    let id = text_of(&response.body["id"]);
    if dry.dry_run {
        return items.report_written(action, &id, response, dry);
    }
    let text = match response.body["key"].as_str() {
        _ if output.json() => response.text.trim_end().to_owned(),
        Some(key) => escape(key),
        None => return Err(items.client.missing_field("key").into()),
    };
    let quiet = quiet || output.json();
    if !quiet {
        let name = text_of(&response.body["name"]);
        output.note(&format!("{action} key {id} ({name}); the key is shown only this once:"));
    }
    output.secret(&format!("{text}\n")).map_err(|source| CliError::KeyNotPrinted { id, source })?;
    if let Some(note) = note.filter(|_| !quiet) {
        output.note(note);
    }
    output.warnings(&response.body);
    Ok(Exit::Ok)
}

fn row(key: &Value) -> Vec<Cell> {
    let text = |name: &str| Cell::from(text_of(&key[name]));
    let status = text_of(&key["status"]);
    let style = if status == "active" { Style::Good } else { Style::Faint };
    vec![
        text("id"),
        text("name"),
        Cell::styled(style, status),
        text("user_id"),
        text("tenant"),
        text("tier"),
        joined(&key["scopes"], ",").into(),
        format_time(&key["expires_at"]).into(),
        format_time(&key["last_used_at"]).into(),
        text("requests_total"),
    ]
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::client::without_nulls;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        create: Create,
    }

    fn body(flags: &[&str]) -> Value {
        let flags = Flags::try_parse_from([&["create"], flags].concat()).unwrap();
        without_nulls(&flags.create).unwrap()
    }

    #[test]
    fn flags_are_sent_under_their_api_names() {
        assert_eq!(body(&["ci"]), json!({"name": "ci"}));
        let sent = body(&[
            "ci",
            "--user=u",
            "--tenant=t",
            "--tier=pro",
            "--scope=check,read",
            "--scope=admin",
            "--requests-per-second=1",
            "--requests-per-hour=2",
            "--requests-per-day=3",
            "--burst=4",
            "--expires=90d",
            "--quiet",
        ]);
        let expected = json!({
            "name": "ci", "user_id": "u", "tenant": "t", "tier": "pro", "scopes": ["check", "read", "admin"],
            "requests_per_second": 1, "requests_per_hour": 2, "requests_per_day": 3, "burst": 4, "expires_in": "90d",
        });
        assert_eq!(sent, expected);
        assert_eq!(body(&["ci", "--expires=2027-01-31T12:00:00Z"])["expires_at"], "2027-01-31T12:00:00Z");
    }

    #[test]
    fn key_id_may_have_its_prefix() {
        assert_eq!(parse_id("4kq2mz7ehv3xw5ta").as_deref(), Ok("4kq2mz7ehv3xw5ta"));
        assert_eq!(parse_id("tg_4kq2mz7ehv3xw5ta").as_deref(), Ok("4kq2mz7ehv3xw5ta"));
        assert!(parse_id("").is_err() && parse_id("tg_").is_err());
    }
}

//! `tollgate keys`: API keys, on a running server.
//!
//! A new key is told once, alone on standard output, so that a script can take it; everything else that is said
//! goes to the error stream.

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;
use serde_json::Value;

use crate::client::{Answer, Client};
use crate::confirm::Confirm;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::items::{self, Columns, Count, Kind, Writing};
use crate::moment::{self, Moment, moment, span};
use crate::output::{Output, Style, escape};
use crate::record::print_record;
use crate::render::word;
use crate::secret::{WHOLE, is_whole_key};
use crate::table::Cell;
use crate::url::segment;

/// The flags of `keys`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tollgate keys create 'checkout service' --scope check
  tollgate keys list --user alice
  tollgate keys rotate 4kq2mz7ehv3xw5ta --overlap 24h
  tollgate keys revoke 4kq2mz7ehv3xw5ta")]
pub(crate) struct Keys {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Make a key, and print it: it is shown this once
    #[command(after_help = "\
Examples:
  tollgate keys create 'mobile app' --user alice --tier pro --expires 90d
  tollgate keys create 'checkout service' --scope check,read --tenant acme
  tollgate keys create batch --user bob --requests-per-day 5000 --expires 2027-01-31T00:00:00Z
  KEY=$(tollgate keys create ci --scope admin --quiet)

A key with scopes may call tollgate itself; without any it only says who a limited client is.")]
    Create(Box<Create>),
    /// List keys
    #[command(after_help = "\
Examples:
  tollgate keys list
  tollgate keys list --user alice --active
  tollgate keys list --tenant acme --limit 20 --json")]
    List {
        /// Only keys of this user
        #[arg(long)]
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
        #[command(flatten)]
        count: Count,
    },
    /// Print what is known of a key; the key itself is not
    #[command(after_help = "\
Examples:
  tollgate keys show 4kq2mz7ehv3xw5ta
  tollgate keys show 4kq2mz7ehv3xw5ta --json")]
    Show {
        #[command(flatten)]
        key: Id,
    },
    /// Give a key a new secret, and print it: it is shown this once
    #[command(after_help = "\
Examples:
  tollgate keys rotate 4kq2mz7ehv3xw5ta
  tollgate keys rotate 4kq2mz7ehv3xw5ta --overlap 7d --quiet
  tollgate keys rotate 4kq2mz7ehv3xw5ta --overlap 0s --yes

Its id, its owner and what it has used stay the same.")]
    Rotate {
        #[command(flatten)]
        key: Id,
        /// How long the old secret stays good; 0s ends it at once
        #[arg(long, value_name = "SPAN", value_parser = span, default_value = "24h")]
        overlap: String,
        /// Print the key and nothing else
        #[arg(long, short)]
        quiet: bool,
        #[command(flatten)]
        confirm: Confirm,
        #[command(flatten)]
        dry: Dry,
    },
    /// End a key for good; it stays on record
    #[command(after_help = "\
Examples:
  tollgate keys revoke 4kq2mz7ehv3xw5ta
  tollgate keys revoke 4kq2mz7ehv3xw5ta --yes")]
    Revoke {
        #[command(flatten)]
        key: Id,
        #[command(flatten)]
        confirm: Confirm,
        #[command(flatten)]
        dry: Dry,
    },
    /// Remove a key from the record altogether
    #[command(after_help = "\
Examples:
  tollgate keys delete 4kq2mz7ehv3xw5ta
  tollgate keys delete 4kq2mz7ehv3xw5ta --yes")]
    Delete {
        #[command(flatten)]
        key: Id,
        #[command(flatten)]
        confirm: Confirm,
        #[command(flatten)]
        writing: Writing,
    },
}

/// Which key.
#[derive(Args)]
struct Id {
    /// Its id: what stands between tg_ and the second _
    #[arg(value_parser = id)]
    id: String,
}

/// Whether it is only tried.
#[derive(Args)]
struct Dry {
    /// Print what would change, and change nothing
    #[arg(long)]
    dry_run: bool,
}

/// The flags of `keys create`, and as they are, the body that is sent.
#[derive(Args, Serialize)]
struct Create {
    /// What it is for
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    name: String,
    /// Whose it is
    #[arg(long)]
    #[serde(rename = "user_id", skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    /// The organisation it is bound to
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant: Option<String>,
    /// The plan of its holder
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    tier: Option<String>,
    /// What its holder may ask of tollgate; several with commas, or by giving it several times
    #[arg(long = "scope", value_name = "SCOPE", value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    scopes: Vec<Scope>,
    /// Requests per second
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    requests_per_second: Option<u32>,
    /// Requests per hour
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    requests_per_hour: Option<u32>,
    /// Requests per day
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    requests_per_day: Option<u32>,
    /// Requests at once
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    burst: Option<u32>,
    /// When it ends: after a time (24h, 90d) or at an instant (2027-01-31T12:00:00Z); never if not given
    #[arg(long, value_name = "WHEN", value_parser = moment)]
    #[serde(flatten, skip_serializing_if = "Option::is_none", serialize_with = "end")]
    expires: Option<Moment>,
    /// Print the key and nothing else
    #[arg(long, short)]
    #[serde(skip)]
    quiet: bool,
    /// Print what would change, and change nothing
    #[arg(long)]
    #[serde(skip)]
    dry_run: bool,
}

/// What the holder of a key may do. Its variants have no comments of their own: clap would print them, one to a line.
#[derive(Copy, Clone, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum Scope {
    Check,
    Read,
    Config,
    Reset,
    Override,
    Admin,
}

#[allow(clippy::ref_option, reason = "the shape that serde asks for")]
fn end<S: serde::Serializer>(expires: &Option<Moment>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(expires.iter().map(|expires| match expires {
        Moment::In(span) => ("expires_in", span),
        Moment::At(instant) => ("expires_at", instant),
    }))
}

fn id(text: &str) -> Result<String, &'static str> {
    match text.strip_prefix("tg_") {
        // Let through, because a complaint from here would repeat it.
        _ if is_whole_key(text) => Ok(text.to_owned()),
        Some("") => Err("must not be empty"),
        None if text.is_empty() => Err("must not be empty"),
        stripped => Ok(stripped.unwrap_or(text).to_owned()),
    }
}

impl Id {
    /// The id, unless it is a whole key: that must get into no path.
    fn checked(&self) -> Result<&str, Failure> {
        if is_whole_key(&self.id) { Err(Failure::Arguments(format!("ID {WHOLE}"))) } else { Ok(&self.id) }
    }
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
    row,
};

/// What a person looks for first.
const ORDER: [&str; 16] = [
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

pub(crate) fn run(keys: &Keys, client: &Client, output: &Output) -> Result<Exit, Failure> {
    match &keys.command {
        Command::Create(create) => run_create(create, client, output),
        Command::List { user, tenant, tier, active, count } => {
            let filters = [
                ("user_id", user.as_deref()),
                ("tenant", tenant.as_deref()),
                ("tier", tier.as_deref()),
                ("active", active.then_some("true")),
            ];
            items::print_list(client, Kind::Key, &filters, count, &COLUMNS, output)
        }
        Command::Show { key } => {
            print_record(&items::get(client, Kind::Key, key.checked()?)?, &ORDER, output)
        }
        Command::Rotate { key, overlap, quiet, confirm, dry } => {
            let id = key.checked()?;
            let at_once =
                tollgate::config::values::parse_span(overlap).is_ok_and(|span| span.as_micros() == 0);
            let act = format!("end the secret of key {id} at once");
            if at_once && !dry.dry_run && !confirm.agreed(&act)? {
                return Ok(Exit::Refused);
            }
            let body = serde_json::json!({ "overlap": overlap });
            let answer = act_on(client, id, "rotate", &body, dry.dry_run)?;
            let told = if at_once {
                "the old secret is no longer good".to_owned()
            } else {
                format!("the old secret stays good for {overlap}")
            };
            print_new(&answer, "gave a new secret to", &told, (*quiet, dry.dry_run), output)
        }
        Command::Revoke { key, confirm, dry } => {
            let id = key.checked()?;
            if !dry.dry_run && !confirm.agreed(&format!("revoke key {id} for good"))? {
                return Ok(Exit::Refused);
            }
            let answer = act_on(client, id, "revoke", &serde_json::json!({}), dry.dry_run)?;
            items::print_written("revoked", Kind::Key, id, &answer, dry.dry_run, output)
        }
        Command::Delete { key, confirm, writing } => {
            items::delete(client, Kind::Key, key.checked()?, (confirm, writing), output)
        }
    }
}

fn run_create(create: &Create, client: &Client, output: &Output) -> Result<Exit, Failure> {
    let query = if create.dry_run { "?dry_run=true" } else { "" };
    let answer = client.post(&format!("/v1/admin/keys{query}"), create)?;
    let answer = items::succeeded(client, answer)?;
    print_new(&answer, "created", "", (create.quiet, create.dry_run), output)
}

fn act_on(client: &Client, id: &str, act: &str, body: &Value, dry_run: bool) -> Result<Answer, Failure> {
    let query = if dry_run { "?dry_run=true" } else { "" };
    let path = format!("/v1/admin/keys/{}/{act}{query}", segment(id));
    Ok(items::succeeded(client, client.post(&path, body)?)?)
}

/// The key alone on standard output; what there is to say about it beside.
fn print_new(
    answer: &Answer,
    did: &str,
    more: &str,
    (quiet, dry_run): (bool, bool),
    output: &Output,
) -> Result<Exit, Failure> {
    let id = word(&answer.body["id"]);
    let unread = |source| Failure::Unread { id: id.clone(), source };
    if dry_run {
        return items::print_written(did, Kind::Key, &id, answer, dry_run, output);
    }
    if output.json() {
        output.once(&format!("{}\n", answer.text.trim_end())).map_err(unread)?;
        return Ok(Exit::Ok);
    }
    let key = answer.body["key"].as_str().ok_or_else(|| {
        Failure::Arguments(
            "the server made the key and did not tell it: revoke it, and make another".to_owned(),
        )
    })?;
    if !quiet {
        let name = word(&answer.body["name"]);
        output.note(&format!(
            "{did} key {} ({}); this is the only time it is shown:",
            escape(&id),
            escape(&name)
        ));
    }
    output.once(&format!("{}\n", escape(key))).map_err(unread)?;
    if !quiet && !more.is_empty() {
        output.note(more);
    }
    Ok(Exit::Ok)
}

fn row(key: &Value) -> Vec<Cell> {
    let text = |name: &str| Cell::from(word(&key[name]));
    let status = word(&key["status"]);
    let style = if status == "active" { Style::Good } else { Style::Faint };
    let scopes: Vec<String> = key["scopes"].as_array().into_iter().flatten().map(word).collect();
    vec![
        text("id"),
        text("name"),
        Cell::styled(style, status),
        text("user_id"),
        text("tenant"),
        text("tier"),
        scopes.join(",").into(),
        moment::told(&key["expires_at"]).into(),
        moment::told(&key["last_used_at"]).into(),
        text("requests_total"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        create: Create,
    }

    fn body(flags: &[&str]) -> Value {
        let flags = Flags::try_parse_from([&["create"], flags].concat()).unwrap();
        serde_json::to_value(&flags.create).unwrap()
    }

    #[test]
    fn what_is_given_is_sent_under_the_name_the_server_knows_and_nothing_else() {
        assert_eq!(body(&["ci"]), serde_json::json!({"name": "ci"}));
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
        let expected = serde_json::json!({
            "name": "ci", "user_id": "u", "tenant": "t", "tier": "pro", "scopes": ["check", "read", "admin"],
            "requests_per_second": 1, "requests_per_hour": 2, "requests_per_day": 3, "burst": 4, "expires_in": "90d",
        });
        assert_eq!(sent, expected);
        assert_eq!(body(&["ci", "--expires=2027-01-31T12:00:00Z"])["expires_at"], "2027-01-31T12:00:00Z");
    }

    #[test]
    fn a_whole_key_is_no_id() {
        assert_eq!(id("4kq2mz7ehv3xw5ta").as_deref(), Ok("4kq2mz7ehv3xw5ta"));
        assert_eq!(id("tg_4kq2mz7ehv3xw5ta").as_deref(), Ok("4kq2mz7ehv3xw5ta"));
        let whole = Id { id: id("tg_4kq2mz7ehv3xw5ta_secret").unwrap() };
        assert!(whole.checked().is_err_and(|error| !error.to_string().contains("secret")));
        assert!(id("").is_err() && id("tg_").is_err());
    }
}

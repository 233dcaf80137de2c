//! `tollgate backup`: the settings and the data directory of a node, in a folder or a bucket.

use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};
use tollgate_server::config::settings::{Flags, Settings, environment};
use tollgate_server::runtime::backup::{self, BackupPlace, Manifest};

use super::archive::block_on;
use super::list::Columns;
use crate::output::format::{plural, text_of};
use crate::output::table::Cell;
use crate::{CliError, Exit, Output};

#[derive(Args)]
#[command(after_help = "\
Examples:
  tollgate backup --config /etc/tollgate/tollgate.toml --to /backup/gate-1
  tollgate backup --config /etc/tollgate/tollgate.toml --to s3://backups/gate-1
  tollgate backup --to /backup/gate-1 --list

Run it on the host of a node, as its user and with its flags. Databases on a
server and counters on Redis are not included; the command lists everything
that is not. Buckets use AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION
and AWS_ENDPOINT_URL of the environment; AWS_ALLOW_HTTP=true permits http://.")]
pub(crate) struct Backup {
    /// Folder, or `s3://BUCKET/PREFIX`, that gets a folder for each backup
    #[arg(long, value_name = "PLACE")]
    to: String,
    /// Include `admin.key`, the key secret, and a settings file with passwords
    #[arg(long)]
    include_secrets: bool,
    /// List the complete backups instead
    #[arg(long, conflicts_with = "include_secrets")]
    list: bool,
    /// Settings file
    #[arg(long, value_name = "FILE", env = "TOLLGATE_CONFIG")]
    config: Option<PathBuf>,
    /// Data directory of the service
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

const COLUMNS: Columns = Columns {
    headings: &["NAME", "NODE", "FILES", "BYTES", "DATABASE", "SECRETS", "TOLLGATE"],
    optional: &["TOLLGATE", "DATABASE", "FILES"],
    row,
};

pub(crate) fn run(backup: &Backup, output: &Output) -> Result<Exit, CliError> {
    let place = parse_place(&backup.to)?;
    if backup.list {
        let found = block_on(async { Ok(place.list().await?) })?;
        let found: Vec<Value> = found.iter().map(|(name, manifest)| to_json(name, manifest)).collect();
        return Ok(COLUMNS.print("backups", &found, None, output)?);
    }
    let flags =
        Flags { config: backup.config.clone(), data_dir: backup.data_dir.clone(), ..Flags::default() };
    let settings = Settings::load(&flags, environment())?;
    let created = block_on(async { Ok(backup::create(&settings, &place, backup.include_secrets).await?) });
    let (name, manifest) = created?;
    for missing in &manifest.not_included {
        output.warning(&format!("not included: {missing}"));
    }
    let backup = place.join(&name).to_string();
    let json = || {
        let mut json = to_json(&name, &manifest);
        json["backup"] = backup.clone().into();
        json
    };
    Ok(output.result(json, || format!("backed up {} to {backup}\n", summary(&manifest)))?)
}

/// A folder or bucket; the environment decides about `http://`, as for other programs that use S3.
pub(super) fn parse_place(text: &str) -> Result<BackupPlace, CliError> {
    let allow_http = std::env::var("AWS_ALLOW_HTTP").is_ok_and(|value| value.eq_ignore_ascii_case("true"));
    Ok(BackupPlace::parse(text, allow_http)?)
}

/// `3 files, 4096 bytes`.
pub(super) fn summary(manifest: &Manifest) -> String {
    format!("{}, {} bytes", plural(manifest.files.len(), "file"), bytes(manifest))
}

fn bytes(manifest: &Manifest) -> u64 {
    manifest.files.iter().map(|file| file.bytes).sum()
}

pub(super) fn to_json(name: &str, manifest: &Manifest) -> Value {
    json!({
        "name": name,
        "created_at": manifest.created_at,
        "node": manifest.node,
        "engine": manifest.engine,
        "tollgate": manifest.tollgate,
        "has_secrets": manifest.has_secrets,
        "bytes": bytes(manifest),
        "files": manifest.files,
        "not_included": manifest.not_included,
    })
}

fn row(backup: &Value) -> Vec<Cell> {
    let files = backup["files"].as_array().map_or(0, Vec::len);
    let has_secrets = if backup["has_secrets"] == true { "yes" } else { "no" };
    let text = |key: &str| text_of(&backup[key]);
    let cells = [
        text("name"),
        text("node"),
        files.to_string(),
        text("bytes"),
        text("engine"),
        has_secrets.to_owned(),
        text("tollgate"),
    ];
    cells.map(Cell::from).into()
}

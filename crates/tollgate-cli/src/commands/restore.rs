//! `tollgate restore`: a backup becomes the data directory of a node.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::Args;
use serde_json::json;
use tollgate_server::runtime::backup::{self, BackupPlace, Manifest, RestoreOptions, Restored};

use super::archive::block_on;
use super::backup::{parse_place, summary, to_json};
use crate::output::escape;
use crate::{CliError, Exit, Output};

#[derive(Args)]
#[command(after_help = "\
Examples:
  tollgate restore /backup/gate-1/20270131T120000Z --dry-run
  tollgate restore /backup/gate-1/20270131T120000Z --data-dir /var/lib/tollgate
  tollgate restore s3://backups/gate-1/20270131T120000Z \\
    --data-dir /var/lib/tollgate --config-out /etc/tollgate/tollgate.toml

Run it as the user of the node, while the node is stopped. Every file is
compared with its checksum before the first one takes its place.")]
pub(crate) struct Restore {
    /// Backup: a folder, or `s3://BUCKET/PREFIX/NAME`
    #[arg(value_name = "BACKUP")]
    backup: String,
    /// Data directory to restore into: new or empty
    #[arg(long, value_name = "DIR", required_unless_present = "dry_run")]
    data_dir: Option<PathBuf>,
    /// Write the settings file of the backup here
    #[arg(long, value_name = "FILE")]
    config_out: Option<PathBuf>,
    /// Move files in the data directory aside, into a folder in it
    #[arg(long)]
    force: bool,
    /// Verify the backup and change nothing
    #[arg(long, conflicts_with_all = ["config_out", "force"])]
    dry_run: bool,
}

pub(crate) fn run(restore: &Restore, output: &Output) -> Result<Exit, CliError> {
    let place = parse_place(&restore.backup)?;
    let Some(data_dir) = restore.data_dir.clone().filter(|_| !restore.dry_run) else {
        return verify(&place, output);
    };
    let options = RestoreOptions { data_dir, config_out: restore.config_out.clone(), force: restore.force };
    let restored = block_on(async { Ok(backup::restore(&place, &options).await?) })?;
    let manifest = &restored.manifest;
    for missing in &manifest.not_included {
        output.warning(&format!("not in the backup: {missing}"));
    }
    let json = || {
        json!({
            "data_dir": options.data_dir.display().to_string(),
            "config": options.config_out.as_ref().map(|path| path.display().to_string()),
            "moved_to": restored.moved_to.as_ref().map(|path| path.display().to_string()),
            "backup": to_json(&place.to_string(), manifest),
        })
    };
    Ok(output.result(json, || describe(&restored, &options))?)
}

fn verify(place: &BackupPlace, output: &Output) -> Result<Exit, CliError> {
    let manifest = block_on(async { Ok(backup::verify(place).await?) })?;
    let json = || json!({ "backup": to_json(&place.to_string(), &manifest) });
    Ok(output.result(json, || format!("complete: {}\n", summary(&manifest)))?)
}

fn describe(restored: &Restored, options: &RestoreOptions) -> String {
    let (manifest, data_dir) = (&restored.manifest, options.data_dir.display());
    let mut text = format!(
        "restored the state of {} ({}) into {data_dir}\n",
        escape(&manifest.created_at),
        summary(manifest)
    );
    if let Some(path) = &restored.moved_to {
        let _ = writeln!(text, "the files that were there are in {}", path.display());
    }
    text + &next_step(manifest, options)
}

fn next_step(manifest: &Manifest, options: &RestoreOptions) -> String {
    let secret = if manifest.has_secrets { "" } else { "put the key secret in its place, then " };
    let config = match &options.config_out {
        Some(path) => format!(" --config {}", path.display()),
        None if manifest.has("settings.toml") => " --config FILE (settings.toml of the backup)".to_owned(),
        None => String::new(),
    };
    format!("next: {secret}run `tollgate serve --data-dir {}{config}`\n", options.data_dir.display())
}

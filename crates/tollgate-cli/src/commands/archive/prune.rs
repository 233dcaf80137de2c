//! `tollgate archive prune`.

use clap::Args;
use serde_json::{Value, json};
use tollgate::config::values::parse_span;

use super::list::file_json;
use super::{ArchiveArgs, block_on, format_micros, now_micros};
use crate::input::confirm::ConfirmArgs;
use crate::input::expiry::parse_duration;
use crate::output::format::plural;
use crate::output::progress::Progress;
use crate::{CliError, Exit, Output};

#[derive(Args)]
pub(crate) struct Prune {
    /// Delete files whose records are all older; by default `records.archive.keep`
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    older_than: Option<String>,
    /// List the files without deleting them
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    confirm: ConfirmArgs,
    #[command(flatten)]
    archive: ArchiveArgs,
}

impl Prune {
    pub(super) fn run(&self, output: &Output) -> Result<Exit, CliError> {
        let opened = self.archive.open()?;
        let keep = self.older_than.as_deref().and_then(|text| parse_span(text).ok());
        let keep = keep.map_or(opened.section.keep, Into::into);
        let kept_micros = u64::try_from(keep.as_micros()).unwrap_or(u64::MAX);
        let before = now_micros().saturating_sub(kept_micros);
        let mut files = block_on(async { Ok(opened.archive.list().await?) })?;
        // Rows that are still in the database are not archived elsewhere yet.
        files.retain(|file| file.times.1 < before && file.is_removed);
        if files.is_empty() {
            return Ok(output.result(|| json!({ "deleted": [] }), || "nothing to delete\n".to_owned())?);
        }
        let count = plural(files.len(), "archived file");
        let action = format!("delete {count} with records before {}, for good", format_micros(before));
        let list: Vec<Value> = files.iter().map(file_json).collect();
        if self.dry_run {
            let mut progress = Progress::new(output);
            for file in &files {
                progress.line(&file.file.to_string());
            }
            return Ok(output.result(|| json!({ "would_delete": list }), || format!("would {action}\n"))?);
        }
        if !self.confirm.confirmed(&action)? {
            return Ok(Exit::Refused);
        }
        block_on(async {
            let mut progress = Progress::new(output);
            for file in &files {
                opened.archive.delete(file).await?;
                progress.line(&format!("{}: deleted", file.file));
            }
            Ok(())
        })?;
        Ok(output.result(|| json!({ "deleted": list }), || format!("deleted {count}\n"))?)
    }
}

//! `tollgate archive run`.

use clap::Args;
use serde_json::json;
use tollgate_stores::sql::records::ArchiveStep;

use super::{ArchiveArgs, block_on, now_micros, process_name};
use crate::output::format::plural;
use crate::output::progress::Progress;
use crate::{CliError, Exit, Output};

#[derive(Args)]
pub(crate) struct Run {
    #[command(flatten)]
    archive: ArchiveArgs,
}

impl Run {
    pub(super) fn run(&self, output: &Output) -> Result<Exit, CliError> {
        let opened = self.archive.open()?;
        let done = block_on(async {
            let database = opened.database().await?;
            let (now, retention) = (now_micros(), opened.settings.records.retention());
            let (name, mut progress) = (process_name(), Progress::new(output));
            let mut report = |step: &ArchiveStep| show(step, &mut progress);
            // Nodes may not run: partitions for rows without one come first.
            let maintained = database.maintain(&name, now, &retention).await;
            let run = database.archive(&opened.archive, &name, now, &retention, &mut report).await;
            database.close().await;
            maintained?;
            Ok(run?)
        })?;
        let json = || json!({ "files": done.files, "rows": done.rows, "bytes": done.bytes });
        let text = || match done.files {
            0 => "nothing to archive\n".to_owned(),
            files => {
                let files = plural(usize::try_from(files).unwrap_or(usize::MAX), "file");
                format!("archived {} rows in {files} ({} bytes)\n", done.rows, done.bytes)
            }
        };
        Ok(output.result(json, text)?)
    }
}

fn show(step: &ArchiveStep, progress: &mut Progress<'_>) {
    match step {
        ArchiveStep::Read { file, rows, percent } => {
            progress.advance(&format!("{file}: {rows} rows read"), u64::from(*percent), 100);
        }
        ArchiveStep::Written(file) => progress.line(&format!("{file}: written")),
        ArchiveStep::ReadBack { file, rows } => progress.count(&format!("{file}: {rows} rows read back")),
        ArchiveStep::Verified(file) => {
            progress.line(&format!("{}: verified, {} rows", file.file, file.rows));
        }
        ArchiveStep::Deleted { file, rows } => progress.count(&format!("{file}: {rows} rows removed")),
        ArchiveStep::Removed(file) => progress.line(&format!("{}: removed from the database", file.file)),
    }
}

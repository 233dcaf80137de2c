//! `tollgate archive run`.

use clap::Args;
use serde_json::json;
use tollgate_stores::sql::records::ArchiveStep;

use super::{ArchiveArgs, block_on, now_micros, process_name};
use crate::output::format::plural;
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
            let mut report = |step: &ArchiveStep| output.note(&describe(step));
            // Nodes may not run: partitions for rows without one come first.
            let maintained = database.maintain(&process_name(), now, &retention).await;
            let run = database.archive(&opened.archive, &process_name(), now, &retention, &mut report).await;
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

fn describe(step: &ArchiveStep) -> String {
    match step {
        ArchiveStep::Read { file, rows } => format!("{file}: {rows} rows read"),
        ArchiveStep::Written(file) => format!("{file}: written"),
        ArchiveStep::Verified(file) => format!("{}: verified, {} rows", file.file, file.rows),
        ArchiveStep::Removed(file) => format!("{}: removed from the database", file.file),
    }
}

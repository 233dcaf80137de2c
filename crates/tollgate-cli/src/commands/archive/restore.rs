//! `tollgate archive restore`.

use clap::Args;
use serde_json::json;
use tollgate_stores::archive::ArchivedFile;
use tollgate_stores::sql::SqlSettings;
use tollgate_stores::sql::records::RecordsDatabase;

use super::{ArchiveArgs, FileArgs, OpenArchive, block_on, now_micros, process_name};
use crate::output::format::plural;
use crate::output::progress::Progress;
use crate::{CliError, Exit, Output};

#[derive(Args)]
pub(crate) struct Restore {
    #[command(flatten)]
    files: FileArgs,
    /// Database to write into, as in `records.url`; by default that of the settings file
    #[arg(long, value_name = "URL")]
    into: Option<String>,
    #[command(flatten)]
    archive: ArchiveArgs,
}

impl Restore {
    pub(super) fn run(&self, output: &Output) -> Result<Exit, CliError> {
        let opened = self.archive.open()?;
        let (files, rows) = block_on(async {
            let files = self.files.list(&opened.archive).await?;
            let rows = match &self.into {
                Some(url) => into_other(&opened, url, &files, output).await?,
                None => into_own(&opened, &files, output).await?,
            };
            Ok((files.len(), rows))
        })?;
        Ok(output.result(
            || json!({ "files": files, "rows": rows }),
            || format!("restored {rows} rows of {}\n", plural(files, "file")),
        )?)
    }
}

async fn into_other(
    opened: &OpenArchive,
    url: &str,
    files: &[ArchivedFile],
    output: &Output,
) -> Result<u64, CliError> {
    let sql = SqlSettings::from_url(url).map_err(|error| CliError::Arguments(format!("--into {error}")))?;
    let database = RecordsDatabase::connect(sql).await?;
    database.migrate().await?;
    let (mut rows, mut progress) = (0, Progress::new(output));
    for file in files {
        rows += database.restore(&opened.archive, file, &mut report(file, &mut progress)).await?;
        note(file, &mut progress);
    }
    database.close().await;
    Ok(rows)
}

async fn into_own(opened: &OpenArchive, files: &[ArchivedFile], output: &Output) -> Result<u64, CliError> {
    let retention = opened.settings.records.retention();
    if let Some(file) = files.iter().find(|file| RecordsDatabase::is_expired(file, now_micros(), &retention))
    {
        let message = format!(
            "{} is beyond its retention, so nodes would archive it again at once: extend the retention in [records] \
             and restart the nodes, or restore into another database with --into",
            file.file
        );
        return Err(CliError::Arguments(message));
    }
    let database = opened.database().await?;
    let (name, mut rows, mut progress) = (process_name(), 0, Progress::new(output));
    for file in files {
        let restored =
            database.restore_here(&opened.archive, file, &name, &mut report(file, &mut progress)).await;
        rows += restored?;
        note(file, &mut progress);
    }
    database.close().await;
    Ok(rows)
}

fn report<'a>(file: &'a ArchivedFile, progress: &'a mut Progress<'_>) -> impl FnMut(u64) + Send + 'a {
    move |rows| progress.advance(&format!("{}: {rows} rows", file.file), rows, file.rows)
}

fn note(file: &ArchivedFile, progress: &mut Progress<'_>) {
    progress.line(&format!("{}: {} rows restored", file.file, file.rows));
}

//! `tollgate archive verify`.

use clap::Args;
use serde_json::json;

use super::{ArchiveArgs, FileArgs, block_on};
use crate::output::format::plural;
use crate::{CliError, Exit, Output};

#[derive(Args)]
pub(crate) struct Verify {
    #[command(flatten)]
    files: FileArgs,
    #[command(flatten)]
    archive: ArchiveArgs,
}

impl Verify {
    pub(super) fn run(&self, output: &Output) -> Result<Exit, CliError> {
        let opened = self.archive.open()?;
        let (files, damaged) = block_on(async {
            let files = self.files.list(&opened.archive).await?;
            let mut damaged = Vec::new();
            for file in &files {
                match opened.archive.verify(file).await {
                    Ok(()) => output.note(&format!("{}: complete, {} rows", file.file, file.rows)),
                    Err(error) => {
                        output.warning(&error.to_string());
                        damaged.push((file.file.to_string(), error.to_string()));
                    }
                }
            }
            Ok((files.len(), damaged))
        })?;
        if !damaged.is_empty() {
            let message = format!("{} of {} cannot be read back", damaged.len(), plural(files, "file"));
            return Err(CliError::Arguments(message));
        }
        Ok(output.result(
            || json!({ "files": files, "damaged": [] }),
            || format!("{} complete\n", plural(files, "file")),
        )?)
    }
}

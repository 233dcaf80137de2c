//! `tollgate archive verify`.

use clap::Args;
use serde_json::json;

use super::{ArchiveArgs, FileArgs, block_on};
use crate::output::format::plural;
use crate::output::progress::Progress;
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
            let (mut damaged, mut progress) = (Vec::new(), Progress::new(output));
            for file in &files {
                let name = file.file.to_string();
                let mut report =
                    |rows: u64| progress.advance(&format!("{name}: {rows} rows"), rows, file.rows);
                match opened.archive.verify(file, &mut report).await {
                    Ok(()) => progress.line(&format!("{name}: complete, {} rows", file.rows)),
                    Err(error) => {
                        progress.suspend(|| output.warning(&error.to_string()));
                        damaged.push(json!({ "file": name, "error": error.to_string() }));
                    }
                }
            }
            Ok((files.len(), damaged))
        })?;
        let count = plural(files, "file");
        let text = || match damaged.len() {
            0 => format!("{count} complete\n"),
            number => format!("{number} of {count} cannot be read back\n"),
        };
        let exit = output.result(|| json!({ "files": files, "damaged": damaged }), text)?;
        Ok(if damaged.is_empty() { exit } else { Exit::Error })
    }
}

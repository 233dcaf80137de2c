//! `tollgate archive list`.

use clap::Args;
use serde_json::{Value, json};
use tollgate_stores::archive::ArchivedFile;

use super::{ArchiveArgs, FileArgs, block_on, format_micros};
use crate::commands::list::Columns;
use crate::output::format::text_of;
use crate::output::table::Cell;
use crate::{CliError, Exit, Output};

#[derive(Args)]
pub(crate) struct List {
    #[command(flatten)]
    files: FileArgs,
    #[command(flatten)]
    archive: ArchiveArgs,
}

const COLUMNS: Columns = Columns {
    headings: &["TABLE", "FROM", "TO", "PART", "ROWS", "BYTES", "IN DATABASE"],
    optional: &["IN DATABASE", "PART", "BYTES"],
    row,
};

impl List {
    pub(super) fn run(&self, output: &Output) -> Result<Exit, CliError> {
        let opened = self.archive.open()?;
        let files = block_on(self.files.list(&opened.archive))?;
        let files: Vec<Value> = files.iter().map(file_json).collect();
        Ok(COLUMNS.print("files", &files, None, output)?)
    }
}

pub(super) fn file_json(file: &ArchivedFile) -> Value {
    json!({
        "file": file.file.to_string(),
        "table": file.file.table.as_str(),
        "start": file.file.start.to_string(),
        "part": file.file.part,
        "rows": file.rows,
        "bytes": file.bytes,
        "from": format_micros(file.times.0),
        "to": format_micros(file.times.1),
        "in_database": !file.is_removed,
    })
}

fn row(file: &Value) -> Vec<Cell> {
    let in_database = if file["in_database"] == true { "yes" } else { "no" };
    let mut cells: Vec<Cell> =
        ["table", "from", "to", "part", "rows", "bytes"].map(|key| text_of(&file[key]).into()).into();
    cells.push(in_database.to_owned().into());
    cells
}

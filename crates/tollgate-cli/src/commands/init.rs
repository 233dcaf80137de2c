//! `tollgate init`: writes a commented settings file and its schema.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;
use tollgate_server::config::settings::schema;

use crate::{CliError, Exit, Output};

const TEMPLATE: &str = include_str!("init/tollgate.toml");
/// The name that the first line of the template refers to.
const SCHEMA_FILE: &str = "tollgate.schema.json";

#[derive(Args)]
#[command(after_help = "\
Examples:
  tollgate init
  tollgate init /etc/tollgate/tollgate.toml

Writes the file with comments for every section, and tollgate.schema.json
beside it, with which editors complete and check its keys. An existing file
is kept; --force replaces it.")]
pub(crate) struct Init {
    /// Settings file to write
    #[arg(default_value = "tollgate.toml", value_name = "FILE")]
    file: PathBuf,
    /// Replace an existing file
    #[arg(long)]
    force: bool,
}

pub(crate) fn run(init: &Init, output: &Output) -> Result<Exit, CliError> {
    let Init { file, force } = init;
    let schema_file = file.with_file_name(SCHEMA_FILE);
    write(file, TEMPLATE, *force)?;
    // The schema belongs to the version of tollgate, so it is always replaced.
    write(&schema_file, schema(), true)?;
    let (file, schema_file) = (file.display().to_string(), schema_file.display().to_string());
    let json = || json!({ "file": file, "schema": schema_file });
    let text = || {
        format!("wrote {file} and {schema_file}\nnext: edit it, then run `tollgate serve --config {file}`\n")
    };
    Ok(output.result(json, text)?)
}

fn write(path: &Path, text: &str, replace: bool) -> Result<(), CliError> {
    let failed = |source| CliError::WriteFile { path: path.display().to_string(), source };
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        fs::create_dir_all(folder).map_err(failed)?;
    }
    let opened = OpenOptions::new().write(true).create_new(!replace).create(true).truncate(true).open(path);
    let mut file = opened.map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => {
            CliError::Arguments(format!("{} exists; pass --force to replace it", path.display()))
        }
        _ => failed(error),
    })?;
    file.write_all(text.as_bytes()).map_err(failed)
}

//! `tollgate man`: manual pages.

use std::path::PathBuf;

use clap::{Args, Command};

use crate::{CliError, Exit, Output};

#[derive(Args)]
#[command(after_help = "\
Examples:
  tollgate man | man -l -
  tollgate man --out /usr/local/share/man/man1")]
pub(crate) struct Man {
    /// Write one page per command to this directory
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

pub(crate) fn run(man: &Man, command: Command, output: &Output) -> Result<Exit, CliError> {
    if let Some(folder) = &man.out {
        let pages = std::fs::create_dir_all(folder).and_then(|()| clap_mangen::generate_to(command, folder));
        pages.map_err(|source| CliError::WriteFile { path: folder.display().to_string(), source })?;
        return Ok(Exit::Ok);
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(command).render(&mut page)?;
    output.bytes(&page)?;
    Ok(Exit::Ok)
}

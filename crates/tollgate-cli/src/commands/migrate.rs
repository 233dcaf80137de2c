//! `tollgate migrate`: updates the database schema.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;
use tollgate_server::config::settings::{Flags, Settings, environment};
use tollgate_stores::sql::{Database, Engine, Migration, SqlSettings};

use crate::output::escape;
use crate::output::format::plural;
use crate::{CliError, Exit, Output};

#[derive(Args)]
#[command(after_help = "\
Examples:
  tollgate migrate --dry-run
  tollgate migrate --config tollgate.toml
  TOLLGATE_DATABASE__URL=postgres://db.internal/tollgate tollgate migrate

`serve` does the same at startup. Several may run at once: one migrates, the
others wait.")]
pub(crate) struct Migrate {
    /// Print the pending steps without applying them
    #[arg(long)]
    dry_run: bool,
    /// Settings file
    #[arg(long, value_name = "FILE", env = "TOLLGATE_CONFIG")]
    config: Option<PathBuf>,
    /// Data directory of the service, which holds the embedded database
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

pub(crate) fn run(migrate: &Migrate, output: &Output) -> Result<Exit, CliError> {
    let Migrate { dry_run, config, data_dir } = migrate;
    let flags = Flags { config: config.clone(), data_dir: data_dir.clone(), ..Flags::default() };
    let settings = Settings::load(&flags, environment())?;
    let sql = settings.database.sql(&settings.data_dir);
    // A dry run must not create the file.
    if *dry_run && is_missing(&sql) {
        return print(&sql, "pending", None, output);
    }
    if !dry_run && settings.database.url.is_none() {
        create_directory(&settings.data_dir)?;
    }
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(CliError::Runtime)?;
    let steps = runtime.block_on(async {
        let database = Database::connect(sql.clone()).await?;
        let steps = if *dry_run { database.pending_migrations().await } else { database.migrate().await };
        database.close().await;
        steps
    })?;
    print(&sql, if *dry_run { "pending" } else { "applied" }, Some(&steps), output)
}

/// Whether the database is a file that does not exist yet.
fn is_missing(sql: &SqlSettings) -> bool {
    let place = sql.describe();
    let file = place.strip_prefix("SQLite database ").filter(|_| sql.engine() == Engine::Sqlite);
    file.is_some_and(|file| !Path::new(file).exists())
}

/// Created as `serve` does: accessible by the owner only.
fn create_directory(path: &Path) -> Result<(), CliError> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path).map_err(|source| CliError::Read { path: path.display().to_string(), source })
}

/// Prints the steps that are pending or were applied; `None` if the database does not exist.
fn print(
    sql: &SqlSettings,
    state: &str,
    steps: Option<&[Migration]>,
    output: &Output,
) -> Result<Exit, CliError> {
    let database = sql.describe();
    let json = || {
        let step = |step: &Migration| json!({ "number": step.number, "name": step.name });
        let list = steps.map(|steps| steps.iter().map(step).collect::<Vec<_>>());
        json!({ "database": database, "exists": steps.is_some(), state: list })
    };
    let text = || {
        let place = escape(&database);
        match steps {
            None => format!("{place} does not exist yet and would be created\n"),
            Some([]) => format!("{place} is up to date\n"),
            Some(steps) => {
                let lines: Vec<String> =
                    steps.iter().map(|step| format!("\n  {} {}", step.number, step.name)).collect();
                format!("{place}: {} {state}{}\n", plural(steps.len(), "migration"), lines.concat())
            }
        }
    };
    Ok(output.result(json, text)?)
}

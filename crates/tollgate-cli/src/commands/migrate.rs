//! `tollgate migrate`: updates the database schema.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Value, json};
use tollgate_server::config::settings::{Flags, Settings, environment};
use tollgate_stores::sql::{Database, DatabaseError, Engine, Migration, SqlSettings};

use crate::error::CliError;
use crate::exit::Exit;
use crate::output::format::plural;
use crate::output::{Output, escape};

/// The flags of `migrate`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tollgate migrate --dry-run
  tollgate migrate --config tollgate.toml
  TOLLGATE_DATABASE__URL=postgres://tollgate@db.internal/tollgate tollgate migrate

`serve` does the same at startup. Several may run at once: one migrates, the others wait.")]
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
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(CliError::Runtime)?;
    if *dry_run {
        // A dry run must not create the file.
        let steps = if is_missing(&sql) { None } else { Some(runtime.block_on(pending(&sql))?) };
        return print_pending(&sql, steps.as_deref(), output);
    }
    if settings.database.url.is_none() {
        create_directory(&settings.data_dir)?;
    }
    let steps = runtime.block_on(migrate_schema(&sql))?;
    print_applied(&sql, &steps, output)
}

async fn pending(sql: &SqlSettings) -> Result<Vec<Migration>, DatabaseError> {
    let database = Database::connect(sql.clone()).await?;
    let steps = database.pending_migrations().await;
    database.close().await;
    steps
}

async fn migrate_schema(sql: &SqlSettings) -> Result<Vec<Migration>, DatabaseError> {
    let database = Database::connect(sql.clone()).await?;
    let steps = database.migrate().await;
    database.close().await;
    steps
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

fn print_pending(sql: &SqlSettings, steps: Option<&[Migration]>, output: &Output) -> Result<Exit, CliError> {
    let place = sql.describe();
    if output.json() {
        let steps = steps.map(steps_json);
        output.value(&json!({ "database": place, "exists": steps.is_some(), "pending": steps }))?;
        return Ok(Exit::Ok);
    }
    let place = escape(&place);
    output.text(&match steps {
        None => format!("{place} does not exist yet and would be created\n"),
        Some([]) => format!("{place} is up to date\n"),
        Some(steps) => format!("{place} has {} pending\n{}", plural(steps.len(), "migration"), lines(steps)),
    })?;
    Ok(Exit::Ok)
}

fn print_applied(sql: &SqlSettings, steps: &[Migration], output: &Output) -> Result<Exit, CliError> {
    let place = sql.describe();
    if output.json() {
        output.value(&json!({ "database": place, "applied": steps_json(steps) }))?;
        return Ok(Exit::Ok);
    }
    let place = escape(&place);
    output.text(&match steps {
        [] => format!("{place} is already up to date\n"),
        steps => format!("{place}: applied {}\n{}", plural(steps.len(), "migration"), lines(steps)),
    })?;
    Ok(Exit::Ok)
}

fn lines(steps: &[Migration]) -> String {
    let mut text = String::new();
    for Migration { number, name, .. } in steps {
        let _ = writeln!(text, "  {number} {name}");
    }
    text
}

fn steps_json(steps: &[Migration]) -> Value {
    steps.iter().map(|step| json!({ "number": step.number, "name": step.name })).collect()
}

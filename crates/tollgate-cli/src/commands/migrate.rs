//! `tollgate migrate`: brings the schema of the database up to date, without a running service.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Value, json};
use tollgate_server::config::settings::{Flags, Settings, environment};
use tollgate_stores::sql::{Database, DatabaseError, Engine, Migration, SqlSettings};

use crate::exit::Exit;
use crate::failure::{Failure, counted};
use crate::output::{Output, escape};

/// The flags of `migrate`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tollgate migrate --dry-run
  tollgate migrate --config tollgate.toml
  TOLLGATE_DATABASE__URL=postgres://tollgate@db.internal/tollgate tollgate migrate

`serve` does the same when it starts. Any number of these may run at once: one does it, the others wait.")]
pub(crate) struct Migrate {
    /// Print what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,
    /// The settings file
    #[arg(long, value_name = "FILE", env = "TOLLGATE_CONFIG")]
    config: Option<PathBuf>,
    /// Where the service keeps what must survive a restart, its own database too
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

pub(crate) fn run(migrate: &Migrate, output: &Output) -> Result<Exit, Failure> {
    let Migrate { dry_run, config, data_dir } = migrate;
    let flags = Flags { config: config.clone(), data_dir: data_dir.clone(), ..Flags::default() };
    let settings = Settings::load(&flags, environment())?;
    let sql = settings.database.sql(&settings.data_dir);
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::Runtime)?;
    if *dry_run {
        // To look must not make the file.
        let steps = if is_missing(&sql) { None } else { Some(runtime.block_on(pending(&sql))?) };
        return print_pending(&sql, steps.as_deref(), output);
    }
    if settings.database.url.is_none() {
        make_directory(&settings.data_dir)?;
    }
    let steps = runtime.block_on(take(&sql))?;
    print_taken(&sql, &steps, output)
}

async fn pending(sql: &SqlSettings) -> Result<Vec<Migration>, DatabaseError> {
    let database = Database::connect(sql.clone()).await?;
    let steps = database.pending_migrations().await;
    database.close().await;
    steps
}

async fn take(sql: &SqlSettings) -> Result<Vec<Migration>, DatabaseError> {
    let database = Database::connect(sql.clone()).await?;
    let steps = database.migrate().await;
    database.close().await;
    steps
}

/// Whether it is a file that is not there yet.
fn is_missing(sql: &SqlSettings) -> bool {
    let place = sql.describe();
    let file = place.strip_prefix("SQLite database ").filter(|_| sql.engine() == Engine::Sqlite);
    file.is_some_and(|file| !Path::new(file).exists())
}

/// As `serve` makes it: for its owner only.
fn make_directory(path: &Path) -> Result<(), Failure> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path).map_err(|source| Failure::Read { path: path.display().to_string(), source })
}

fn print_pending(sql: &SqlSettings, steps: Option<&[Migration]>, output: &Output) -> Result<Exit, Failure> {
    let place = sql.describe();
    if output.json() {
        let steps = steps.map(told);
        output.value(&json!({ "database": place, "exists": steps.is_some(), "pending": steps }))?;
        return Ok(Exit::Ok);
    }
    let place = escape(&place);
    output.text(&match steps {
        None => format!("{place} does not exist yet: it would be made\n"),
        Some([]) => format!("{place} is up to date\n"),
        Some(steps) => format!("{place} lacks {}\n{}", counted(steps.len(), "step"), lines(steps)),
    })?;
    Ok(Exit::Ok)
}

fn print_taken(sql: &SqlSettings, steps: &[Migration], output: &Output) -> Result<Exit, Failure> {
    let place = sql.describe();
    if output.json() {
        output.value(&json!({ "database": place, "applied": told(steps) }))?;
        return Ok(Exit::Ok);
    }
    let place = escape(&place);
    output.text(&match steps {
        [] => format!("{place} was up to date\n"),
        steps => format!("{place} is up to date: {}\n{}", counted(steps.len(), "step"), lines(steps)),
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

fn told(steps: &[Migration]) -> Value {
    steps.iter().map(|step| json!({ "number": step.number, "name": step.name })).collect()
}

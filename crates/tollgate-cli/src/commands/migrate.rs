//! `tollgate migrate`: updates the database schema.

use std::fs;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use serde_json::json;
use tollgate_server::config::settings::{Flags, Settings, environment};
use tollgate_stores::sql::{Database, Engine, Migration, MigrationSet, SqlSettings};

use crate::output::escape;
use crate::output::format::plural;
use crate::{CliError, Exit, Output};

#[derive(Args)]
#[command(after_help = "\
Examples:
  tollgate migrate --dry-run
  tollgate migrate --config tollgate.toml
  TOLLGATE_DATABASE__URL=postgres://db.internal/tollgate tollgate migrate
  tollgate migrate --print --engine postgres > schema.sql

`serve` does the same at startup. Several may run at once: one migrates, the
others wait. --print is for databases whose schema only an administrator may
change: run its output there, in one session.")]
pub(crate) struct Migrate {
    /// Print the pending steps without applying them
    #[arg(long)]
    dry_run: bool,
    /// Print the SQL of all migrations, without connecting to a database
    #[arg(long, conflicts_with = "dry_run")]
    print: bool,
    /// Engine of the SQL to print; by default that of the configured database
    #[arg(long, requires = "print")]
    engine: Option<EngineName>,
    /// Settings file
    #[arg(long, value_name = "FILE", env = "TOLLGATE_CONFIG")]
    config: Option<PathBuf>,
    /// Data directory of the service, which holds the embedded database
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

#[derive(Copy, Clone, ValueEnum)]
enum EngineName {
    Sqlite,
    Postgres,
    /// Also for MariaDB
    Mysql,
}

impl From<EngineName> for Engine {
    fn from(name: EngineName) -> Self {
        match name {
            EngineName::Sqlite => Engine::Sqlite,
            EngineName::Postgres => Engine::Postgres,
            EngineName::Mysql => Engine::MySql,
        }
    }
}

pub(crate) fn run(migrate: &Migrate, output: &Output) -> Result<Exit, CliError> {
    let Migrate { dry_run, print: print_sql, engine, config, data_dir } = migrate;
    if let Some(engine) = engine {
        return print_script((*engine).into(), output);
    }
    let flags = Flags { config: config.clone(), data_dir: data_dir.clone(), ..Flags::default() };
    let settings = Settings::load(&flags, environment())?;
    let sql = settings.database.sql(&settings.data_dir);
    if *print_sql {
        return print_script(sql.engine(), output);
    }
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

/// Prints a script that has the effect of `migrate` on an empty database.
fn print_script(engine: Engine, output: &Output) -> Result<Exit, CliError> {
    let set = MigrationSet::CONFIGURATION;
    let migrations = set.all();
    let json = || {
        let migration = |each: &Migration| json!({ "number": each.number, "name": each.name, "sql": each.sql(engine), "journal": set.journal_entry(each, engine) });
        json!({ "journal_table": set.create_journal(), "migrations": migrations.iter().map(migration).collect::<Vec<_>>() })
    };
    let text = || {
        let migration = |each: &Migration| {
            let (number, name) = (each.number, each.name);
            let (sql, journal) = (each.sql(engine).trim_end(), set.journal_entry(each, engine));
            format!("\n-- Migration {number}: {name}\n\n{sql}\n\n{journal}\n")
        };
        let scripts: String = migrations.iter().map(migration).collect();
        format!("{};\n{scripts}", set.create_journal())
    };
    Ok(output.result(json, text)?)
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

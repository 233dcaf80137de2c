//! `tollgate migrate`: updates the database schema.

use std::fs;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use serde_json::{Value as Json, json};
use tollgate_server::config::settings::{Flags, Settings, environment};
use tollgate_stores::sql::records::RecordsDatabase;
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

Migrates the database of the configuration and that of the records. A records.db
next to a shared configuration is left to the node that creates it.

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
    if !dry_run && settings.database.url.is_none() {
        create_directory(&settings.data_dir)?;
    }
    let state = if *dry_run { "pending" } else { "applied" };
    let configuration = Report::of(Schema::Configuration, sql, *dry_run)?;
    // A local file of records next to a shared configuration belongs to a node, which creates it.
    let has_records = settings.records.url.is_some() || settings.database.url.is_none();
    let records =
        settings.records.sql(&settings.data_dir).filter(|_| settings.records.enabled && has_records);
    let records = records.map(|sql| Report::of(Schema::Records, sql, *dry_run)).transpose()?;
    let json = || {
        let mut json = configuration.json(state);
        json["records"] = records.as_ref().map_or(Json::Null, |records| records.json(state));
        json
    };
    let text = || {
        let records = records.as_ref().map(|records| records.text(state));
        format!("{}{}", configuration.text(state), records.unwrap_or_default())
    };
    Ok(output.result(json, text)?)
}

#[derive(Copy, Clone)]
enum Schema {
    Configuration,
    Records,
}

/// The steps that are pending in a database or were applied to it.
struct Report {
    database: String,
    /// `None` if the database does not exist.
    steps: Option<Vec<Migration>>,
}

impl Report {
    /// Applies the pending steps unless it is a dry run.
    fn of(schema: Schema, sql: SqlSettings, dry_run: bool) -> Result<Self, CliError> {
        let database = sql.describe();
        // A dry run must not create the file.
        if dry_run && is_missing(&sql) {
            return Ok(Report { database, steps: None });
        }
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(CliError::Runtime)?;
        let steps = runtime.block_on(async {
            match schema {
                Schema::Configuration => {
                    let database = Database::connect(sql).await?;
                    let steps =
                        if dry_run { database.pending_migrations().await } else { database.migrate().await };
                    database.close().await;
                    steps
                }
                Schema::Records => {
                    let database = RecordsDatabase::connect(sql).await?;
                    let steps =
                        if dry_run { database.pending_migrations().await } else { database.migrate().await };
                    database.close().await;
                    steps
                }
            }
        })?;
        Ok(Report { database, steps: Some(steps) })
    }

    fn json(&self, state: &str) -> Json {
        let step = |step: &Migration| json!({ "number": step.number, "name": step.name });
        let list = self.steps.as_ref().map(|steps| steps.iter().map(step).collect::<Vec<_>>());
        json!({ "database": self.database, "exists": self.steps.is_some(), state: list })
    }

    fn text(&self, state: &str) -> String {
        let place = escape(&self.database);
        match self.steps.as_deref() {
            None => format!("{place} does not exist yet and would be created\n"),
            Some([]) => format!("{place} is up to date\n"),
            Some(steps) => {
                let lines: Vec<String> =
                    steps.iter().map(|step| format!("\n  {} {}", step.number, step.name)).collect();
                format!("{place}: {} {state}{}\n", plural(steps.len(), "migration"), lines.concat())
            }
        }
    }
}

/// Prints a script that has the effect of `migrate` on an empty database, with both schemas.
fn print_script(engine: Engine, output: &Output) -> Result<Exit, CliError> {
    let json = || {
        let mut json = script_json(MigrationSet::CONFIGURATION, engine);
        json["records"] = script_json(MigrationSet::RECORDS, engine);
        json
    };
    let text = || {
        let (configuration, records) = (MigrationSet::CONFIGURATION, MigrationSet::RECORDS);
        format!(
            "-- The configuration ([database])\n\n{}\n-- Records of decisions ([records])\n\n{}",
            script_text(configuration, engine),
            script_text(records, engine)
        )
    };
    Ok(output.result(json, text)?)
}

fn script_json(set: &MigrationSet, engine: Engine) -> Json {
    let migration = |each: &Migration| json!({ "number": each.number, "name": each.name, "sql": each.sql(engine), "journal": set.journal_entry(each, engine) });
    json!({ "journal_table": set.create_journal(), "migrations": set.all().iter().map(migration).collect::<Vec<_>>() })
}

fn script_text(set: &MigrationSet, engine: Engine) -> String {
    let migration = |each: &Migration| {
        let (number, name) = (each.number, each.name);
        let (sql, journal) = (each.sql(engine).trim_end(), set.journal_entry(each, engine));
        format!("\n-- Migration {number}: {name}\n\n{sql}\n\n{journal}\n")
    };
    let scripts: String = set.all().iter().map(migration).collect();
    format!("{};\n{scripts}", set.create_journal())
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

//! `tollgate archive`: records beyond their retention, in a folder or an object store.
//!
//! The commands use the archive and the records database of the settings file, not a server.

mod list;
mod prune;
mod restore;
mod run;
mod verify;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use jiff::{SignedDuration, Timestamp};
use tollgate::config::values::parse_span;
use tollgate_server::config::settings::{ArchiveSection, Flags, Settings, environment};
use tollgate_stores::archive::{Archive, ArchivedFile, ArchivedTable};
use tollgate_stores::sql::records::RecordsDatabase;

use super::audit::parse_time;
use crate::{CliError, Exit, Output};

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Archive what is beyond its retention now
    #[command(after_help = "\
Examples:
  tollgate archive run --config tollgate.toml

Nodes do this by themselves once an hour. A period is written, read back and
compared before it is removed from the database.")]
    Run(run::Run),
    /// List the archived files
    #[command(after_help = "\
Examples:
  tollgate archive list
  tollgate archive list --table rate_limit_audit_logs --since 365d")]
    List(list::List),
    /// Read archived files and compare them with what was archived
    #[command(after_help = "\
Examples:
  tollgate archive verify
  tollgate archive verify --since 90d

Exit codes: 0 all files are complete, 2 a file is damaged or missing.")]
    Verify(verify::Verify),
    /// Write archived records into a database
    #[command(after_help = "\
Examples:
  tollgate archive restore --since 2026-01-01T00:00:00Z --until 2026-02-01T00:00:00Z \\
    --into sqlite:///tmp/january.db

Without --into, records return to the database of the settings file; extend
their retention first. Records that the database has stay as they are.")]
    Restore(restore::Restore),
    /// Delete files that were kept long enough
    #[command(after_help = "\
Examples:
  tollgate archive prune --dry-run
  tollgate archive prune --older-than 3650d

Without --older-than, files are kept for records.archive.keep.")]
    Prune(prune::Prune),
}

pub(crate) fn run(command: &Command, output: &Output) -> Result<Exit, CliError> {
    match command {
        Command::Run(run) => run.run(output),
        Command::List(list) => list.run(output),
        Command::Verify(verify) => verify.run(output),
        Command::Restore(restore) => restore.run(output),
        Command::Prune(prune) => prune.run(output),
    }
}

/// The settings that name the archive and the database.
#[derive(Args, Clone)]
pub(super) struct ArchiveArgs {
    /// Settings file
    #[arg(long, value_name = "FILE", env = "TOLLGATE_CONFIG")]
    config: Option<PathBuf>,
    /// Data directory of the service, which holds the embedded database
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

/// An archive and the settings that name it.
pub(super) struct OpenArchive {
    pub(super) settings: Settings,
    pub(super) section: ArchiveSection,
    pub(super) archive: Archive,
}

impl ArchiveArgs {
    pub(super) fn open(&self) -> Result<OpenArchive, CliError> {
        let flags =
            Flags { config: self.config.clone(), data_dir: self.data_dir.clone(), ..Flags::default() };
        let settings = Settings::load(&flags, environment())?;
        let section = settings.records.archive.clone().ok_or_else(|| {
            let message = "no archive is configured: set records.archive.url in the settings file";
            CliError::Arguments(message.to_owned())
        })?;
        let archive = Archive::open(&section.archive)?;
        Ok(OpenArchive { settings, section, archive })
    }
}

impl OpenArchive {
    /// The records database, with its schema.
    async fn database(&self) -> Result<RecordsDatabase, CliError> {
        let sql = self.settings.records.sql(&self.settings.data_dir).ok_or_else(|| {
            CliError::Arguments("records.url is \"none\": there is no records database".to_owned())
        })?;
        let database = RecordsDatabase::connect(sql).await?;
        database.migrate().await?;
        Ok(database)
    }
}

/// Which files.
#[derive(Args)]
struct FileArgs {
    /// Only files of this table
    #[arg(long, value_name = "TABLE", value_parser = parse_table)]
    table: Option<ArchivedTable>,
    /// Only files with records since then: how long ago (90d) or a time (2027-01-31T12:00:00Z)
    #[arg(long, value_name = "WHEN", value_parser = parse_time)]
    since: Option<String>,
    /// Only files with records before then: how long ago or a time
    #[arg(long, value_name = "WHEN", value_parser = parse_time)]
    until: Option<String>,
}

impl FileArgs {
    async fn list(&self, archive: &Archive) -> Result<Vec<ArchivedFile>, CliError> {
        let now = now_micros();
        let since = self.since.as_deref().and_then(|when| micros_of(when, now)).unwrap_or(0);
        let until = self.until.as_deref().and_then(|when| micros_of(when, now)).unwrap_or(u64::MAX);
        let mut files = archive.list().await?;
        files.retain(|file| {
            self.table.is_none_or(|table| table == file.file.table)
                && file.times.1 >= since
                && file.times.0 < until
        });
        Ok(files)
    }
}

fn parse_table(name: &str) -> Result<ArchivedTable, String> {
    ArchivedTable::parse(name).ok_or_else(|| {
        let names = ArchivedTable::ALL.map(ArchivedTable::as_str);
        format!("must be one of {}", names.join(", "))
    })
}

/// Microseconds since 1970 of a time, or of a duration before now.
pub(super) fn micros_of(when: &str, now: u64) -> Option<u64> {
    if let Ok(time) = when.parse::<Timestamp>() {
        return Some(u64::try_from(time.as_microsecond()).unwrap_or(0));
    }
    Some(now.saturating_sub(parse_span(when).ok()?.as_micros()))
}

pub(super) fn now_micros() -> u64 {
    u64::try_from(Timestamp::now().as_microsecond()).unwrap_or(0)
}

/// `2026-08-01 10:30`.
fn format_micros(micros: u64) -> String {
    let since = SignedDuration::from_micros(i64::try_from(micros).unwrap_or(i64::MAX));
    let time = Timestamp::UNIX_EPOCH.checked_add(since);
    time.map(|time| time.strftime("%Y-%m-%d %H:%M").to_string()).unwrap_or_default()
}

/// Runs a command that waits for the archive.
pub(super) fn block_on<T>(command: impl Future<Output = Result<T, CliError>>) -> Result<T, CliError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(CliError::Runtime)?.block_on(command)
}

/// The name under which a command works on the archive. No two commands have the same, on any machine.
fn process_name() -> String {
    format!("tollgate archive {}-{}", std::process::id(), now_micros())
}

//! Connections to SQLite.

use std::fs::OpenOptions;
use std::path::Path;
use std::time::{Duration, Instant};

use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{ConnectOptions as _, Connection as _, SqliteConnection};
use tokio::time::sleep;

use super::Durability;
use crate::sql::error::DatabaseError;
use crate::sql::settings::SqlSettings;

/// Pause between attempts while another process holds the lock.
const BUSY_PAUSE: Duration = Duration::from_millis(10);
/// Pages that the log of a records database collects before they are copied to the file: 16 MB. A power
/// failure can lose what was not copied.
const CHECKPOINT_PAGES: &str = "4000";
/// How long a copy waits for a process that switches the journal mode or recovers the file.
const COPY_BUSY_TIMEOUT: Duration = Duration::from_secs(30);

pub(super) async fn connect(
    settings: &SqlSettings,
    path: &Path,
    durability: Durability,
) -> Result<SqlitePool, DatabaseError> {
    create_file(path).map_err(|cause| DatabaseError::File { database: settings.describe(), cause })?;
    let options = SqliteConnectOptions::new()
        .filename(path)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(match durability {
            Durability::Commit => SqliteSynchronous::Full,
            Durability::Checkpoint => SqliteSynchronous::Normal,
        })
        .busy_timeout(settings.statement_timeout)
        .foreign_keys(true)
        .disable_statement_logging();
    let options = match durability {
        Durability::Commit => options,
        // Batches change pages all over the indexes: the same page again and again before it is copied to the file.
        Durability::Checkpoint => options.pragma("wal_autocheckpoint", CHECKPOINT_PAGES),
    };
    // A single connection first, for its error: the pool reports only a timeout.
    let first = connect_when_free(&options, settings.statement_timeout).await;
    let first = first.map_err(|cause| DatabaseError::from_connect(settings.describe(), cause))?;
    first.close().await?;
    let pool = SqlitePoolOptions::new()
        .max_connections(settings.connections_max)
        .acquire_timeout(settings.connect_timeout + settings.statement_timeout);
    Ok(pool.connect_lazy_with(options))
}

/// Writes a consistent copy of a database that other processes may be using. They read and write meanwhile.
///
/// # Errors
/// When the database cannot be read, or the copy cannot be written.
pub async fn copy(from: &Path, to: &Path) -> Result<(), DatabaseError> {
    let database = format!("SQLite database {}", from.display());
    let target = format!("SQLite database {}", to.display());
    // The copy goes into the empty file, which has the right mode.
    create_file(to).map_err(|cause| DatabaseError::File { database: target, cause })?;
    let options = SqliteConnectOptions::new().filename(from).create_if_missing(false);
    let options = options.busy_timeout(COPY_BUSY_TIMEOUT).disable_statement_logging();
    let opened = connect_when_free(&options, COPY_BUSY_TIMEOUT).await;
    let mut connection = opened.map_err(|cause| DatabaseError::from_connect(database, cause))?;
    let copied = sqlx::query("VACUUM INTO ?").bind(to.to_string_lossy().into_owned());
    copied.execute(&mut connection).await?;
    connection.close().await?;
    Ok(())
}

/// Connects, and retries while another process switches the journal mode: SQLite's busy timeout does not cover that.
async fn connect_when_free(
    options: &SqliteConnectOptions,
    timeout: Duration,
) -> Result<SqliteConnection, sqlx::Error> {
    let started = Instant::now();
    loop {
        match options.connect().await {
            Err(error) if is_busy(&error) && started.elapsed() < timeout => sleep(BUSY_PAUSE).await,
            connected => return connected,
        }
    }
}

fn is_busy(error: &sqlx::Error) -> bool {
    const BUSY: u32 = 5;
    let code = error.as_database_error().and_then(|error| error.code()?.parse::<u32>().ok());
    // The upper bits are the extended result code.
    code.is_some_and(|code| code & 0xff == BUSY)
}

/// Creates a missing file, readable by its owner only: it holds hashes of API keys.
fn create_file(path: &Path) -> std::io::Result<()> {
    let mut options = OpenOptions::new();
    options.create(true).append(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path).map(drop)
}

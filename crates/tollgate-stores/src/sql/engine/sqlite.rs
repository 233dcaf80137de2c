//! Connections to SQLite.

use std::fs::OpenOptions;
use std::path::Path;
use std::time::{Duration, Instant};

use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{ConnectOptions as _, Connection as _, SqliteConnection};
use tokio::time::sleep;

use crate::sql::error::DatabaseError;
use crate::sql::settings::SqlSettings;

/// How long to wait before another attempt while somebody else is connecting.
const BUSY_PAUSE: Duration = Duration::from_millis(10);

pub(super) async fn connect(settings: &SqlSettings, path: &Path) -> Result<SqlitePool, DatabaseError> {
    make_file(path).map_err(|cause| DatabaseError::File { place: settings.describe(), cause })?;
    let options = SqliteConnectOptions::new()
        .filename(path)
        .journal_mode(SqliteJournalMode::Wal)
        // A change that was answered with its version survives a power cut.
        .synchronous(SqliteSynchronous::Full)
        .busy_timeout(settings.statement_timeout)
        .foreign_keys(true)
        .disable_statement_logging();
    // One connection on its own first: the pool would say no more than that time ran out.
    let first = connect_once(&options, settings.statement_timeout).await;
    let first = first.map_err(|cause| DatabaseError::connecting(settings.describe(), cause))?;
    first.close().await?;
    let pool = SqlitePoolOptions::new()
        .max_connections(settings.connections_max)
        .acquire_timeout(settings.connect_timeout + settings.statement_timeout);
    Ok(pool.connect_lazy_with(options))
}

/// Connects, and waits while another process does so for the first time: SQLite itself does not wait for who changes the kind of
/// journal.
async fn connect_once(
    options: &SqliteConnectOptions,
    patience: Duration,
) -> Result<SqliteConnection, sqlx::Error> {
    let started = Instant::now();
    loop {
        match options.connect().await {
            Err(error) if is_busy(&error) && started.elapsed() < patience => sleep(BUSY_PAUSE).await,
            connected => return connected,
        }
    }
}

fn is_busy(error: &sqlx::Error) -> bool {
    const BUSY: u32 = 5;
    let code = error.as_database_error().and_then(|error| error.code()?.parse::<u32>().ok());
    // The higher bits say what it is busy with.
    code.is_some_and(|code| code & 0xff == BUSY)
}

/// Makes the file if it is missing, for our eyes only: there are hashes of keys in it.
fn make_file(path: &Path) -> std::io::Result<()> {
    let mut options = OpenOptions::new();
    options.create(true).append(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path).map(drop)
}

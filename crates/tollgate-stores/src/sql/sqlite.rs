//! Connections to SQLite.

use std::fs::OpenOptions;
use std::path::Path;

use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{ConnectOptions as _, Connection as _};

use super::error::DatabaseError;
use super::settings::SqlSettings;

pub(super) async fn connect(settings: &SqlSettings, path: &Path) -> Result<SqlitePool, DatabaseError> {
    make_file(path).map_err(|cause| DatabaseError::File { place: settings.place(), cause })?;
    let options = SqliteConnectOptions::new()
        .filename(path)
        .journal_mode(SqliteJournalMode::Wal)
        // A change that was answered with its version survives a power cut.
        .synchronous(SqliteSynchronous::Full)
        .busy_timeout(settings.statement_timeout)
        .foreign_keys(true)
        .disable_statement_logging();
    // One connection on its own first: the pool would say no more than that time ran out.
    let first = options.connect().await;
    let first = first.map_err(|cause| DatabaseError::connecting(settings.place(), cause))?;
    first.close().await?;
    let pool = SqlitePoolOptions::new()
        .max_connections(settings.connections_max)
        .acquire_timeout(settings.connect_timeout + settings.statement_timeout);
    Ok(pool.connect_lazy_with(options))
}

/// Makes the file if it is missing, for our eyes only: there are hashes of keys in it.
fn make_file(path: &Path) -> std::io::Result<()> {
    let mut options = OpenOptions::new();
    options.create(true).append(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path).map(drop)
}

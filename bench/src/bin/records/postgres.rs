//! The tables of records on a private PostgreSQL server.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::fs::{Advice, fadvise};
use tollgate_stores::sql::SqlSettings;
use tollgate_stores::sql::records::{RecordsDatabase, Retention};
use tollgate_testkit::PostgresServer;

/// Creates the tables, with partitions for this time and the next two periods.
pub async fn create_tables(url: &str, now_micros: u64) -> Result<()> {
    let kept = Duration::from_hours(90 * 24);
    let retention =
        Retention { log: kept, windows: kept, rollups: kept, sqlite_bytes_max: None, is_archived: false };
    let database = RecordsDatabase::connect(SqlSettings::from_url(url)?).await?;
    database.migrate().await?;
    database.maintain("bench", now_micros, &retention).await?;
    database.close().await;
    Ok(())
}

/// Restarts the server and removes its files from the page cache, so that it reads from the disk.
pub fn drop_caches(server: &PostgresServer) -> Result<()> {
    server.execute("postgres", "CHECKPOINT");
    let data = server.execute("postgres", "SHOW data_directory");
    server.restart();
    evict(Path::new(data.trim())).context("cannot evict the data of PostgreSQL")
}

fn evict(path: &Path) -> Result<()> {
    for entry in fs::read_dir(path)? {
        let path = entry?.path();
        if path.is_dir() {
            evict(&path)?;
        } else if let Ok(file) = fs::File::open(&path) {
            // A temporary file may be gone by now.
            file.sync_data()?;
            fadvise(&file, 0, None, Advice::DontNeed)?;
        }
    }
    Ok(())
}

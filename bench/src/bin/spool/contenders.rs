//! Queues on disk. Each stores a frame of rows as one element.

use std::path::Path;

use anyhow::{Result, bail, ensure};
use queue_file::QueueFile;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::{ConnectOptions as _, Row as _, SqliteConnection};
use tokio::runtime::Runtime;
use tollgate_server::bench::Spool;

/// A queue on disk.
pub trait Queue {
    /// Appends a frame.
    fn append(&mut self, rows: u32, payload: &[u8]) -> Result<()>;
    /// Makes all frames durable.
    fn sync(&mut self) -> Result<()>;
    /// Reads and removes a frame. Returns its rows.
    fn take(&mut self) -> Result<u64>;
}

pub fn open_queue(name: &str, folder: &Path) -> Result<Box<dyn Queue>> {
    Ok(match name {
        "segments" => Box::new(Segments(Spool::open(&folder.join("log"), u64::MAX)?)),
        "queue-file" => Box::new(OneFile::open(folder)?),
        _ => Box::new(Sqlite::open(folder)?),
    })
}

struct Segments(Spool);

impl Queue for Segments {
    fn append(&mut self, rows: u32, payload: &[u8]) -> Result<()> {
        ensure!(self.0.append(rows, payload), "not written");
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        ensure!(self.0.sync(), "not synced");
        Ok(())
    }

    fn take(&mut self) -> Result<u64> {
        Ok(self.0.take(1_000)?)
    }
}

/// A ring in one file. Frames start with their number of rows.
struct OneFile {
    queue: QueueFile,
    frame: Vec<u8>,
}

impl OneFile {
    fn open(folder: &Path) -> Result<Self> {
        let mut queue = QueueFile::open(folder.join("rows.queue"))?;
        queue.set_sync_writes(false);
        queue.set_overwrite_on_remove(false);
        Ok(Self { queue, frame: Vec::new() })
    }
}

impl Queue for OneFile {
    fn append(&mut self, rows: u32, payload: &[u8]) -> Result<()> {
        self.frame.clear();
        self.frame.extend_from_slice(&rows.to_le_bytes());
        self.frame.extend_from_slice(payload);
        Ok(self.queue.add(&self.frame)?)
    }

    fn sync(&mut self) -> Result<()> {
        Ok(self.queue.sync_all()?)
    }

    fn take(&mut self) -> Result<u64> {
        if !self.queue.peek_into(&mut self.frame)? {
            return Ok(0);
        }
        let Some(rows) = self.frame.first_chunk() else { bail!("a frame without rows") };
        let rows = u32::from_le_bytes(*rows);
        self.queue.remove()?;
        Ok(u64::from(rows))
    }
}

/// A table. A transaction is committed at every sync.
struct Sqlite {
    runtime: Runtime,
    connection: SqliteConnection,
    has_transaction: bool,
}

impl Sqlite {
    fn open(folder: &Path) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let options = SqliteConnectOptions::new()
            .filename(folder.join("rows.db"))
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full);
        let connection = runtime.block_on(options.connect())?;
        let mut sqlite = Self { runtime, connection, has_transaction: false };
        sqlite.execute("CREATE TABLE frames (id INTEGER PRIMARY KEY, row_count INTEGER, payload BLOB)")?;
        Ok(sqlite)
    }

    fn execute(&mut self, sql: &'static str) -> Result<()> {
        self.runtime.block_on(sqlx::query(sql).execute(&mut self.connection))?;
        Ok(())
    }

    fn begin(&mut self) -> Result<()> {
        if !self.has_transaction {
            self.execute("BEGIN")?;
            self.has_transaction = true;
        }
        Ok(())
    }
}

impl Queue for Sqlite {
    fn append(&mut self, rows: u32, payload: &[u8]) -> Result<()> {
        self.begin()?;
        let insert = sqlx::query("INSERT INTO frames (row_count, payload) VALUES (?, ?)");
        let insert = insert.bind(i64::from(rows)).bind(payload.to_vec());
        self.runtime.block_on(insert.execute(&mut self.connection))?;
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        if std::mem::take(&mut self.has_transaction) {
            self.execute("COMMIT")?;
        }
        Ok(())
    }

    fn take(&mut self) -> Result<u64> {
        self.begin()?;
        let select = sqlx::query("SELECT id, row_count, payload FROM frames ORDER BY id LIMIT 1");
        let Some(row) = self.runtime.block_on(select.fetch_optional(&mut self.connection))? else {
            self.sync()?;
            return Ok(0);
        };
        let (id, rows): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
        let delete = sqlx::query("DELETE FROM frames WHERE id = ?").bind(id);
        self.runtime.block_on(delete.execute(&mut self.connection))?;
        Ok(u64::try_from(rows)?)
    }
}

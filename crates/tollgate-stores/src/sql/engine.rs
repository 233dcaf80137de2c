//! Connection pools, transactions and rows, with the same interface on every engine.
//!
//! An enum over the typed pools of `sqlx`. `sqlx::Any` would not help: placeholders and column types still differ.
//!
//! `sqlx::Transaction` is not used either. Its future may be dropped at any `await` (a client disconnects, a timeout fires), and
//! on MySQL the connection can then return to the pool with the transaction still open. [`Transaction`] closes its connection
//! unless it was committed or rolled back, so the server discards the unfinished work.

mod mysql;
mod postgres;
pub(crate) mod sqlite;

use std::fmt;
use std::io;
use std::time::Duration;

use futures_util::TryStreamExt as _;
use sqlx::mysql::{MySql, MySqlPool, MySqlRow};
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgPool, PgRow, Postgres};
use sqlx::sqlite::{Sqlite, SqlitePool, SqliteRow};
use sqlx::{AssertSqlSafe, Row as _};

use super::error::{DatabaseError, ValueError};
use super::query::{Query, Value};
use super::settings::{Engine, Options, SqlSettings};

/// Connections to one database.
#[derive(Clone)]
pub(super) struct Pool {
    pools: Pools,
    /// Client-side timeout of a statement. Longer than the server's own timeout, whose error says more.
    deadline: Duration,
}

/// What survives a power failure in a SQLite file.
#[derive(Copy, Clone, Debug)]
pub(super) enum Durability {
    /// Every committed change.
    Commit,
    /// Everything up to the last checkpoint, in exchange for commits that do not wait for the disk. The file stays consistent.
    Checkpoint,
}

#[derive(Clone)]
enum Pools {
    Sqlite(SqlitePool),
    Postgres(PgPool),
    MySql(MySqlPool),
}

/// A transaction. Closes its connection when dropped before [`commit`](Self::commit) or [`rollback`](Self::rollback).
pub(super) struct Transaction {
    connection: Connection,
    deadline: Duration,
    has_ended: bool,
}

enum Connection {
    Sqlite(PoolConnection<Sqlite>),
    Postgres(PoolConnection<Postgres>),
    MySql(PoolConnection<MySql>),
}

/// A row of a result.
pub(super) enum Row {
    Sqlite(SqliteRow),
    Postgres(PgRow),
    MySql(MySqlRow),
}

/// A query with its values bound. `$text` converts a text for the driver.
macro_rules! bound {
    ($sql:expr, $query:expr, $text:ident) => {{
        let mut query = sqlx::query(AssertSqlSafe($sql));
        for value in &$query.values {
            query = match value {
                Value::Int(number) => query.bind(*number),
                Value::Text(text) => query.bind(text.as_deref().map(|text| text.$text())),
                Value::Bytes(bytes) => query.bind(bytes.as_deref().map(<[u8]>::to_vec)),
            };
        }
        query
    }};
}

/// The same expression for every engine.
macro_rules! on_each_engine {
    ($enum:ident, $value:expr, $inner:ident => $body:expr) => {
        match $value {
            $enum::Sqlite($inner) => $body,
            $enum::Postgres($inner) => $body,
            $enum::MySql($inner) => $body,
        }
    };
}

impl Pool {
    pub(super) async fn connect(
        settings: &SqlSettings,
        durability: Durability,
    ) -> Result<Self, DatabaseError> {
        let pools = match settings.options() {
            Options::Sqlite(path) => Pools::Sqlite(sqlite::connect(settings, path, durability).await?),
            Options::Postgres(options) => Pools::Postgres(postgres::connect(settings, options).await?),
            Options::MySql(options) => Pools::MySql(mysql::connect(settings, options).await?),
        };
        let deadline = settings.statement_timeout.saturating_add(settings.connect_timeout);
        Ok(Pool { pools, deadline })
    }

    /// Begins a read-only transaction on a consistent snapshot.
    pub(super) async fn begin_snapshot(&self) -> Result<Transaction, DatabaseError> {
        self.begin(match self.pools {
            Pools::Sqlite(_) => "BEGIN DEFERRED",
            Pools::Postgres(_) => "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
            Pools::MySql(_) => "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY",
        })
        .await
    }

    /// Begins a transaction that writes. On SQLite it takes the write lock at once.
    pub(super) async fn begin_write(&self) -> Result<Transaction, DatabaseError> {
        self.begin(match self.pools {
            Pools::Sqlite(_) => "BEGIN IMMEDIATE",
            Pools::Postgres(_) => "BEGIN ISOLATION LEVEL READ COMMITTED",
            Pools::MySql(_) => "START TRANSACTION",
        })
        .await
    }

    /// Begins a transaction that adds rows. On MySQL it takes no gap locks, so that writers of other rows do not deadlock.
    pub(super) async fn begin_append(&self) -> Result<Transaction, DatabaseError> {
        self.begin(match self.pools {
            Pools::Sqlite(_) => "BEGIN IMMEDIATE",
            Pools::Postgres(_) => "BEGIN ISOLATION LEVEL READ COMMITTED",
            Pools::MySql(_) => "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; START TRANSACTION",
        })
        .await
    }

    async fn begin(&self, sql: &'static str) -> Result<Transaction, DatabaseError> {
        let connection = match &self.pools {
            Pools::Sqlite(pool) => Connection::Sqlite(pool.acquire().await?),
            Pools::Postgres(pool) => Connection::Postgres(pool.acquire().await?),
            Pools::MySql(pool) => Connection::MySql(pool.acquire().await?),
        };
        let mut transaction = Transaction { connection, deadline: self.deadline, has_ended: false };
        transaction.execute_script(sql).await?;
        Ok(transaction)
    }

    pub(super) async fn close(&self) {
        on_each_engine!(Pools, &self.pools, pool => pool.close().await);
    }
}

impl Transaction {
    pub(super) fn engine(&self) -> Engine {
        match self.connection {
            Connection::Sqlite(_) => Engine::Sqlite,
            Connection::Postgres(_) => Engine::Postgres,
            Connection::MySql(_) => Engine::MySql,
        }
    }

    /// Runs a statement.
    pub(super) async fn execute(&mut self, query: &Query<'_>) -> Result<(), DatabaseError> {
        self.rows(query).await.map(drop)
    }

    /// Runs a statement; returns the number of rows that it matched.
    pub(super) async fn execute_counted(&mut self, query: &Query<'_>) -> Result<u64, DatabaseError> {
        query.check()?;
        Ok(match &mut self.connection {
            Connection::Sqlite(on) => {
                let done = bound!(query.text.clone(), query, to_owned).execute(&mut **on);
                with_deadline(self.deadline, done).await?.rows_affected()
            }
            Connection::Postgres(on) => {
                let done = bound!(query.for_postgres(), query, to_owned).execute(&mut **on);
                with_deadline(self.deadline, done).await?.rows_affected()
            }
            Connection::MySql(on) => {
                let done = bound!(query.for_mysql(), query, as_bytes).execute(&mut **on);
                with_deadline(self.deadline, done).await?.rows_affected()
            }
        })
    }

    /// Runs a `COPY … FROM STDIN` of PostgreSQL with this input. Other engines do not have it.
    pub(super) async fn copy_in(
        &mut self,
        statement: &'static str,
        input: &[u8],
    ) -> Result<(), DatabaseError> {
        let Connection::Postgres(on) = &mut self.connection else {
            return Err(sqlx::Error::Protocol("only PostgreSQL has COPY".to_owned()).into());
        };
        let copied = async {
            let mut copy = on.copy_in_raw(statement).await?;
            copy.send(input).await?;
            copy.finish().await.map(drop)
        };
        Ok(with_deadline(self.deadline, copied).await?)
    }

    /// Runs a `COPY … TO STDOUT` of PostgreSQL; passes on its messages as they arrive. Other engines do not have it.
    pub(super) async fn copy_out(
        &mut self,
        statement: &str,
        read: &mut (dyn FnMut(&[u8]) -> Result<(), DatabaseError> + Send),
    ) -> Result<(), DatabaseError> {
        let Connection::Postgres(on) = &mut self.connection else {
            return Err(sqlx::Error::Protocol("only PostgreSQL has COPY".to_owned()).into());
        };
        let copied = async {
            let mut messages = on.copy_out_raw(statement).await?;
            while let Some(message) = messages.try_next().await? {
                if let Err(error) = read(&message) {
                    return Ok(Err(error));
                }
            }
            Ok::<_, sqlx::Error>(Ok(()))
        };
        with_deadline(self.deadline, copied).await?
    }

    /// Runs a query; returns all rows.
    pub(super) async fn rows(&mut self, query: &Query<'_>) -> Result<Vec<Row>, DatabaseError> {
        query.check()?;
        Ok(match &mut self.connection {
            Connection::Sqlite(on) => {
                let rows = bound!(query.text.clone(), query, to_owned).fetch_all(&mut **on);
                with_deadline(self.deadline, rows).await?.into_iter().map(Row::Sqlite).collect()
            }
            Connection::Postgres(on) => {
                let rows = bound!(query.for_postgres(), query, to_owned).fetch_all(&mut **on);
                with_deadline(self.deadline, rows).await?.into_iter().map(Row::Postgres).collect()
            }
            Connection::MySql(on) => {
                let rows = bound!(query.for_mysql(), query, as_bytes).fetch_all(&mut **on);
                with_deadline(self.deadline, rows).await?.into_iter().map(Row::MySql).collect()
            }
        })
    }

    /// Runs a query; returns the first row.
    pub(super) async fn row(&mut self, query: &Query<'_>) -> Result<Option<Row>, DatabaseError> {
        Ok(self.rows(query).await?.into_iter().next())
    }

    /// Runs one or more statements without values.
    pub(super) async fn execute_script(&mut self, sql: impl Into<String>) -> Result<(), sqlx::Error> {
        let script = sqlx::raw_sql(AssertSqlSafe(sql.into()));
        on_each_engine!(Connection, &mut self.connection, on => {
            with_deadline(self.deadline, script.execute(&mut **on)).await.map(drop)
        })
    }

    /// Removes the client-side timeout, and closes the connection when the transaction ends, however it ends.
    pub(super) fn disable_deadline(&mut self) {
        self.deadline = Duration::MAX;
        self.close_on_drop();
    }

    fn close_on_drop(&mut self) {
        on_each_engine!(Connection, &mut self.connection, connection => connection.close_on_drop());
    }

    pub(super) async fn rollback(mut self) -> Result<(), DatabaseError> {
        self.execute_script("ROLLBACK").await?;
        self.has_ended = true;
        Ok(())
    }

    /// Rolls back and returns `result`. After an error other than a conflict the connection is closed instead of reused.
    pub(super) async fn rollback_with<T>(self, result: Result<T, DatabaseError>) -> Result<T, DatabaseError> {
        if let Ok(_) | Err(DatabaseError::Conflict { .. }) = &result {
            let rolled_back = self.rollback().await;
            return result.and_then(|value| rolled_back.map(|()| value));
        }
        result
    }

    pub(super) async fn commit(mut self) -> Result<(), DatabaseError> {
        self.execute_script("COMMIT").await.map_err(DatabaseError::from_commit)?;
        self.has_ended = true;
        Ok(())
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        if !self.has_ended {
            self.close_on_drop();
        }
    }
}

impl Row {
    pub(super) fn int(&self, column: usize) -> Result<i64, DatabaseError> {
        Ok(on_each_engine!(Row, self, row => row.try_get(column))?)
    }

    pub(super) fn maybe_int(&self, column: usize) -> Result<Option<i64>, DatabaseError> {
        Ok(on_each_engine!(Row, self, row => row.try_get(column))?)
    }

    pub(super) fn text(&self, column: usize, what: &'static str) -> Result<String, DatabaseError> {
        self.maybe_text(column, what)?.ok_or(DatabaseError::Corrupt { what })
    }

    pub(super) fn maybe_text(
        &self,
        column: usize,
        what: &'static str,
    ) -> Result<Option<String>, DatabaseError> {
        match self {
            Row::Sqlite(row) => Ok(row.try_get(column)?),
            Row::Postgres(row) => Ok(row.try_get(column)?),
            Row::MySql(row) => {
                let text = row.try_get::<Option<Vec<u8>>, _>(column)?.map(String::from_utf8);
                text.transpose().map_err(|_| DatabaseError::Corrupt { what })
            }
        }
    }

    pub(super) fn bytes(&self, column: usize) -> Result<Option<Vec<u8>>, DatabaseError> {
        Ok(on_each_engine!(Row, self, row => row.try_get(column))?)
    }
}

impl fmt::Debug for Pool {
    /// The driver's own `Debug` prints the password.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Pool").finish_non_exhaustive()
    }
}

/// Waits for a driver's future for at most `deadline`.
pub(super) async fn with_deadline<T>(
    deadline: Duration,
    answer: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, sqlx::Error> {
    let answer = tokio::time::timeout(deadline, answer).await;
    answer.unwrap_or_else(|_| Err(sqlx::Error::Io(io::ErrorKind::TimedOut.into())))
}

/// Converts to the signed integers of SQL.
pub(super) fn to_i64(number: u64, field: &'static str) -> Result<i64, DatabaseError> {
    i64::try_from(number).map_err(|_| DatabaseError::value(field, ValueError::TooLarge))
}

/// Converts from the signed integers of SQL. A value out of range means that the row is corrupt.
pub(super) fn from_i64<T: TryFrom<i64>>(number: i64, what: &'static str) -> Result<T, DatabaseError> {
    T::try_from(number).map_err(|_| DatabaseError::Corrupt { what })
}

//! Three drivers behind one door: transactions, rows and values that are the same on every engine.
//!
//! An enum over typed pools rather than `sqlx::Any`, whose placeholders and types differ between engines all the same.
//!
//! Nor `sqlx::Transaction`: a future that waits for a database may be dropped at any `await`, when a client goes away or time
//! runs out, and the drivers do not know then what they were waiting for. On MySQL such a connection goes back to the pool
//! out of step, or with the transaction still open. Here a transaction that has not come to its end takes its connection with
//! it, and the server undoes what was not final.

mod mysql;
mod postgres;
mod sqlite;

use std::fmt;
use std::io;
use std::time::Duration;

use sqlx::mysql::{MySql, MySqlPool, MySqlRow};
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgPool, PgRow, Postgres};
use sqlx::sqlite::{Sqlite, SqlitePool, SqliteRow};
use sqlx::{AssertSqlSafe, Row as _};

use super::error::{DatabaseError, ValueError};
use super::items::table::{Cell, Form};
use super::query::{Query, Value};
use super::settings::{Engine, Options, SqlSettings};

/// Connections to one database.
#[derive(Clone)]
pub(super) struct Pool {
    engine: Pools,
    /// How long we wait for an answer. Longer than the server may take: it can say more about what is wrong.
    deadline: Duration,
}

#[derive(Clone)]
enum Pools {
    Sqlite(SqlitePool),
    Postgres(PgPool),
    MySql(MySqlPool),
}

/// A transaction. Dropped before its end it is undone, and its connection closed.
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

/// What a query found.
pub(super) enum Row {
    Sqlite(SqliteRow),
    Postgres(PgRow),
    MySql(MySqlRow),
}

/// A query with its values. Texts are sent as `$text` makes them.
macro_rules! bound {
    ($sql:expr, $values:expr, $text:ident) => {{
        let mut query = sqlx::query($sql);
        for value in $values {
            query = match *value {
                Value::Int(number) => query.bind(number),
                Value::MaybeInt(number) => query.bind(number),
                Value::Text(text) => query.bind(text.$text()),
                Value::MaybeText(text) => query.bind(text.map(|text| text.$text())),
                Value::MaybeBytes(bytes) => query.bind(bytes.map(<[u8]>::to_vec)),
            };
        }
        query
    }};
}

impl Pool {
    pub(super) async fn connect(settings: &SqlSettings) -> Result<Self, DatabaseError> {
        let engine = match settings.options() {
            Options::Sqlite(path) => Pools::Sqlite(sqlite::connect(settings, path).await?),
            Options::Postgres(options) => Pools::Postgres(postgres::connect(settings, options).await?),
            Options::MySql(options) => Pools::MySql(mysql::connect(settings, options).await?),
        };
        let deadline = settings.statement_timeout.saturating_add(settings.connect_timeout);
        Ok(Pool { engine, deadline })
    }

    /// A transaction that sees one state of everything, and changes nothing.
    pub(super) async fn begin_snapshot(&self) -> Result<Transaction, DatabaseError> {
        self.begin(match self.engine {
            Pools::Sqlite(_) => "BEGIN DEFERRED",
            Pools::Postgres(_) => "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
            Pools::MySql(_) => "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY",
        })
        .await
    }

    /// A transaction that writes. SQLite lets in one at a time, from its very start.
    pub(super) async fn begin_write(&self) -> Result<Transaction, DatabaseError> {
        self.begin(match self.engine {
            Pools::Sqlite(_) => "BEGIN IMMEDIATE",
            Pools::Postgres(_) => "BEGIN ISOLATION LEVEL READ COMMITTED",
            Pools::MySql(_) => "START TRANSACTION",
        })
        .await
    }

    async fn begin(&self, sql: &'static str) -> Result<Transaction, DatabaseError> {
        let connection = match &self.engine {
            Pools::Sqlite(pool) => Connection::Sqlite(pool.acquire().await?),
            Pools::Postgres(pool) => Connection::Postgres(pool.acquire().await?),
            Pools::MySql(pool) => Connection::MySql(pool.acquire().await?),
        };
        let mut transaction = Transaction { connection, deadline: self.deadline, has_ended: false };
        transaction.script(sql).await?;
        Ok(transaction)
    }

    pub(super) async fn close(&self) {
        match &self.engine {
            Pools::Sqlite(pool) => pool.close().await,
            Pools::Postgres(pool) => pool.close().await,
            Pools::MySql(pool) => pool.close().await,
        }
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

    /// Runs a statement; how many rows it has changed.
    pub(super) async fn execute(&mut self, query: &Query<'_>) -> Result<u64, DatabaseError> {
        query.check()?;
        let values = &query.values;
        Ok(match &mut self.connection {
            Connection::Sqlite(on) => {
                let bound = bound!(AssertSqlSafe(query.text.clone()), values, to_owned);
                within(self.deadline, bound.execute(&mut **on)).await?.rows_affected()
            }
            Connection::Postgres(on) => {
                let bound = bound!(AssertSqlSafe(query.numbered()), values, to_owned);
                within(self.deadline, bound.execute(&mut **on)).await?.rows_affected()
            }
            Connection::MySql(on) => {
                let bound = bound!(AssertSqlSafe(query.text.clone()), values, as_bytes);
                within(self.deadline, bound.execute(&mut **on)).await?.rows_affected()
            }
        })
    }

    /// Runs a query; all rows.
    pub(super) async fn rows(&mut self, query: &Query<'_>) -> Result<Vec<Row>, DatabaseError> {
        query.check()?;
        let values = &query.values;
        Ok(match &mut self.connection {
            Connection::Sqlite(on) => {
                let bound = bound!(AssertSqlSafe(query.text.clone()), values, to_owned);
                let rows = within(self.deadline, bound.fetch_all(&mut **on)).await?;
                rows.into_iter().map(Row::Sqlite).collect()
            }
            Connection::Postgres(on) => {
                let bound = bound!(AssertSqlSafe(query.numbered()), values, to_owned);
                let rows = within(self.deadline, bound.fetch_all(&mut **on)).await?;
                rows.into_iter().map(Row::Postgres).collect()
            }
            Connection::MySql(on) => {
                let bound = bound!(AssertSqlSafe(query.text.clone()), values, as_bytes);
                let rows = within(self.deadline, bound.fetch_all(&mut **on)).await?;
                rows.into_iter().map(Row::MySql).collect()
            }
        })
    }

    /// Runs a query; its first row.
    pub(super) async fn row(&mut self, query: &Query<'_>) -> Result<Option<Row>, DatabaseError> {
        Ok(self.rows(query).await?.into_iter().next())
    }

    /// Runs statements of our own, several at once, without values.
    pub(super) async fn script(&mut self, sql: impl Into<String>) -> Result<(), sqlx::Error> {
        let script = sqlx::raw_sql(AssertSqlSafe(sql.into()));
        match &mut self.connection {
            Connection::Sqlite(on) => within(self.deadline, script.execute(&mut **on)).await.map(drop),
            Connection::Postgres(on) => within(self.deadline, script.execute(&mut **on)).await.map(drop),
            Connection::MySql(on) => within(self.deadline, script.execute(&mut **on)).await.map(drop),
        }
    }

    /// Lets what follows take its time, and closes the connection at the end, whatever it is.
    pub(super) fn take_time(&mut self) {
        self.deadline = Duration::MAX;
        self.connection.close_on_drop();
    }

    /// Ends a transaction that has changed nothing, or whose changes are to be undone.
    pub(super) async fn end(mut self) -> Result<(), DatabaseError> {
        self.script("ROLLBACK").await?;
        self.has_ended = true;
        Ok(())
    }

    /// Ends a transaction that was to change nothing, or that has come to nothing; the answer. A connection on which a
    /// question went wrong is not asked again.
    pub(super) async fn end_with<T>(self, answer: Result<T, DatabaseError>) -> Result<T, DatabaseError> {
        if let Ok(_) | Err(DatabaseError::Conflict { .. }) = &answer {
            let ended = self.end().await;
            return answer.and_then(|answer| ended.map(|()| answer));
        }
        answer
    }

    /// Makes the changes final.
    pub(super) async fn commit(mut self) -> Result<(), DatabaseError> {
        self.script("COMMIT").await.map_err(DatabaseError::committing)?;
        self.has_ended = true;
        Ok(())
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        if !self.has_ended {
            self.connection.close_on_drop();
        }
    }
}

impl Connection {
    fn close_on_drop(&mut self) {
        match self {
            Connection::Sqlite(connection) => connection.close_on_drop(),
            Connection::Postgres(connection) => connection.close_on_drop(),
            Connection::MySql(connection) => connection.close_on_drop(),
        }
    }
}

impl Row {
    pub(super) fn int(&self, column: usize) -> Result<i64, DatabaseError> {
        Ok(match self {
            Row::Sqlite(row) => row.try_get(column)?,
            Row::Postgres(row) => row.try_get(column)?,
            Row::MySql(row) => row.try_get(column)?,
        })
    }

    pub(super) fn maybe_int(&self, column: usize) -> Result<Option<i64>, DatabaseError> {
        Ok(match self {
            Row::Sqlite(row) => row.try_get(column)?,
            Row::Postgres(row) => row.try_get(column)?,
            Row::MySql(row) => row.try_get(column)?,
        })
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
        Ok(match self {
            Row::Sqlite(row) => row.try_get(column)?,
            Row::Postgres(row) => row.try_get(column)?,
            Row::MySql(row) => row.try_get(column)?,
        })
    }

    /// What a column of a table of items holds.
    pub(super) fn cell(&self, column: usize, form: Form, what: &'static str) -> Result<Cell, DatabaseError> {
        Ok(match form {
            Form::Int => Cell::Int(self.maybe_int(column)?),
            Form::Text(_) => Cell::Text(self.maybe_text(column, what)?),
            Form::Bytes => Cell::Bytes(self.bytes(column)?),
        })
    }
}

impl fmt::Debug for Pool {
    /// The driver's own shows the password.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Pool").finish_non_exhaustive()
    }
}

/// What a database answers, if it does so in time.
pub(super) async fn within<T>(
    deadline: Duration,
    answer: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, sqlx::Error> {
    let answer = tokio::time::timeout(deadline, answer).await;
    answer.unwrap_or_else(|_| Err(sqlx::Error::Io(io::ErrorKind::TimedOut.into())))
}

/// A number as databases keep it.
pub(super) fn signed(number: u64, field: &'static str) -> Result<i64, DatabaseError> {
    i64::try_from(number).map_err(|_| DatabaseError::value(field, ValueError::TooLarge))
}

/// A number from a database that cannot be negative, or too large for its type.
pub(super) fn unsigned<T: TryFrom<i64>>(number: i64, what: &'static str) -> Result<T, DatabaseError> {
    T::try_from(number).map_err(|_| DatabaseError::Corrupt { what })
}

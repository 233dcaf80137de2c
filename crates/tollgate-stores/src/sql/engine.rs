//! Three drivers behind one door: transactions, rows and values that are the same on every engine.
//!
//! An enum over typed pools rather than `sqlx::Any`, whose placeholders and types differ between engines all the same.

use std::fmt::{self, Write as _};

use sqlx::mysql::{MySql, MySqlPool, MySqlRow};
use sqlx::postgres::{PgPool, PgRow, Postgres};
use sqlx::sqlite::{Sqlite, SqlitePool, SqliteRow};
use sqlx::{AssertSqlSafe, Row as _};

use super::error::{DatabaseError, ValueProblem};
use super::settings::{Options, SqlSettings};
use super::{mysql, postgres, sqlite};

/// Connections to one database.
#[derive(Clone)]
pub(super) enum Pool {
    Sqlite(SqlitePool),
    Postgres(PgPool),
    MySql(MySqlPool),
}

/// A transaction; undone on drop.
pub(super) enum Transaction<'c> {
    Sqlite(sqlx::Transaction<'c, Sqlite>),
    Postgres(sqlx::Transaction<'c, Postgres>),
    MySql(sqlx::Transaction<'c, MySql>),
}

/// A value that is bound to a `?`.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value<'a> {
    Int(i64),
    MaybeInt(Option<i64>),
    Text(&'a str),
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
            };
        }
        query
    }};
}

impl Pool {
    pub(super) async fn connect(settings: &SqlSettings) -> Result<Self, DatabaseError> {
        match settings.options() {
            Options::Sqlite(options) => sqlite::connect(settings, options).await.map(Pool::Sqlite),
            Options::Postgres(options) => postgres::connect(settings, options).await.map(Pool::Postgres),
            Options::MySql(options) => mysql::connect(settings, options).await.map(Pool::MySql),
        }
    }

    /// A transaction that sees one state of everything, and changes nothing.
    pub(super) async fn begin_snapshot(&self) -> Result<Transaction<'static>, DatabaseError> {
        Ok(match self {
            Pool::Sqlite(pool) => Transaction::Sqlite(pool.begin_with("BEGIN DEFERRED").await?),
            Pool::Postgres(pool) => Transaction::Postgres(
                pool.begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await?,
            ),
            Pool::MySql(pool) => Transaction::MySql(
                pool.begin_with("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY").await?,
            ),
        })
    }

    /// A transaction that writes. SQLite lets in one at a time, from its very start.
    pub(super) async fn begin_write(&self) -> Result<Transaction<'static>, DatabaseError> {
        Ok(match self {
            Pool::Sqlite(pool) => Transaction::Sqlite(pool.begin_with("BEGIN IMMEDIATE").await?),
            Pool::Postgres(pool) => {
                Transaction::Postgres(pool.begin_with("BEGIN ISOLATION LEVEL READ COMMITTED").await?)
            }
            Pool::MySql(pool) => Transaction::MySql(pool.begin_with("START TRANSACTION").await?),
        })
    }

    pub(super) async fn close(&self) {
        match self {
            Pool::Sqlite(pool) => pool.close().await,
            Pool::Postgres(pool) => pool.close().await,
            Pool::MySql(pool) => pool.close().await,
        }
    }
}

impl Transaction<'_> {
    /// Runs a statement; how many rows it has changed.
    pub(super) async fn execute(
        &mut self,
        sql: &'static str,
        values: &[Value<'_>],
    ) -> Result<u64, DatabaseError> {
        Ok(match self {
            Self::Sqlite(tx) => bound!(sql, values, to_owned).execute(&mut **tx).await?.rows_affected(),
            Self::Postgres(tx) => {
                let sql = AssertSqlSafe(numbered(sql));
                bound!(sql, values, to_owned).execute(&mut **tx).await?.rows_affected()
            }
            Self::MySql(tx) => bound!(sql, values, as_bytes).execute(&mut **tx).await?.rows_affected(),
        })
    }

    /// Runs a query; all rows.
    pub(super) async fn rows(
        &mut self,
        sql: &'static str,
        values: &[Value<'_>],
    ) -> Result<Vec<Row>, DatabaseError> {
        Ok(match self {
            Self::Sqlite(tx) => {
                let rows = bound!(sql, values, to_owned).fetch_all(&mut **tx).await?;
                rows.into_iter().map(Row::Sqlite).collect()
            }
            Self::Postgres(tx) => {
                let sql = AssertSqlSafe(numbered(sql));
                let rows = bound!(sql, values, to_owned).fetch_all(&mut **tx).await?;
                rows.into_iter().map(Row::Postgres).collect()
            }
            Self::MySql(tx) => {
                let rows = bound!(sql, values, as_bytes).fetch_all(&mut **tx).await?;
                rows.into_iter().map(Row::MySql).collect()
            }
        })
    }

    /// Runs a query; its first row.
    pub(super) async fn row(
        &mut self,
        sql: &'static str,
        values: &[Value<'_>],
    ) -> Result<Option<Row>, DatabaseError> {
        Ok(self.rows(sql, values).await?.into_iter().next())
    }

    /// Runs statements that stand in our own source, several at once.
    pub(super) async fn script(&mut self, sql: &'static str) -> Result<(), sqlx::Error> {
        match self {
            Self::Sqlite(tx) => sqlx::raw_sql(sql).execute(&mut **tx).await.map(drop),
            Self::Postgres(tx) => sqlx::raw_sql(sql).execute(&mut **tx).await.map(drop),
            Self::MySql(tx) => sqlx::raw_sql(sql).execute(&mut **tx).await.map(drop),
        }
    }

    /// Undoes the changes now, rather than when the connection is next used.
    pub(super) async fn rollback(self) -> Result<(), DatabaseError> {
        match self {
            Self::Sqlite(tx) => tx.rollback().await?,
            Self::Postgres(tx) => tx.rollback().await?,
            Self::MySql(tx) => tx.rollback().await?,
        }
        Ok(())
    }

    /// Makes the changes final.
    pub(super) async fn commit(self) -> Result<(), DatabaseError> {
        let done = match self {
            Self::Sqlite(tx) => tx.commit().await,
            Self::Postgres(tx) => tx.commit().await,
            Self::MySql(tx) => tx.commit().await,
        };
        done.map_err(DatabaseError::committing)
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
        match self {
            Row::Sqlite(row) => Ok(row.try_get(column)?),
            Row::Postgres(row) => Ok(row.try_get(column)?),
            Row::MySql(row) => {
                String::from_utf8(row.try_get(column)?).map_err(|_| DatabaseError::Corrupt { what })
            }
        }
    }
}

impl fmt::Debug for Pool {
    /// The driver's own shows the password.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Pool::Sqlite(_) => "Pool::Sqlite",
            Pool::Postgres(_) => "Pool::Postgres",
            Pool::MySql(_) => "Pool::MySql",
        })
    }
}

/// A number as databases keep it.
pub(super) fn signed(number: u64, field: &'static str) -> Result<i64, DatabaseError> {
    i64::try_from(number).map_err(|_| DatabaseError::Value { field, problem: ValueProblem::TooLarge })
}

/// A number from a database that cannot be negative, or too large for its type.
pub(super) fn unsigned<T: TryFrom<i64>>(number: i64, what: &'static str) -> Result<T, DatabaseError> {
    T::try_from(number).map_err(|_| DatabaseError::Corrupt { what })
}

/// `?`, `?` as PostgreSQL writes it: `$1`, `$2`. None of our texts has a `?` that stands for itself.
fn numbered(sql: &str) -> String {
    let mut pieces = sql.split('?');
    let mut numbered = pieces.next().unwrap_or_default().to_owned();
    for (piece, number) in pieces.zip(1..) {
        let _ = write!(numbered, "${number}{piece}"); // into a String: cannot fail
    }
    numbered
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_numbered_in_order() {
        assert_eq!(numbered("SELECT a FROM t"), "SELECT a FROM t");
        assert_eq!(numbered("INSERT INTO t VALUES (?, ?)"), "INSERT INTO t VALUES ($1, $2)");
        assert_eq!(numbered("a = ? AND b > ?"), "a = $1 AND b > $2");
    }
}

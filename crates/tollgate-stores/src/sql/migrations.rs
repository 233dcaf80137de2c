//! The schema, step by step: `migrations/{sqlite,postgres,mysql}`, compiled in.
//!
//! `tollgate_migrations` tells which steps a database has taken. While a node looks and takes the next, all others wait:
//! - SQLite: `BEGIN IMMEDIATE` lets one writer in.
//! - PostgreSQL: an advisory lock, held until the transaction ends.
//! - MySQL: `GET_LOCK`, held by a connection that is closed afterwards. DDL commits there at once, so a migration that is cut
//!   short leaves some of its tables; its statements are written such that they can be run again.
//!
//! A step that was published is never edited: databases that took it would not notice.

use std::time::{SystemTime, UNIX_EPOCH};

use super::Database;
use super::engine::{Transaction, signed, unsigned};
use super::error::DatabaseError;
use super::query::{Query, Value};
use super::settings::Engine;

/// One step of the schema.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Migration {
    /// Its number; steps are taken in their order, from 1.
    pub number: u64,
    /// What it is about.
    pub name: &'static str,
    sqlite: &'static str,
    postgres: &'static str,
    mysql: &'static str,
}

macro_rules! migration {
    ($number:literal, $name:literal, $file:literal) => {
        Migration {
            number: $number,
            name: $name,
            sqlite: include_str!(concat!("../../migrations/sqlite/", $file)),
            postgres: include_str!(concat!("../../migrations/postgres/", $file)),
            mysql: include_str!(concat!("../../migrations/mysql/", $file)),
        }
    };
}

const MIGRATIONS: [Migration; 1] = [migration!(1, "configuration", "0001_configuration.sql")];

const JOURNAL: &str = "CREATE TABLE IF NOT EXISTS tollgate_migrations (\
                       number BIGINT NOT NULL PRIMARY KEY, name VARCHAR(64) NOT NULL, applied_at_micros BIGINT NOT NULL)";
const JOURNAL_SQLITE: &str =
    "SELECT COUNT(*) FROM sqlite_master WHERE type = 'table' AND name = 'tollgate_migrations'";
const JOURNAL_POSTGRES: &str = "SELECT COUNT(*) FROM information_schema.tables \
                                WHERE table_schema = current_schema() AND table_name = 'tollgate_migrations'";
const JOURNAL_MYSQL: &str = "SELECT COUNT(*) FROM information_schema.tables \
                             WHERE table_schema = DATABASE() AND table_name = 'tollgate_migrations'";

// The letters of `tollgate`. A lock of one database, so that another's nodes do not wait for ours.
const LOCK_POSTGRES: &str = "SELECT pg_advisory_xact_lock(x'746f6c6c67617465'::bigint)";
// A lock of the whole server: hence the name of the database in it, at most 64 characters in all.
const LOCK_MYSQL: &str = "SELECT GET_LOCK(CONCAT('tollgate migrate ', SHA1(DATABASE())), ?)";

impl Database {
    /// Brings the schema up to date; the steps that were taken. Any number of nodes may do this at once: one does it, the
    /// others wait and find it done.
    ///
    /// # Errors
    /// When the schema is newer than this program, another node takes too long, or a step fails.
    pub async fn migrate(&self) -> Result<Vec<Migration>, DatabaseError> {
        // Whoever may not change the schema may still start where there is nothing to change. While others change it the answer
        // may be an error; with the lock in hand it is asked again.
        if self.pending_migrations().await.is_ok_and(|missing| missing.is_empty()) {
            return Ok(Vec::new());
        }
        let mut transaction = self.pool.begin_write().await.map_err(|error| self.locked(error))?;
        // With the connection go its lock and its limits.
        transaction.take_time();
        match self.engine() {
            Engine::Sqlite => {} // `BEGIN IMMEDIATE` was the lock
            Engine::Postgres => self.lock_postgres(&mut transaction).await?,
            Engine::MySql => self.lock_mysql(&mut transaction).await?,
        }
        self.take_all(transaction).await
    }

    /// The steps that [`migrate`](Database::migrate) would take. Changes nothing.
    ///
    /// # Errors
    /// When the schema is newer than this program, or the database cannot be asked.
    pub async fn pending_migrations(&self) -> Result<Vec<Migration>, DatabaseError> {
        let mut transaction = self.pool.begin_snapshot().await?;
        let journal = match self.engine() {
            Engine::Sqlite => JOURNAL_SQLITE,
            Engine::Postgres => JOURNAL_POSTGRES,
            Engine::MySql => JOURNAL_MYSQL,
        };
        let found = transaction.row(&Query::new(journal)).await?.map_or(Ok(0), |row| row.int(0))?;
        let missing = if found == 0 { MIGRATIONS.to_vec() } else { missing(&mut transaction).await? };
        transaction.end().await?;
        Ok(missing)
    }

    async fn take_all(&self, mut transaction: Transaction) -> Result<Vec<Migration>, DatabaseError> {
        transaction.execute(&Query::new(JOURNAL)).await?;
        let missing = missing(&mut transaction).await?;
        for migration in &missing {
            let Migration { number, name, .. } = *migration;
            let script = match self.engine() {
                Engine::Sqlite => migration.sqlite,
                Engine::Postgres => migration.postgres,
                Engine::MySql => migration.mysql,
            };
            let done = transaction.script(script).await;
            done.map_err(|cause| DatabaseError::Migration { number, name, cause })?;
            let values = [Value::Int(signed(number, "number")?), Value::Text(name), Value::Int(now_micros())];
            transaction
                .execute(&Query::with(
                    "INSERT INTO tollgate_migrations (number, name, applied_at_micros) VALUES (?, ?, ?)",
                    values,
                ))
                .await?;
        }
        transaction.commit().await?;
        Ok(missing)
    }

    async fn lock_postgres(&self, transaction: &mut Transaction) -> Result<(), DatabaseError> {
        let wait = self.settings.migration_timeout.as_millis().max(1);
        let limits = format!("SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = {wait}");
        transaction.script(limits).await?;
        transaction.script(LOCK_POSTGRES).await.map_err(|error| self.locked(error.into()))
    }

    async fn lock_mysql(&self, transaction: &mut Transaction) -> Result<(), DatabaseError> {
        // MariaDB knows the one, MySQL the other; either may end a wait for the lock.
        let _ = transaction.script("SET SESSION max_statement_time = 0").await;
        let _ = transaction.script("SET SESSION max_execution_time = 0").await;
        let waited = self.settings.migration_timeout;
        let seconds = signed(waited.as_secs().max(1), "migration_timeout")?;
        let row = transaction.row(&Query::with(LOCK_MYSQL, [Value::Int(seconds)])).await?;
        let locked = row.map_or(Ok(None), |row| row.maybe_int(0))?;
        if locked == Some(1) { Ok(()) } else { Err(DatabaseError::MigrationLocked { waited }) }
    }

    /// Whether an error means that another node is at it.
    fn locked(&self, error: DatabaseError) -> DatabaseError {
        let DatabaseError::Query { cause } = &error else { return error };
        let code = cause.as_database_error().and_then(sqlx::error::DatabaseError::code);
        match (self.engine(), code.as_deref()) {
            (Engine::Postgres, Some("55P03")) => {
                DatabaseError::MigrationLocked { waited: self.settings.migration_timeout }
            }
            (Engine::Sqlite, Some("5")) => {
                DatabaseError::MigrationLocked { waited: self.settings.statement_timeout }
            }
            _ => error,
        }
    }
}

/// The steps that a database with a journal has not taken.
async fn missing(transaction: &mut Transaction) -> Result<Vec<Migration>, DatabaseError> {
    let rows = transaction.rows(&Query::new("SELECT number FROM tollgate_migrations")).await?;
    let taken: Vec<u64> = rows
        .iter()
        .map(|row| unsigned(row.int(0)?, "tollgate_migrations"))
        .collect::<Result<_, DatabaseError>>()?;
    let known = MIGRATIONS.last().map_or(0, |last| last.number);
    match taken.iter().max() {
        Some(&found) if found > known => Err(DatabaseError::SchemaTooNew { found, known }),
        _ => Ok(MIGRATIONS.into_iter().filter(|migration| !taken.contains(&migration.number)).collect()),
    }
}

fn now_micros() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_numbered_from_one() {
        let numbers: Vec<u64> = MIGRATIONS.iter().map(|migration| migration.number).collect();
        assert_eq!(numbers, (1..=MIGRATIONS.len() as u64).collect::<Vec<_>>());
    }
}

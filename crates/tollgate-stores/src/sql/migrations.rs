//! Schema migrations: `migrations/{sqlite,postgres,mysql}`, compiled in.
//!
//! The table `tollgate_migrations` lists the migrations that a database has. One node migrates at a time:
//! - SQLite: `BEGIN IMMEDIATE` admits one writer.
//! - PostgreSQL: an advisory lock, held until the transaction ends.
//! - MySQL: `GET_LOCK`, held by a connection that is closed afterwards. DDL commits implicitly there, so an interrupted
//!   migration leaves some of its tables; its statements can be run again.
//!
//! Statements of a published migration never change: databases that have it would not get the change.

use std::time::{SystemTime, UNIX_EPOCH};

use super::engine::{Pool, Transaction, from_i64, to_i64};
use super::error::DatabaseError;
use super::query::Query;
use super::settings::{Engine, SqlSettings};

/// One migration of the schema.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Migration {
    /// Its number. Migrations run in order, starting at 1.
    pub number: u64,
    /// Its name.
    pub name: &'static str,
    sqlite: &'static str,
    postgres: &'static str,
    mysql: &'static str,
}

impl Migration {
    /// All migrations, in order.
    pub fn all() -> &'static [Migration] {
        &MIGRATIONS
    }

    /// The SQL of the migration.
    pub fn sql(&self, engine: Engine) -> &'static str {
        match engine {
            Engine::Sqlite => self.sqlite,
            Engine::Postgres => self.postgres,
            Engine::MySql => self.mysql,
        }
    }

    /// The statement that records the migration as applied, with the time of the database.
    pub fn journal_entry(&self, engine: Engine) -> String {
        let now = match engine {
            Engine::Sqlite => "CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)",
            Engine::Postgres => "CAST(EXTRACT(EPOCH FROM now()) * 1000000 AS BIGINT)",
            Engine::MySql => "CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS SIGNED)",
        };
        let Migration { number, name, .. } = self;
        format!(
            "INSERT INTO tollgate_migrations (number, name, applied_at_micros) VALUES ({number}, '{name}', {now});"
        )
    }

    /// The statement that creates the table of applied migrations.
    pub fn journal_table() -> &'static str {
        CREATE_JOURNAL
    }
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

const MIGRATIONS: [Migration; 2] =
    [migration!(1, "configuration", "0001_configuration.sql"), migration!(2, "tenants", "0002_tenants.sql")];

const CREATE_JOURNAL: &str = "CREATE TABLE IF NOT EXISTS tollgate_migrations (\
                              number BIGINT NOT NULL PRIMARY KEY, name VARCHAR(64) NOT NULL, applied_at_micros BIGINT NOT NULL)";
const FIND_JOURNAL_SQLITE: &str =
    "SELECT COUNT(*) FROM sqlite_master WHERE type = 'table' AND name = 'tollgate_migrations'";
const FIND_JOURNAL_POSTGRES: &str = "SELECT COUNT(*) FROM information_schema.tables \
                                     WHERE table_schema = current_schema() AND table_name = 'tollgate_migrations'";
const FIND_JOURNAL_MYSQL: &str = "SELECT COUNT(*) FROM information_schema.tables \
                                  WHERE table_schema = DATABASE() AND table_name = 'tollgate_migrations'";

/// The ASCII codes of `tollgate`. Advisory locks are per database.
const LOCK_POSTGRES: &str = "SELECT pg_advisory_xact_lock(x'746f6c6c67617465'::bigint)";
/// `GET_LOCK` names are per server and at most 64 characters, hence the hash of the database name.
const LOCK_MYSQL: &str = "SELECT GET_LOCK(CONCAT('tollgate migrate ', SHA1(DATABASE())), ?)";

pub(super) async fn migrate(pool: &Pool, settings: &SqlSettings) -> Result<Vec<Migration>, DatabaseError> {
    // A database user without DDL rights can still start on an up-to-date schema. An error here may come from a concurrent
    // migration; it is reported below if it persists under the lock.
    if pending(pool, settings).await.is_ok_and(|pending| pending.is_empty()) {
        return Ok(Vec::new());
    }
    let begun = pool.begin_write().await;
    let mut transaction = begun.map_err(|error| lock_error(settings, error))?;
    // Closing the connection afterwards releases the lock and discards the session settings.
    transaction.disable_deadline();
    match settings.engine() {
        Engine::Sqlite => {} // `BEGIN IMMEDIATE` took the lock
        Engine::Postgres => lock_postgres(&mut transaction, settings).await?,
        Engine::MySql => lock_mysql(&mut transaction, settings).await?,
    }
    apply_pending(transaction).await
}

pub(super) async fn pending(pool: &Pool, settings: &SqlSettings) -> Result<Vec<Migration>, DatabaseError> {
    let mut transaction = pool.begin_snapshot().await?;
    let find_journal = match settings.engine() {
        Engine::Sqlite => FIND_JOURNAL_SQLITE,
        Engine::Postgres => FIND_JOURNAL_POSTGRES,
        Engine::MySql => FIND_JOURNAL_MYSQL,
    };
    let found = transaction.row(&Query::new(find_journal)).await?.map_or(Ok(0), |row| row.int(0))?;
    let pending = if found == 0 { MIGRATIONS.to_vec() } else { missing(&mut transaction).await? };
    transaction.rollback().await?;
    Ok(pending)
}

async fn apply_pending(mut transaction: Transaction) -> Result<Vec<Migration>, DatabaseError> {
    transaction.execute(&Query::new(CREATE_JOURNAL)).await?;
    let pending = missing(&mut transaction).await?;
    for migration in &pending {
        let Migration { number, name, .. } = *migration;
        let applied = transaction.execute_script(migration.sql(transaction.engine())).await;
        applied.map_err(|cause| DatabaseError::Migration { number, name, cause })?;
        let values = [to_i64(number, "number")?.into(), name.into(), now_micros().into()];
        let insert = "INSERT INTO tollgate_migrations (number, name, applied_at_micros) VALUES (?, ?, ?)";
        transaction.execute(&Query::with(insert, values)).await?;
    }
    transaction.commit().await?;
    Ok(pending)
}

async fn lock_postgres(transaction: &mut Transaction, settings: &SqlSettings) -> Result<(), DatabaseError> {
    let wait = settings.migration_timeout.as_millis().max(1);
    let limits = format!("SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = {wait}");
    transaction.execute_script(limits).await?;
    transaction.execute_script(LOCK_POSTGRES).await.map_err(|error| lock_error(settings, error.into()))
}

async fn lock_mysql(transaction: &mut Transaction, settings: &SqlSettings) -> Result<(), DatabaseError> {
    // MariaDB has the first variable, MySQL the second. Either could interrupt the wait for the lock.
    let _ = transaction.execute_script("SET SESSION max_statement_time = 0").await;
    let _ = transaction.execute_script("SET SESSION max_execution_time = 0").await;
    let waited = settings.migration_timeout;
    let seconds = to_i64(waited.as_secs().max(1), "migration_timeout")?;
    let row = transaction.row(&Query::with(LOCK_MYSQL, [seconds.into()])).await?;
    let locked = row.map_or(Ok(None), |row| row.maybe_int(0))?;
    if locked == Some(1) { Ok(()) } else { Err(DatabaseError::MigrationLocked { waited }) }
}

/// Maps a lock timeout to [`DatabaseError::MigrationLocked`].
fn lock_error(settings: &SqlSettings, error: DatabaseError) -> DatabaseError {
    let DatabaseError::Query { cause } = &error else { return error };
    let code = cause.as_database_error().and_then(sqlx::error::DatabaseError::code);
    match (settings.engine(), code.as_deref()) {
        (Engine::Postgres, Some("55P03")) => {
            DatabaseError::MigrationLocked { waited: settings.migration_timeout }
        }
        (Engine::Sqlite, Some("5")) => DatabaseError::MigrationLocked { waited: settings.statement_timeout },
        _ => error,
    }
}

/// The migrations that are not in the journal.
async fn missing(transaction: &mut Transaction) -> Result<Vec<Migration>, DatabaseError> {
    let rows = transaction.rows(&Query::new("SELECT number FROM tollgate_migrations")).await?;
    let applied: Vec<u64> = rows
        .iter()
        .map(|row| from_i64(row.int(0)?, "tollgate_migrations"))
        .collect::<Result<_, DatabaseError>>()?;
    let known = MIGRATIONS.last().map_or(0, |last| last.number);
    match applied.iter().max() {
        Some(&found) if found > known => Err(DatabaseError::SchemaTooNew { found, known }),
        _ => Ok(MIGRATIONS.into_iter().filter(|migration| !applied.contains(&migration.number)).collect()),
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
    fn migrations_are_numbered_from_one() {
        let numbers: Vec<u64> = MIGRATIONS.iter().map(|migration| migration.number).collect();
        assert_eq!(numbers, (1..=MIGRATIONS.len() as u64).collect::<Vec<_>>());
    }
}

//! Schema migrations: `migrations/{sqlite,postgres,mysql}` and `migrations/records/…`, compiled in.
//!
//! There are two sets, for the configuration and for records. They may share a database. A table per set, its journal, lists the
//! migrations that a database has. One node migrates at a time:
//! - SQLite: `BEGIN IMMEDIATE` admits one writer.
//! - PostgreSQL: an advisory lock per set, held until the transaction ends.
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
    /// The SQL of the migration.
    pub fn sql(&self, engine: Engine) -> &'static str {
        match engine {
            Engine::Sqlite => self.sqlite,
            Engine::Postgres => self.postgres,
            Engine::MySql => self.mysql,
        }
    }
}

/// The migrations of one schema, and the statements of its journal.
#[derive(Debug)]
pub struct MigrationSet {
    migrations: &'static [Migration],
    journal: &'static str,
    create_journal: &'static str,
    find_journal_sqlite: &'static str,
    find_journal_postgres: &'static str,
    find_journal_mysql: &'static str,
    select_applied: &'static str,
    insert_applied: &'static str,
    lock_postgres: &'static str,
    lock_mysql: &'static str,
}

macro_rules! migration {
    ($number:literal, $name:literal, $folder:literal, $file:literal) => {
        Migration {
            number: $number,
            name: $name,
            sqlite: include_str!(concat!("../../migrations/", $folder, "sqlite/", $file)),
            postgres: include_str!(concat!("../../migrations/", $folder, "postgres/", $file)),
            mysql: include_str!(concat!("../../migrations/", $folder, "mysql/", $file)),
        }
    };
}

/// `GET_LOCK` names are per server and at most 64 characters, hence the hash of the database name. Advisory locks of PostgreSQL
/// are per database.
macro_rules! migration_set {
    ($migrations:expr, $journal:literal, postgres lock $postgres:literal, mysql lock $mysql:literal) => {
        MigrationSet {
            migrations: $migrations,
            journal: $journal,
            create_journal: concat!(
                "CREATE TABLE IF NOT EXISTS ",
                $journal,
                " (number BIGINT NOT NULL PRIMARY KEY, name VARCHAR(64) NOT NULL, applied_at_micros BIGINT NOT NULL)"
            ),
            find_journal_sqlite: concat!(
                "SELECT COUNT(*) FROM sqlite_master WHERE type = 'table' AND name = '",
                $journal,
                "'"
            ),
            find_journal_postgres: concat!(
                "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = current_schema() AND table_name = '",
                $journal,
                "'"
            ),
            find_journal_mysql: concat!(
                "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = '",
                $journal,
                "'"
            ),
            select_applied: concat!("SELECT number FROM ", $journal),
            insert_applied: concat!(
                "INSERT INTO ",
                $journal,
                " (number, name, applied_at_micros) VALUES (?, ?, ?)"
            ),
            lock_postgres: concat!("SELECT pg_advisory_xact_lock(x'", $postgres, "'::bigint)"),
            lock_mysql: concat!("SELECT GET_LOCK(CONCAT('", $mysql, "', SHA1(DATABASE())), ?)"),
        }
    };
}

impl MigrationSet {
    /// The schema of the configuration.
    pub const CONFIGURATION: &'static MigrationSet = &migration_set!(
        &[
            migration!(1, "configuration", "", "0001_configuration.sql"),
            migration!(2, "tenants", "", "0002_tenants.sql"),
        ],
        "tollgate_migrations",
        postgres lock "746f6c6c67617465", // `tollgate` in ASCII
        mysql lock "tollgate migrate "
    );

    /// The schema of the records of decisions.
    pub const RECORDS: &'static MigrationSet = &migration_set!(
        &[migration!(1, "records", "records/", "0001_records.sql")],
        "tollgate_records_migrations",
        postgres lock "746f6c6c72656373", // `tollrecs` in ASCII
        mysql lock "tollgate records "
    );

    /// All migrations, in order.
    pub const fn all(&self) -> &'static [Migration] {
        self.migrations
    }

    /// The statement that creates the journal.
    pub const fn create_journal(&self) -> &'static str {
        self.create_journal
    }

    /// The statement that records a migration as applied, with the time of the database.
    pub fn journal_entry(&self, migration: &Migration, engine: Engine) -> String {
        let (now, journal, Migration { number, name, .. }) = (database_now(engine), self.journal, migration);
        format!("INSERT INTO {journal} (number, name, applied_at_micros) VALUES ({number}, '{name}', {now});")
    }

    const fn find_journal(&self, engine: Engine) -> &'static str {
        match engine {
            Engine::Sqlite => self.find_journal_sqlite,
            Engine::Postgres => self.find_journal_postgres,
            Engine::MySql => self.find_journal_mysql,
        }
    }
}

pub(super) async fn migrate(
    set: &MigrationSet,
    pool: &Pool,
    settings: &SqlSettings,
) -> Result<Vec<Migration>, DatabaseError> {
    // A database user without DDL rights can still start on an up-to-date schema. An error here may come from a concurrent
    // migration; it is reported below if it persists under the lock.
    if pending(set, pool, settings).await.is_ok_and(|pending| pending.is_empty()) {
        return Ok(Vec::new());
    }
    let begun = pool.begin_write().await;
    let mut transaction = begun.map_err(|error| lock_error(settings, error))?;
    // Closing the connection afterwards releases the lock and discards the session settings.
    transaction.disable_deadline();
    match settings.engine() {
        Engine::Sqlite => {} // `BEGIN IMMEDIATE` took the lock
        Engine::Postgres => lock_postgres(set, &mut transaction, settings).await?,
        Engine::MySql => lock_mysql(set, &mut transaction, settings).await?,
    }
    apply_pending(set, transaction).await
}

pub(super) async fn pending(
    set: &MigrationSet,
    pool: &Pool,
    settings: &SqlSettings,
) -> Result<Vec<Migration>, DatabaseError> {
    let mut transaction = pool.begin_snapshot().await?;
    let find_journal = Query::new(set.find_journal(settings.engine()));
    let found = transaction.row(&find_journal).await?.map_or(Ok(0), |row| row.int(0))?;
    let pending = if found == 0 { set.migrations.to_vec() } else { missing(set, &mut transaction).await? };
    transaction.rollback().await?;
    Ok(pending)
}

async fn apply_pending(
    set: &MigrationSet,
    mut transaction: Transaction,
) -> Result<Vec<Migration>, DatabaseError> {
    transaction.execute(&Query::new(set.create_journal)).await?;
    let pending = missing(set, &mut transaction).await?;
    for migration in &pending {
        let Migration { number, name, .. } = *migration;
        let applied = transaction.execute_script(migration.sql(transaction.engine())).await;
        applied.map_err(|cause| DatabaseError::Migration { number, name, cause })?;
        let values = [to_i64(number, "number")?.into(), name.into(), now_micros().into()];
        transaction.execute(&Query::with(set.insert_applied, values)).await?;
    }
    transaction.commit().await?;
    Ok(pending)
}

async fn lock_postgres(
    set: &MigrationSet,
    transaction: &mut Transaction,
    settings: &SqlSettings,
) -> Result<(), DatabaseError> {
    let wait = settings.migration_timeout.as_millis().max(1);
    let limits = format!("SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = {wait}");
    transaction.execute_script(limits).await?;
    transaction.execute_script(set.lock_postgres).await.map_err(|error| lock_error(settings, error.into()))
}

async fn lock_mysql(
    set: &MigrationSet,
    transaction: &mut Transaction,
    settings: &SqlSettings,
) -> Result<(), DatabaseError> {
    // MariaDB has the first variable, MySQL the second. Either could interrupt the wait for the lock.
    let _ = transaction.execute_script("SET SESSION max_statement_time = 0").await;
    let _ = transaction.execute_script("SET SESSION max_execution_time = 0").await;
    let waited = settings.migration_timeout;
    let seconds = to_i64(waited.as_secs().max(1), "migration_timeout")?;
    let row = transaction.row(&Query::with(set.lock_mysql, [seconds.into()])).await?;
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
async fn missing(set: &MigrationSet, transaction: &mut Transaction) -> Result<Vec<Migration>, DatabaseError> {
    let rows = transaction.rows(&Query::new(set.select_applied)).await?;
    let applied: Vec<u64> =
        rows.iter().map(|row| from_i64(row.int(0)?, set.journal)).collect::<Result<_, DatabaseError>>()?;
    let known = set.migrations.last().map_or(0, |last| last.number);
    match applied.iter().max() {
        Some(&found) if found > known => Err(DatabaseError::SchemaTooNew { found, known }),
        _ => Ok(set.migrations.iter().filter(|each| !applied.contains(&each.number)).copied().collect()),
    }
}

/// The time of the database as an expression, in microseconds since 1970.
pub(super) const fn database_now(engine: Engine) -> &'static str {
    match engine {
        Engine::Sqlite => "CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)",
        Engine::Postgres => "CAST(EXTRACT(EPOCH FROM now()) * 1000000 AS BIGINT)",
        Engine::MySql => "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))",
    }
}

pub(super) fn now_micros() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn migrations_are_numbered_from_one() {
        for set in [MigrationSet::CONFIGURATION, MigrationSet::RECORDS] {
            let numbers: Vec<u64> = set.all().iter().map(|migration| migration.number).collect();
            assert_eq!(numbers, (1..=set.all().len() as u64).collect::<Vec<_>>());
        }
    }
}

//! Errors of the databases.

use std::borrow::Cow;
use std::time::Duration;

use sqlx::error::ErrorKind;
use sqlx::mysql::MySqlDatabaseError;
use sqlx::sqlite::SqliteError;

use super::items::ItemId;
use super::settings::UrlError;

/// Why a database operation failed.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum DatabaseError {
    /// The URL is invalid. Correct it.
    #[error("invalid database URL: {0}")]
    Url(#[from] UrlError),
    /// No connection could be established. A retry may succeed.
    #[error("{database} is unreachable: {cause}")]
    Unreachable {
        /// The database, without credentials.
        database: String,
        /// The driver's error.
        cause: sqlx::Error,
    },
    /// The server rejected the credentials or the database name, or the file is not a SQLite database.
    #[error("{database} rejected the connection: {cause}")]
    Denied {
        /// The database, without credentials.
        database: String,
        /// The server's error.
        cause: sqlx::Error,
    },
    /// The file of a SQLite database can be neither opened nor created.
    #[error("{database} cannot be opened or created: {cause}")]
    File {
        /// The file.
        database: String,
        /// The error of the file system.
        cause: std::io::Error,
    },
    /// The server is older than the supported versions.
    #[error("{database} has version {version}; {required} or later is required")]
    ServerTooOld {
        /// The database, without credentials.
        database: String,
        /// The version that the server reports.
        version: String,
        /// The oldest supported version.
        required: &'static str,
    },
    /// The database does not store text as UTF-8.
    #[error("{database} has the encoding {encoding}; create it with ENCODING 'UTF8'")]
    Encoding {
        /// The database, without credentials.
        database: String,
        /// Its encoding.
        encoding: String,
    },
    /// A newer tollgate has migrated the schema. Upgrade this node.
    #[error(
        "the database has schema version {found}, this tollgate supports up to {known}; upgrade tollgate"
    )]
    SchemaTooNew {
        /// The schema version of the database.
        found: u64,
        /// The latest schema version known to this program.
        known: u64,
    },
    /// Another node holds the migration lock. A retry may succeed.
    #[error("another node has been migrating the schema for {waited:?}")]
    MigrationLocked {
        /// How long this node waited for the lock.
        waited: Duration,
    },
    /// A migration failed. PostgreSQL and SQLite have rolled it back; MySQL may keep some of the tables, and a retry continues
    /// from there.
    #[error("migration {number} ({name}) failed: {cause}")]
    Migration {
        /// Its number.
        number: u64,
        /// Its name.
        name: &'static str,
        /// The database's error.
        cause: sqlx::Error,
    },
    /// A value cannot be stored. Nothing was changed.
    #[error("{field} {reason}")]
    Value {
        /// The field.
        field: Cow<'static, str>,
        /// Why it was rejected.
        reason: ValueError,
    },
    /// A precondition failed: the item was changed concurrently, or does not exist. Nothing was changed.
    #[error("{} {:?} {}", id.kind().as_str(), id.to_string(), found_text(*.found))]
    Conflict {
        /// The item.
        id: ItemId,
        /// Its current version; `None` if it does not exist.
        found: Option<u64>,
    },
    /// The configuration is not at the expected version. Nothing was changed.
    #[error("the configuration is at version {found}")]
    VersionConflict {
        /// The current version.
        found: u64,
    },
    /// One change contains two edits of the same item. Nothing was changed.
    #[error("{} {:?} occurs twice in one change", id.kind().as_str(), id.to_string())]
    DuplicateItem {
        /// The item.
        id: ItemId,
    },
    /// The change violates a constraint of the schema. Nothing was changed.
    #[error("the database rejected the change: it violates {constraint}")]
    Constraint {
        /// The name of the constraint. The rest of the database's message is dropped: it may contain the hash of a key.
        constraint: String,
    },
    /// A row was written by something other than tollgate and cannot be decoded.
    #[error("the database contains an invalid row or value in {what}")]
    Corrupt {
        /// The table or column.
        what: &'static str,
    },
    /// Rows do not follow those that are stored of their source. Read the position again.
    #[error("rows {first} to {end} do not continue the stored rows: {}", position_text(*.found))]
    RowPosition {
        /// The number of the first row.
        first: u64,
        /// The number after the last row.
        end: u64,
        /// The number of the next row that the database expects; `None` if it does not know the source.
        found: Option<u64>,
    },
    /// A query failed, or no connection was free in time. Nothing was changed.
    #[error("database query failed: {}", cause_text(.cause))]
    Query {
        /// The driver's error.
        cause: sqlx::Error,
    },
    /// The connection broke during commit, so the change may or may not be in force. Read the item before a retry.
    #[error("the connection broke during commit, the change may or may not be in force: {cause}")]
    OutcomeUnknown {
        /// The driver's error.
        cause: sqlx::Error,
    },
}

/// Why a value was rejected.
#[non_exhaustive]
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ValueError {
    /// Empty where a text is required.
    #[error("must not be empty")]
    Empty,
    /// Longer than its column.
    #[error("must be at most {max} bytes")]
    TooLong {
        /// The maximum.
        max: usize,
    },
    /// Contains a NUL character, which PostgreSQL cannot store.
    #[error("must not contain a NUL character")]
    ContainsNul,
    /// Larger than a signed 64-bit integer.
    #[error("is too large")]
    TooLarge,
    /// Has the wrong type.
    #[error("must be {expected}")]
    WrongType {
        /// The expected type.
        expected: &'static str,
    },
    /// An unknown key, or a value that does not apply here.
    #[error("is not allowed here")]
    NotAllowed,
}

impl From<sqlx::Error> for DatabaseError {
    fn from(cause: sqlx::Error) -> Self {
        match cause.as_database_error() {
            Some(error) if error.kind() != ErrorKind::Other && !is_partition_change(error) => {
                DatabaseError::Constraint { constraint: constraint_name(error) }
            }
            _ => DatabaseError::Query { cause },
        }
    }
}

/// The driver reports only a timeout of the pool when the server is down.
fn cause_text(cause: &sqlx::Error) -> String {
    match cause {
        sqlx::Error::PoolTimedOut => {
            "timed out waiting for a connection: the server is down or unresponsive, or all connections are in use"
                .to_owned()
        }
        cause => cause.to_string(),
    }
}

fn found_text(found: Option<u64>) -> String {
    found.map_or_else(|| "does not exist".to_owned(), |version| format!("exists with version {version}"))
}

fn position_text(found: Option<u64>) -> String {
    found.map_or_else(|| "their source is unknown".to_owned(), |row| format!("row {row} is next"))
}

impl DatabaseError {
    /// Whether the database, or the check before it, rejected a row because of its contents. A retry fails, too; other rows
    /// may be accepted.
    pub fn is_rejected_row(&self) -> bool {
        match self {
            DatabaseError::Constraint { .. } | DatabaseError::Value { .. } => true,
            DatabaseError::Query { cause } => cause.as_database_error().is_some_and(is_data_error),
            _ => false,
        }
    }

    /// Whether the database is down or did not answer in time, so that a retry may succeed.
    pub fn is_unreachable(&self) -> bool {
        match self {
            DatabaseError::Unreachable { .. } => true,
            DatabaseError::Query { cause } | DatabaseError::OutcomeUnknown { cause } => {
                is_connection_error(cause)
            }
            _ => false,
        }
    }

    /// Whether a statement took longer than its timeout, or waited too long for a lock of another one. A smaller statement may
    /// succeed.
    pub fn is_timeout(&self) -> bool {
        match self {
            DatabaseError::Query { cause } | DatabaseError::OutcomeUnknown { cause } => is_timeout(cause),
            _ => false,
        }
    }

    /// Whether the server chose this transaction as the victim of a deadlock. Nothing was changed.
    pub(super) fn is_deadlock(&self) -> bool {
        let DatabaseError::Query { cause } = self else { return false };
        let Some(error) = cause.as_database_error() else { return false };
        match error.try_downcast_ref::<MySqlDatabaseError>() {
            Some(error) => error.number() == 1213,
            None => error.code().as_deref() == Some("40P01"),
        }
    }

    /// Whether the partitions of a table were changed during this transaction. Nothing was stored; a retry succeeds.
    pub(super) fn is_partition_change(&self) -> bool {
        let DatabaseError::Query { cause } = self else { return false };
        cause.as_database_error().is_some_and(is_partition_change)
    }

    pub(super) fn value(field: impl Into<Cow<'static, str>>, reason: ValueError) -> Self {
        DatabaseError::Value { field: field.into(), reason }
    }

    pub(super) fn from_connect(database: String, cause: sqlx::Error) -> Self {
        if cause.as_database_error().is_some() {
            DatabaseError::Denied { database, cause }
        } else {
            DatabaseError::Unreachable { database, cause }
        }
    }

    /// An error reported by the server means that the commit did not happen.
    pub(super) fn from_commit(cause: sqlx::Error) -> Self {
        if cause.as_database_error().is_some() {
            cause.into()
        } else {
            DatabaseError::OutcomeUnknown { cause }
        }
    }
}

/// The name of the violated constraint. PostgreSQL has a field for it, MySQL quotes it after a value that may contain anything,
/// SQLite ends its message with it.
fn constraint_name(error: &dyn sqlx::error::DatabaseError) -> String {
    let message = error.message();
    let name = match (error.constraint(), message.rsplit_once("CONSTRAINT `"), message.rsplit_once("key '")) {
        (Some(name), _, _) => name,
        (_, Some((_, name)), _) => name.split('`').next().unwrap_or_default(),
        (_, _, Some((_, name))) => name.split('\'').next().unwrap_or_default(),
        _ => message.rsplit(": ").next().unwrap_or_default(),
    };
    name.to_owned()
}

/// Whether a row was sent to a partition that is no longer the right one. PostgreSQL reports a violated check without a name.
fn is_partition_change(error: &dyn sqlx::error::DatabaseError) -> bool {
    match error.try_downcast_ref::<MySqlDatabaseError>() {
        Some(error) => error.number() == 1412, // ER_TABLE_DEF_CHANGED
        None => error.code().as_deref() == Some("23514") && error.constraint().is_none(),
    }
}

/// Whether a value is at fault: out of range, too long, of the wrong type or in the wrong encoding.
fn is_data_error(error: &dyn sqlx::error::DatabaseError) -> bool {
    let code = error.code().unwrap_or_default();
    if let Some(error) = error.try_downcast_ref::<MySqlDatabaseError>() {
        // Class 22 (data exceptions), no partition for the value, incorrect string value.
        return code.starts_with("22") || [1526, 1366].contains(&error.number());
    }
    if error.try_downcast_ref::<SqliteError>().is_some() {
        // SQLITE_TOOBIG, SQLITE_CONSTRAINT, SQLITE_MISMATCH; the upper bits are the extended result code.
        return code.parse::<u32>().is_ok_and(|code| [18, 19, 20].contains(&(code & 0xff)));
    }
    // PostgreSQL: class 22 (data exceptions), index row too large.
    code.starts_with("22") || code == "54000"
}

/// Whether the server, or this process, gave up a statement that took too long.
fn is_timeout(cause: &sqlx::Error) -> bool {
    let Some(error) = cause.as_database_error() else {
        return matches!(cause, sqlx::Error::Io(error) if error.kind() == std::io::ErrorKind::TimedOut);
    };
    if let Some(error) = error.try_downcast_ref::<MySqlDatabaseError>() {
        // ER_LOCK_WAIT_TIMEOUT, ER_STATEMENT_TIMEOUT of MariaDB, ER_QUERY_TIMEOUT of MySQL.
        return [1205, 1969, 3024].contains(&error.number());
    }
    // PostgreSQL: query_canceled, lock_not_available.
    error.code().is_some_and(|code| ["57014", "55P03"].contains(&&*code))
}

/// Whether the server is down, shutting down or starting up.
fn is_connection_error(cause: &sqlx::Error) -> bool {
    let Some(error) = cause.as_database_error() else {
        use sqlx::Error::{Io, PoolClosed, PoolTimedOut, Protocol, Tls, WorkerCrashed};
        return matches!(cause, Io(_) | Tls(_) | Protocol(_) | PoolTimedOut | PoolClosed | WorkerCrashed);
    };
    if let Some(error) = error.try_downcast_ref::<MySqlDatabaseError>() {
        // ER_CON_COUNT_ERROR, ER_SERVER_SHUTDOWN, ER_CONNECTION_KILLED.
        return [1040, 1053, 1927].contains(&error.number());
    }
    // PostgreSQL: class 08 (connection exceptions); shutdown, crash, startup; too many connections.
    let code = error.code().unwrap_or_default();
    code.len() == 5 && (code.starts_with("08") || ["57P01", "57P02", "57P03", "53300"].contains(&&*code))
}

//! Why a database did not do what it was asked.

use std::borrow::Cow;
use std::time::Duration;

use sqlx::error::ErrorKind;
use sqlx::mysql::MySqlDatabaseError;

use super::items::ItemId;
use super::settings::UrlError;

/// Why a database did not do what it was asked.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum DatabaseError {
    /// The URL names no database that we could use.
    #[error("the database URL is wrong: {0}")]
    Url(#[from] UrlError),
    /// No connection can be made. Another attempt may succeed.
    #[error("{place} cannot be reached: {cause}")]
    Unreachable {
        /// Which database, without login.
        place: String,
        /// Why not.
        cause: sqlx::Error,
    },
    /// The server answers, and does not let us in: login or name of the database are wrong. Or the file is no database.
    #[error("{place} cannot be used: {cause}")]
    Denied {
        /// Which database, without login.
        place: String,
        /// What the server says.
        cause: sqlx::Error,
    },
    /// The file of a SQLite database can be neither opened nor made.
    #[error("{place} cannot be opened or made: {cause}")]
    File {
        /// Which file.
        place: String,
        /// Why not.
        cause: std::io::Error,
    },
    /// The server lacks what we rely on.
    #[error("{place} is version {version}: at least {needed} is needed")]
    ServerTooOld {
        /// Which database.
        place: String,
        /// Its version, in its own words.
        version: String,
        /// The oldest that will do.
        needed: &'static str,
    },
    /// The database keeps text in an encoding that cannot hold every name.
    #[error("{place} keeps text as {encoding}: make one that keeps it as UTF8")]
    Encoding {
        /// Which database.
        place: String,
        /// Its encoding.
        encoding: String,
    },
    /// A later tollgate has changed the schema: this one must not touch it.
    #[error(
        "the database has schema {found}, and this tollgate knows schemas up to {known}: use the newer tollgate"
    )]
    SchemaTooNew {
        /// The schema of the database.
        found: u64,
        /// The last schema that this program knows.
        known: u64,
    },
    /// Another node is changing the schema, and has been for long. Another attempt may succeed.
    #[error("another node has been changing the schema for {waited:?}")]
    MigrationLocked {
        /// How long we have waited.
        waited: Duration,
    },
    /// A migration failed. Where schemas change in a transaction nothing has changed; MySQL may have made some of the
    /// tables, and another attempt goes on from there.
    #[error("migration {number} ({name}) failed: {cause}")]
    Migration {
        /// Its number.
        number: u64,
        /// Its name.
        name: &'static str,
        /// What the database says.
        cause: sqlx::Error,
    },
    /// A value cannot be stored. Nothing has changed.
    #[error("{field} {problem}")]
    Value {
        /// Which value.
        field: Cow<'static, str>,
        /// What is wrong with it.
        problem: ValueError,
    },
    /// An item is not what was expected: somebody else was quicker. Nothing has changed.
    #[error("{} {:?} {}", id.kind().as_str(), id.to_string(), found_as_text(*.found))]
    Conflict {
        /// Which item.
        id: ItemId,
        /// The version that it has; nothing if it is not there.
        found: Option<u64>,
    },
    /// The configuration is not at the version that a change was made for: somebody else was quicker. Nothing has changed.
    #[error("the configuration is at version {found}")]
    VersionConflict {
        /// The version that it has.
        found: u64,
    },
    /// One change names an item twice. Nothing has changed.
    #[error("{} {:?} is changed twice at once", id.kind().as_str(), id.to_string())]
    DuplicateItem {
        /// Which item.
        id: ItemId,
    },
    /// A constraint of the schema forbids the change. Nothing has changed.
    #[error("the database refuses the change: it violates {constraint}")]
    Constraint {
        /// Its name. What else the database says may repeat the row, and so the hash of a key.
        constraint: String,
    },
    /// A row cannot be understood: somebody else has written it.
    #[error("{what} in the database cannot be read")]
    Corrupt {
        /// Which table or column.
        what: &'static str,
    },
    /// A query failed, or no connection was free in time. Nothing has changed.
    #[error("the database cannot be asked: {}", in_words(.cause))]
    Query {
        /// What the driver says.
        cause: sqlx::Error,
    },
    /// The connection broke when the change was to be made final: it may or may not have been made. Look before
    /// another attempt.
    #[error("whether the change was made is not known: {cause}")]
    OutcomeUnknown {
        /// What the driver says.
        cause: sqlx::Error,
    },
}

/// What is wrong with a value.
#[non_exhaustive]
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ValueError {
    /// Nothing in it.
    #[error("must not be empty")]
    Empty,
    /// Too many bytes.
    #[error("must be at most {max} bytes")]
    TooLong {
        /// The most.
        max: usize,
    },
    /// A NUL, which not every database can keep.
    #[error("must not hold a NUL character")]
    HoldsNul,
    /// More than a database can count.
    #[error("is too large a number")]
    TooLarge,
    /// A value of another type than it must have.
    #[error("must be {needed}")]
    WrongType {
        /// The type.
        needed: &'static str,
    },
    /// A key or a value that has no meaning here.
    #[error("has no meaning here")]
    Meaningless,
}

impl From<sqlx::Error> for DatabaseError {
    fn from(cause: sqlx::Error) -> Self {
        match cause.as_database_error() {
            Some(answer) if answer.kind() != ErrorKind::Other => {
                DatabaseError::Constraint { constraint: constraint(answer) }
            }
            _ => DatabaseError::Query { cause },
        }
    }
}

/// A driver that waits for a server that is down tells only that it has waited.
fn in_words(cause: &sqlx::Error) -> String {
    match cause {
        sqlx::Error::PoolTimedOut => {
            "no connection was to be had in time: the server is down or silent, or all connections are busy"
                .to_owned()
        }
        cause => cause.to_string(),
    }
}

fn found_as_text(found: Option<u64>) -> String {
    found.map_or_else(|| "is not there".to_owned(), |version| format!("is there, with version {version}"))
}

impl DatabaseError {
    /// Whether the database is not there, or was not in time: another attempt may succeed, and nothing is wrong with
    /// what was asked.
    pub fn is_unreachable(&self) -> bool {
        match self {
            DatabaseError::Unreachable { .. } => true,
            DatabaseError::Query { cause } | DatabaseError::OutcomeUnknown { cause } => is_away(cause),
            _ => false,
        }
    }

    /// Whether the server ended it because it and another waited for each other. Nothing has changed.
    pub(super) fn is_deadlock(&self) -> bool {
        let DatabaseError::Query { cause } = self else { return false };
        let Some(answer) = cause.as_database_error() else { return false };
        match answer.try_downcast_ref::<MySqlDatabaseError>() {
            Some(answer) => answer.number() == 1213,
            None => answer.code().as_deref() == Some("40P01"),
        }
    }

    pub(super) fn value(field: impl Into<Cow<'static, str>>, problem: ValueError) -> Self {
        DatabaseError::Value { field: field.into(), problem }
    }

    /// When a connection could not be made.
    pub(super) fn connecting(place: String, cause: sqlx::Error) -> Self {
        if cause.as_database_error().is_some() {
            DatabaseError::Denied { place, cause }
        } else {
            DatabaseError::Unreachable { place, cause }
        }
    }

    /// When a commit failed: a server that says no has not made the change.
    pub(super) fn committing(cause: sqlx::Error) -> Self {
        if cause.as_database_error().is_some() {
            cause.into()
        } else {
            DatabaseError::OutcomeUnknown { cause }
        }
    }
}

/// The name of the constraint. PostgreSQL tells it; SQLite says it last; MySQL puts it in quotes, behind a value that may be
/// anything.
fn constraint(answer: &dyn sqlx::error::DatabaseError) -> String {
    let message = answer.message();
    let name = match (answer.constraint(), message.rsplit_once("CONSTRAINT `"), message.rsplit_once("key '"))
    {
        (Some(name), _, _) => name,
        (_, Some((_, name)), _) => name.split('`').next().unwrap_or_default(),
        (_, _, Some((_, name))) => name.split('\'').next().unwrap_or_default(),
        _ => message.rsplit(": ").next().unwrap_or_default(),
    };
    name.to_owned()
}

/// Whether an error tells of a server that is not there, is going, or is just coming.
fn is_away(cause: &sqlx::Error) -> bool {
    let Some(answer) = cause.as_database_error() else {
        use sqlx::Error::{Io, PoolClosed, PoolTimedOut, Protocol, Tls, WorkerCrashed};
        return matches!(cause, Io(_) | Tls(_) | Protocol(_) | PoolTimedOut | PoolClosed | WorkerCrashed);
    };
    if let Some(answer) = answer.try_downcast_ref::<MySqlDatabaseError>() {
        // Too many connections; the server is shutting down; the connection was killed.
        return [1040, 1053, 1927].contains(&answer.number());
    }
    // PostgreSQL: class 08, connection exceptions; shut down, crashed, not yet started; too many connections.
    let code = answer.code().unwrap_or_default();
    code.len() == 5 && (code.starts_with("08") || ["57P01", "57P02", "57P03", "53300"].contains(&&*code))
}

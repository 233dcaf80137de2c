//! Why a database did not do what it was asked.

use std::time::Duration;

use sqlx::error::ErrorKind;

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
    /// The server answers, and does not let us in: login or name of the database are wrong.
    #[error("{place} does not let us in: {cause}")]
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
    TooOld {
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
    Newer {
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
        field: &'static str,
        /// What is wrong with it.
        problem: ValueProblem,
    },
    /// A constraint of the schema forbids the change. Nothing has changed.
    #[error("the database refuses the change: {cause}")]
    Constraint {
        /// What the database says; it names the constraint.
        cause: sqlx::Error,
    },
    /// A row cannot be understood: somebody else has written it.
    #[error("{what} in the database cannot be read")]
    Corrupt {
        /// Which table or column.
        what: &'static str,
    },
    /// A query failed, or no connection was free in time. Nothing has changed.
    #[error("the database cannot be asked: {cause}")]
    Query {
        /// What the driver says.
        cause: sqlx::Error,
    },
    /// The connection broke when the change was to be made final: it may or may not have been made. Look before
    /// another attempt.
    #[error("whether the change was made is not known: {cause}")]
    Unknown {
        /// What the driver says.
        cause: sqlx::Error,
    },
}

/// What is wrong with a value.
#[non_exhaustive]
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ValueProblem {
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
}

impl From<sqlx::Error> for DatabaseError {
    fn from(cause: sqlx::Error) -> Self {
        let kind = cause.as_database_error().map(sqlx::error::DatabaseError::kind);
        match kind {
            None | Some(ErrorKind::Other) => DatabaseError::Query { cause },
            Some(_) => DatabaseError::Constraint { cause },
        }
    }
}

impl DatabaseError {
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
        if cause.as_database_error().is_some() { cause.into() } else { DatabaseError::Unknown { cause } }
    }
}

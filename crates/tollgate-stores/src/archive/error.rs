//! Errors of the archive.

use parquet::errors::ParquetError;

use crate::sql::DatabaseError;

/// Why an operation on the archive failed. Nothing was removed from the database, unless all of it is in the archive.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// The settings are invalid. Correct them.
    #[error("{0}")]
    Settings(#[from] ArchiveSettingsError),
    /// The folder or the object store failed: unreachable, full, or without permission. A retry may succeed.
    #[error("{archive}: {}", root_cause(.cause))]
    Store {
        /// What failed, with its place.
        archive: String,
        /// The error of the store.
        cause: object_store::Error,
    },
    /// A file is not what was written: damaged, or not from tollgate.
    #[error("Parquet file {file} is damaged: {reason}")]
    Damaged {
        /// The file.
        file: String,
        /// What is wrong.
        reason: String,
    },
    /// The archive has files of another database. Use a URL of its own for each records database.
    #[error(
        "archive file {file} belongs to another records database; give each database its own records.archive.url"
    )]
    OtherDatabase {
        /// The file.
        file: String,
    },
    /// Another process archives or restores. A retry may succeed.
    #[error(
        "{holder} is working on the archive; try again when it has finished, or ten minutes after it was killed"
    )]
    Busy {
        /// The node or command.
        holder: String,
    },
    /// The records database failed.
    #[error(transparent)]
    Database(#[from] DatabaseError),
}

/// Why the settings of an archive are invalid.
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ArchiveSettingsError {
    /// Neither a folder nor a bucket.
    #[error("must be file:///FOLDER or s3://BUCKET/PREFIX")]
    Url,
    /// The folder is relative.
    #[error("must be an absolute path, such as file:///var/lib/tollgate/archive")]
    RelativePath,
    /// A password in the URL would be logged.
    #[error("must not contain credentials; use access_key_id and secret_access_key, or the environment")]
    Credentials,
    /// The client of the object store rejects the settings.
    #[error("{0}")]
    Client(String),
}

impl ArchiveError {
    #[expect(clippy::needless_pass_by_value, reason = "callers have no other use for the reason")]
    pub(crate) fn damaged(file: &impl ToString, reason: impl ToString) -> Self {
        ArchiveError::Damaged { file: file.to_string(), reason: reason.to_string() }
    }
}

/// The message without the names of libraries in front of it.
pub(crate) fn root_cause(error: &object_store::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    // Some stores answer with several lines of XML.
    let cause = cause.to_string().split_ascii_whitespace().collect::<Vec<_>>().join(" ");
    let is_denied = matches!(
        error,
        object_store::Error::PermissionDenied { .. } | object_store::Error::Unauthenticated { .. }
    );
    if is_denied || cause.contains("403 Forbidden") || cause.contains("401 Unauthorized") {
        return format!("access denied; check the credentials and their permissions ({cause})");
    }
    match error {
        object_store::Error::NotFound { path, .. } => format!("{path} was not found ({cause})"),
        _ => cause,
    }
}

/// What a decoder reports, with the file.
pub(crate) fn in_file(file: &impl ToString) -> impl Fn(ParquetError) -> ArchiveError {
    let file = file.to_string();
    move |cause| ArchiveError::damaged(&file, cause)
}

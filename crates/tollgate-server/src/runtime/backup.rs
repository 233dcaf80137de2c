//! Backup and restore of what belongs to one node: its settings file and its data directory.
//!
//! A backup is a folder, or a prefix of a bucket, that is named by its time. The manifest is written last: a backup without one
//! is incomplete and does not count. Databases on a server and counters on Redis have tools of their own (`deploy/backup/`).

mod contents;
mod manifest;
mod place;
mod restore;

use std::io;
use std::path::{Path, PathBuf};

use tollgate_stores::backup::BucketError;
use tollgate_stores::sql::DatabaseError;

pub use self::manifest::{BackupFile, Manifest};
pub use self::place::BackupPlace;
pub use self::restore::{RestoreOptions, Restored, restore, verify};
use crate::config::settings::Settings;
use crate::runtime::data_dir::DataDirError;

/// Why a backup or restore failed. A failed backup leaves nothing that counts as one; a failed restore has changed nothing,
/// unless the message says so.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The place is neither a folder nor a bucket.
    #[error("{text:?} is neither a folder nor s3://BUCKET/PREFIX: {reason}")]
    Place {
        /// As written.
        text: String,
        /// What is wrong.
        reason: String,
    },
    /// There is nothing to back up.
    #[error("the data directory {path} does not exist; pass the --config and --data-dir of the node", path = path.display())]
    NoDataDir {
        /// The directory.
        path: PathBuf,
    },
    /// A file cannot be read or written: check permissions and free space.
    #[error("{path}: {source}", path = path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A SQLite database cannot be copied.
    #[error("cannot copy {path}: {source}", path = path.display())]
    Database {
        /// The database.
        path: PathBuf,
        /// Why.
        source: DatabaseError,
    },
    /// The bucket failed.
    #[error(transparent)]
    Bucket(#[from] BucketError),
    /// No backup, or an interrupted one.
    #[error(
        "{place} has no manifest.json: it is not a backup, or the backup was interrupted; `tollgate backup --list` lists \
        complete ones"
    )]
    NoManifest {
        /// The folder or prefix.
        place: String,
    },
    /// A file is not what was backed up. Use another backup.
    #[error("{file} of the backup is damaged: {reason}; nothing was restored, use another backup")]
    Damaged {
        /// The file.
        file: String,
        /// What is wrong.
        reason: String,
    },
    /// The backup was made by a newer version.
    #[error("the backup was made by tollgate {version} and cannot be read by this version; upgrade tollgate")]
    TooNew {
        /// The version that made it.
        version: String,
    },
    /// The data directory is in use, or cannot be created.
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    /// The data directory has files.
    #[error("the data directory {path} is not empty; pass --force to move its files aside, or choose another", path = path.display())]
    NotEmpty {
        /// The directory.
        path: PathBuf,
    },
    /// The settings file exists.
    #[error("{path} exists; choose another name for --config-out", path = path.display())]
    ConfigExists {
        /// The file.
        path: PathBuf,
    },
    /// The backup has no settings file.
    #[error("the backup has no settings file, so --config-out cannot be written")]
    NoConfig,
}

/// Backs up a node that may be running; returns the name of the backup and its manifest.
///
/// # Errors
/// When something cannot be read or written. What was written is removed, as far as possible.
pub async fn create(
    settings: &Settings,
    place: &BackupPlace,
    include_secrets: bool,
) -> Result<(String, Manifest), BackupError> {
    if !settings.data_dir.is_dir() {
        return Err(BackupError::NoDataDir { path: settings.data_dir.clone() });
    }
    let now = jiff::Timestamp::now();
    let name = now.strftime("%Y%m%dT%H%M%SZ").to_string();
    let draft = place.draft(&name)?;
    let manifest = contents::copy(settings, draft.path(), now, include_secrets).await?;
    place.publish(draft, &name, &manifest).await?;
    Ok((name, manifest))
}

fn in_file(path: &Path) -> impl FnOnce(io::Error) -> BackupError {
    let path = path.to_owned();
    move |source| BackupError::File { path, source }
}

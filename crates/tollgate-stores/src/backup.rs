//! Files of backups in a bucket.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path as FilePath;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::TryStreamExt as _;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt as _, WriteMultipart};

use crate::archive::{ArchiveError, ArchiveSettings, root_cause};

/// The size of an uploaded part, and how many are sent at once.
const PART_BYTES: usize = 8 * 1024 * 1024;
const PARTS_AT_ONCE: usize = 2;

/// Why a file could not be copied to or from a bucket.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum BucketError {
    /// The settings are invalid. Correct them.
    #[error(transparent)]
    Settings(#[from] ArchiveError),
    /// The bucket is unreachable, does not exist, or denies access. A retry may succeed.
    #[error("{bucket}: {}", root_cause(.cause))]
    Store {
        /// The bucket and prefix.
        bucket: String,
        /// The error of the store.
        cause: object_store::Error,
    },
    /// The local file failed.
    #[error("{file}: {cause}")]
    File {
        /// The file.
        file: String,
        /// The error of the file system.
        cause: io::Error,
    },
}

/// Files below a prefix of a bucket.
#[derive(Clone, Debug)]
pub struct BackupBucket {
    store: Arc<dyn ObjectStore>,
    name: String,
}

#[expect(clippy::missing_errors_doc, reason = "documented on the error")]
impl BackupBucket {
    /// Does not connect yet.
    pub fn open(settings: &ArchiveSettings) -> Result<Self, BucketError> {
        let name = settings.place.to_string();
        Ok(BackupBucket { store: settings.open(&name)?, name })
    }

    /// The names of all files, such as `20270131T120000Z/manifest.json`.
    pub async fn list(&self) -> Result<Vec<String>, BucketError> {
        let objects = self.store.list(None).map_ok(|object| object.location.to_string());
        objects.try_collect().await.map_err(|cause| self.failed(cause))
    }

    /// Reads a small file.
    pub async fn read(&self, name: &str) -> Result<Bytes, BucketError> {
        let object = self.store.get(&Path::from(name)).await.map_err(|cause| self.failed(cause))?;
        object.bytes().await.map_err(|cause| self.failed(cause))
    }

    /// Uploads a file. It appears when it is complete.
    pub async fn upload(&self, from: &FilePath, name: &str) -> Result<(), BucketError> {
        let of_file = |cause| BucketError::File { file: from.display().to_string(), cause };
        let mut file = File::open(from).map_err(of_file)?;
        let upload = self.store.put_multipart(&Path::from(name)).await;
        let upload = upload.map_err(|cause| self.failed(cause))?;
        let mut parts = WriteMultipart::new_with_chunk_size(upload, PART_BYTES);
        let mut part = vec![0; PART_BYTES];
        loop {
            let read = file.read(&mut part).map_err(of_file)?;
            if read == 0 {
                break;
            }
            let sent = parts.wait_for_capacity(PARTS_AT_ONCE).await;
            sent.map_err(|cause| self.failed(cause))?;
            parts.write(&part[..read]);
        }
        parts.finish().await.map(drop).map_err(|cause| self.failed(cause))
    }

    /// Writes the contents of a file of the bucket.
    pub async fn download(&self, name: &str, to: &mut impl io::Write) -> Result<(), BucketError> {
        let object = self.store.get(&Path::from(name)).await.map_err(|cause| self.failed(cause))?;
        let mut pieces = object.into_stream();
        while let Some(piece) = pieces.try_next().await.map_err(|cause| self.failed(cause))? {
            let written = to.write_all(&piece);
            written.map_err(|cause| BucketError::File { file: name.to_owned(), cause })?;
        }
        Ok(())
    }

    /// Whether the error means that there is no such file.
    pub fn is_missing(error: &BucketError) -> bool {
        matches!(error, BucketError::Store { cause: object_store::Error::NotFound { .. }, .. })
    }

    fn failed(&self, cause: object_store::Error) -> BucketError {
        BucketError::Store { bucket: self.name.clone(), cause }
    }
}

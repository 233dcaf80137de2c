//! The objects of the archive.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use jiff::civil::Date;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt as _, WriteMultipart};

use super::error::ArchiveError;
use super::manifest::{ArchiveFile, ArchivedFile};
use super::settings::ArchiveSettings;
use super::table::ArchivedTable;

/// The size of an uploaded part, and how many are sent at once.
const PART_BYTES: usize = 8 * 1024 * 1024;
const PARTS_AT_ONCE: usize = 2;
/// Manifests that are read at once.
const READS_AT_ONCE: usize = 16;
const MANIFEST_BYTES_MAX: u64 = 64 * 1024;

/// The files of an archive and their manifests. Clones share the connections.
#[derive(Clone, Debug)]
pub(crate) struct ArchiveStore {
    store: Arc<dyn ObjectStore>,
    name: Arc<str>,
}

/// A file that is being written. It appears when it is finished.
pub(crate) struct Upload {
    store: ArchiveStore,
    parts: WriteMultipart,
    bytes: u64,
}

impl ArchiveStore {
    pub(crate) fn open(settings: &ArchiveSettings) -> Result<Self, ArchiveError> {
        ArchiveStore::open_as(settings, settings.name())
    }

    /// `name` begins the errors.
    pub(crate) fn open_as(settings: &ArchiveSettings, name: String) -> Result<Self, ArchiveError> {
        Ok(ArchiveStore { store: settings.open(&name)?, name: name.into() })
    }

    pub(crate) async fn size(&self, path: &Path) -> Result<u64, ArchiveError> {
        Ok(self.store.head(path).await.map_err(|cause| self.failed(cause))?.size)
    }

    /// A part of an object.
    pub(crate) async fn read(&self, path: &Path, range: Range<u64>) -> Result<Bytes, ArchiveError> {
        let bytes = match self.store.get_range(path, range.clone()).await {
            Err(error) if is_range_ignored(&error) => self.read_through(path, range).await,
            done => done,
        };
        bytes.map_err(|cause| self.failed(cause))
    }

    /// Reads from the start of the object, for stores without partial responses. Keeps only the part.
    async fn read_through(&self, path: &Path, range: Range<u64>) -> Result<Bytes, object_store::Error> {
        let mut pieces = self.store.get(path).await?.into_stream();
        let (mut position, mut part) = (0, BytesMut::new());
        while let Some(piece) = pieces.try_next().await? {
            let end = position + piece.len() as u64;
            let within = |at: u64| usize::try_from(at.clamp(position, end) - position).unwrap_or(0);
            part.extend_from_slice(&piece[within(range.start)..within(range.end)]);
            position = end;
            if position >= range.end {
                break;
            }
        }
        Ok(part.freeze())
    }

    pub(crate) async fn create(&self, path: &Path) -> Result<Upload, ArchiveError> {
        let upload = self.store.put_multipart(path).await.map_err(|cause| self.failed(cause))?;
        let parts = WriteMultipart::new_with_chunk_size(upload, PART_BYTES);
        Ok(Upload { store: self.clone(), parts, bytes: 0 })
    }

    /// Writes a file as a whole.
    pub(crate) async fn put(&self, path: &Path, pieces: &[Bytes]) -> Result<(), ArchiveError> {
        if pieces.iter().map(Bytes::len).sum::<usize>() <= PART_BYTES {
            let put = self.store.put(path, pieces.iter().cloned().collect()).await;
            return put.map(drop).map_err(|cause| self.failed(cause));
        }
        let mut upload = self.create(path).await?;
        for piece in pieces {
            if let Err(error) = upload.write(piece.clone()).await {
                upload.abort().await;
                return Err(error);
            }
        }
        upload.finish().await.map(drop)
    }

    /// The objects in a folder, or all.
    pub(crate) async fn objects(&self, folder: Option<&str>) -> Result<Vec<ObjectMeta>, ArchiveError> {
        let objects = self.store.list(folder.map(Path::from).as_ref()).try_collect().await;
        objects.map_err(|cause| self.failed(cause))
    }

    /// Deletes an object. One that does not exist is no error.
    pub(crate) async fn delete(&self, path: &Path) -> Result<(), ArchiveError> {
        match self.store.delete(path).await {
            Err(object_store::Error::NotFound { .. }) => Ok(()),
            done => done.map_err(|cause| self.failed(cause)),
        }
    }

    pub(crate) async fn write_manifest(&self, file: &ArchivedFile) -> Result<(), ArchiveError> {
        let put = self.store.put(&file.file.manifest_path(), file.to_json().into()).await;
        put.map(drop).map_err(|cause| self.failed(cause))
    }

    /// The files of a table and period, or all, by table, period and part. Objects with other names are ignored.
    pub(crate) async fn list(
        &self,
        table: Option<ArchivedTable>,
        start: Option<Date>,
    ) -> Result<Vec<ArchivedFile>, ArchiveError> {
        let folder = table.map(|table| ArchiveFile::folder(table, start));
        let objects = self.objects(folder.as_deref()).await?;
        let manifests = objects.into_iter().filter_map(|object| {
            ArchiveFile::of_manifest(&object.location).map(|file| self.read_manifest(file, object.size))
        });
        let files = stream::iter(manifests).buffered(READS_AT_ONCE).try_collect::<Vec<_>>().await;
        let mut files = files?;
        files.sort_by_key(|file| file.file);
        Ok(files)
    }

    /// The files of a database that have no manifest: they are being written, or their runs ended early.
    pub(crate) async fn unfinished(
        &self,
        table: ArchivedTable,
        database: &str,
    ) -> Result<Vec<ArchiveFile>, ArchiveError> {
        let objects = self.objects(Some(&ArchiveFile::folder(table, None))).await?;
        let complete: HashSet<ArchiveFile> =
            objects.iter().filter_map(|object| ArchiveFile::of_manifest(&object.location)).collect();
        let files = objects.iter().filter_map(|object| ArchiveFile::of_path(&object.location));
        let mut unfinished = Vec::new();
        for file in files.filter(|file| file.id.is_of(database) && !complete.contains(file)) {
            // The listing of a store may lag behind, so it does not show that there is no manifest.
            if !self.exists(&file.manifest_path()).await? {
                unfinished.push(file);
            }
        }
        Ok(unfinished)
    }

    async fn exists(&self, path: &Path) -> Result<bool, ArchiveError> {
        match self.store.head(path).await {
            Err(object_store::Error::NotFound { .. }) => Ok(false),
            found => found.map(|_| true).map_err(|cause| self.failed(cause)),
        }
    }

    async fn read_manifest(&self, file: ArchiveFile, size: u64) -> Result<ArchivedFile, ArchiveError> {
        let path = file.manifest_path();
        if size > MANIFEST_BYTES_MAX {
            return Err(ArchiveError::damaged(&path, "it is too large for a manifest"));
        }
        let json = self.read(&path, 0..size).await?;
        ArchivedFile::from_json(file, &json).map_err(|reason| ArchiveError::damaged(&path, reason))
    }

    fn failed(&self, cause: object_store::Error) -> ArchiveError {
        ArchiveError::Store { archive: self.name.to_string(), cause }
    }
}

/// Whether the store did not answer with `206 Partial Content`. The client has no other mark for it.
fn is_range_ignored(error: &object_store::Error) -> bool {
    matches!(error, object_store::Error::Generic { source, .. } if source.to_string().contains("non-partial response"))
}

impl Upload {
    pub(crate) async fn write(&mut self, bytes: Bytes) -> Result<(), ArchiveError> {
        self.bytes += bytes.len() as u64;
        let sent = self.parts.wait_for_capacity(PARTS_AT_ONCE).await;
        sent.map_err(|cause| self.store.failed(cause))?;
        self.parts.put(bytes);
        Ok(())
    }

    /// Makes the file visible; returns its size.
    pub(crate) async fn finish(self) -> Result<u64, ArchiveError> {
        self.parts.finish().await.map_err(|cause| self.store.failed(cause))?;
        Ok(self.bytes)
    }

    /// Discards what was sent.
    pub(crate) async fn abort(self) {
        // What remains has no name that is read, and the error that led here says more.
        let _ = self.parts.abort().await;
    }
}

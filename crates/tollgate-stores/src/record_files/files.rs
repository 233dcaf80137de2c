//! The files in a folder or an object store.

use super::compact::{Compaction, FileCompactor};
use super::encoder::EncodedFile;
use super::file_name::Partition;
use crate::archive::store::ArchiveStore;
use crate::archive::{ArchiveError, ArchiveSettings};
use crate::sql::records::SourceId;

/// Where nodes write their files. Clones share the connections.
#[derive(Clone, Debug)]
pub struct RecordFiles {
    pub(super) store: ArchiveStore,
}

impl RecordFiles {
    /// Opens the place. Creates a missing folder; does not connect to a bucket.
    ///
    /// # Errors
    /// When the folder cannot be created, or the settings are invalid.
    pub fn open(settings: &ArchiveSettings) -> Result<Self, ArchiveError> {
        let name = format!("Parquet files in {}", settings.place);
        Ok(RecordFiles { store: ArchiveStore::open_as(settings, name)? })
    }

    /// Writes a file. It appears as a whole, and replaces one of the same name.
    ///
    /// # Errors
    /// When the store is unreachable or refuses. The file may have been written.
    pub async fn write(&self, file: &EncodedFile) -> Result<(), ArchiveError> {
        self.store.put(&file.file.path(), &file.pieces).await
    }

    /// Combines the small files of one source in an hour. Only rows before `stored_to` count: later ones may be written again.
    ///
    /// # Errors
    /// When the store fails or a file is damaged. Every row is in a file; a repeated run continues.
    pub async fn compact(
        &self,
        partition: Partition,
        source: SourceId,
        stored_to: u64,
    ) -> Result<Compaction, ArchiveError> {
        FileCompactor(&self.store).compact(partition, source, stored_to).await
    }
}

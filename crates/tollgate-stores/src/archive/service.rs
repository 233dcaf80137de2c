//! The archive as a whole: list, verify, delete.

use super::batch::Totals;
use super::error::ArchiveError;
use super::manifest::ArchivedFile;
use super::reader::FileReader;
use super::settings::ArchiveSettings;
use super::store::ArchiveStore;

/// An archive of records. Clones share the connections.
#[derive(Clone, Debug)]
pub struct Archive {
    pub(crate) store: ArchiveStore,
}

impl Archive {
    /// Opens an archive. Creates a missing folder; does not connect to a bucket.
    ///
    /// # Errors
    /// When the folder cannot be created, or the settings are invalid.
    pub fn open(settings: &ArchiveSettings) -> Result<Self, ArchiveError> {
        Ok(Archive { store: ArchiveStore::open(settings)? })
    }

    /// All files that were verified, by table, period and part.
    ///
    /// # Errors
    /// When the archive is unreachable, or a manifest is damaged.
    pub async fn list(&self) -> Result<Vec<ArchivedFile>, ArchiveError> {
        self.store.list(None, None).await
    }

    /// Reads a file and compares its rows with what was archived. `report` is called with the rows read so far.
    ///
    /// # Errors
    /// When the file differs, is missing, or the archive is unreachable.
    pub async fn verify(
        &self,
        file: &ArchivedFile,
        report: &mut (dyn FnMut(u64) + Send),
    ) -> Result<(), ArchiveError> {
        let reader = self.read(file).await?;
        let mut totals = Totals::default();
        for group in reader.groups() {
            totals.add(&reader.totals(group).await?);
            report(totals.rows);
        }
        file.compare(&totals)
    }

    pub(crate) async fn read(&self, file: &ArchivedFile) -> Result<FileReader, ArchiveError> {
        FileReader::open(&self.store, file.file.table, file.file.path()).await
    }

    /// Deletes a file and its manifest.
    ///
    /// # Errors
    /// When the archive is unreachable or refuses. The file may be deleted and its manifest not; a retry deletes it.
    pub async fn delete(&self, file: &ArchivedFile) -> Result<(), ArchiveError> {
        self.store.delete(&file.file.path()).await?;
        self.store.delete(&file.file.manifest_path()).await
    }
}

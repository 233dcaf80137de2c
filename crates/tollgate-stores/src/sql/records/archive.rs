//! Moves rows beyond their retention to the archive, and back.
//!
//! For each table and period: write a file, read it back and compare, write its manifest, remove the rows. A run that ends in
//! between is continued by the next one; rows are removed only if a verified file has them.

mod lease;
mod remove;
mod restore;
mod run;
mod select;

pub use self::run::{ArchiveRun, ArchiveStep};

use super::maintain::Retention;
use super::{RecordsDatabase, maintain};
use crate::archive::reader::FileReader;
use crate::archive::{Archive, ArchiveError, ArchivedFile};

impl RecordsDatabase {
    /// Archives all periods that are beyond their retention, and removes them from the database. One process at a time does
    /// it. `report` is called after every step.
    ///
    /// # Errors
    /// - [`ArchiveError::Busy`]: another process does it.
    /// - Others: the step that failed is repeated by the next run.
    pub async fn archive(
        &self,
        archive: &Archive,
        node: &str,
        now_micros: u64,
        retention: &Retention,
        report: &mut (dyn FnMut(&ArchiveStep) + Send),
    ) -> Result<ArchiveRun, ArchiveError> {
        run::run(self, archive, node, now_micros, retention, report).await
    }

    /// Writes the rows of a file into this database, which need not be the one that they are from. Rows with the same key are
    /// replaced.
    ///
    /// # Errors
    /// When the file is damaged, or the archive or the database fails. Some rows may have been restored.
    pub async fn restore(&self, archive: &Archive, file: &ArchivedFile) -> Result<u64, ArchiveError> {
        let reader = FileReader::open(&archive.store, file.file.table, file.file.path()).await?;
        let mut totals = crate::archive::batch::Totals::default();
        for group in reader.groups() {
            let batch = reader.read(group).await?;
            totals.add(&batch.totals());
            restore::insert_rows(&self.pool, &batch).await?;
        }
        if !file.has(&totals) {
            return Err(ArchiveError::damaged(&file.file, "its rows are not those that were archived"));
        }
        Ok(totals.rows)
    }

    /// As [`restore`](Self::restore), and notes that the rows are in this database again: the next run of the archive removes
    /// them, unless their retention was extended.
    ///
    /// # Errors
    /// As [`restore`](Self::restore), and [`ArchiveError::Busy`] while another process archives.
    pub async fn restore_here(
        &self,
        archive: &Archive,
        file: &ArchivedFile,
        node: &str,
    ) -> Result<u64, ArchiveError> {
        let database = lease::prepare(&self.pool).await?;
        if !lease::take(&self.pool, node).await? {
            return Err(ArchiveError::Busy);
        }
        let noted = ArchivedFile { is_removed: false, database, ..file.clone() };
        let restored = match archive.store.write_manifest(&noted).await {
            Ok(()) => self.restore(archive, file).await,
            Err(error) => Err(error),
        };
        lease::release(&self.pool, node).await?;
        restored
    }

    /// Whether a file is beyond the retention of its table, so that its rows would be archived again at once.
    pub fn is_expired(file: &ArchivedFile, now_micros: u64, retention: &Retention) -> bool {
        file.times.0 < maintain::oldest_micros(now_micros, run::kept(file.file.table, retention))
    }
}

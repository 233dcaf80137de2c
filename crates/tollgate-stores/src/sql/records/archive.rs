//! Moves rows beyond their retention to the archive, and back.
//!
//! For each table and period: write a file, read it back and compare, write its manifest, remove the rows. A run that ends in
//! between is continued by the next one; rows are removed only if a verified file has them.

mod copy;
mod lease;
mod remove;
mod restore;
mod run;
mod select;

pub use self::run::{ArchiveRun, ArchiveStep};

use self::lease::ArchiveLease;
use super::maintain::Retention;
use super::{RecordsDatabase, maintain};
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

    /// Writes the rows of a file into this database, which need not be the one that they are from. Rows whose key exists stay as
    /// they are. `report` is called with the rows written so far.
    ///
    /// # Errors
    /// When the file is damaged, or the archive or the database fails. Some rows may have been restored, unless the file is
    /// damaged.
    pub async fn restore(
        &self,
        archive: &Archive,
        file: &ArchivedFile,
        report: &mut (dyn FnMut(u64) + Send),
    ) -> Result<u64, ArchiveError> {
        self.insert_rows(archive, file, None, report).await
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
        report: &mut (dyn FnMut(u64) + Send),
    ) -> Result<u64, ArchiveError> {
        let lease = ArchiveLease::take(&self.pool, node).await?;
        let noted = ArchivedFile { is_removed: false, database: lease.database.clone(), ..file.clone() };
        let restored = match archive.store.write_manifest(&noted).await {
            Ok(()) => self.insert_rows(archive, file, Some(&lease), report).await,
            Err(error) => Err(error),
        };
        let released = lease.release().await;
        let rows = restored?;
        released?;
        Ok(rows)
    }

    async fn insert_rows(
        &self,
        archive: &Archive,
        file: &ArchivedFile,
        lease: Option<&ArchiveLease>,
        report: &mut (dyn FnMut(u64) + Send),
    ) -> Result<u64, ArchiveError> {
        archive.verify(file, &mut |_| {}).await?;
        let reader = archive.read(file).await?;
        let mut rows = 0;
        for group in reader.groups() {
            if let Some(lease) = lease {
                lease.keep().await?;
            }
            let batch = reader.read(group).await?;
            restore::insert_rows(&self.pool, &batch).await?;
            rows += batch.rows() as u64;
            report(rows);
        }
        Ok(rows)
    }

    /// Whether a file is beyond the retention of its table, so that its rows would be archived again at once.
    pub fn is_expired(file: &ArchivedFile, now_micros: u64, retention: &Retention) -> bool {
        file.times.0 < maintain::oldest_micros(now_micros, run::kept(file.file.table, retention))
    }
}

//! One run of the archive.

use std::time::Duration;

use jiff::civil::Date;

use super::lease::ArchiveLease;
use super::remove;
use super::select::{RangeReader, TimeRange};
use crate::archive::batch::{Batch, Totals};
use crate::archive::store::Upload;
use crate::archive::writer::FileWriter;
use crate::archive::{Archive, ArchiveError, ArchiveFile, ArchivedFile, ArchivedTable};
use crate::sql::error::DatabaseError;
use crate::sql::migrations::now_micros as wall_clock_micros;
use crate::sql::records::RecordsDatabase;
use crate::sql::records::maintain::periods::date_time;
use crate::sql::records::maintain::{
    LOG, ROLLUPS, RecordTable, Retention, WINDOWS, oldest_micros, partitions,
};
use crate::sql::settings::Engine;

/// Periods of a table in one run. More wait for the next one.
const PERIODS_MAX: usize = 128;
/// Parts of a period in one run: rows that arrive meanwhile wait for the next one.
const PARTS_MAX: usize = 4;

/// A step that was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArchiveStep {
    /// Rows were read from the database and sent to the archive.
    Read {
        /// The file that they are written to.
        file: ArchiveFile,
        /// Rows of the file so far.
        rows: u64,
        /// How much of the period was read.
        percent: u8,
    },
    /// A file was written.
    Written(ArchiveFile),
    /// Rows of the file were read back.
    ReadBack {
        /// The file.
        file: ArchiveFile,
        /// Rows so far.
        rows: u64,
    },
    /// The file is complete; its manifest was written.
    Verified(ArchivedFile),
    /// Rows of the file were removed from the database.
    Deleted {
        /// The file.
        file: ArchiveFile,
        /// Rows so far.
        rows: u64,
    },
    /// The rows of the file are no longer in the database, and its manifest says so.
    Removed(ArchivedFile),
}

/// What a run did.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct ArchiveRun {
    /// Files written and verified.
    pub files: u64,
    /// Rows in them.
    pub rows: u64,
    /// Their size.
    pub bytes: u64,
}

/// What a run works with.
struct Run<'a> {
    database: &'a RecordsDatabase,
    archive: &'a Archive,
    lease: ArchiveLease,
    report: &'a mut (dyn FnMut(&ArchiveStep) + Send),
    done: ArchiveRun,
}

/// A period of a table, and its partition if it has one.
struct Period {
    range: TimeRange,
    start: Date,
    partitioned: Option<&'static RecordTable>,
}

pub(super) async fn run(
    database: &RecordsDatabase,
    archive: &Archive,
    node: &str,
    now_micros: u64,
    retention: &Retention,
    report: &mut (dyn FnMut(&ArchiveStep) + Send),
) -> Result<ArchiveRun, ArchiveError> {
    let lease = ArchiveLease::take(&database.pool, node).await?;
    let mut run = Run { database, archive, lease, report, done: ArchiveRun::default() };
    let mut result = Ok(());
    for table in ArchivedTable::ALL {
        // A table that fails does not stop the others.
        let oldest = oldest_micros(now_micros, kept(table, retention));
        result = result.and(run.archive_table(table, oldest).await);
    }
    let released = run.lease.release().await;
    result?;
    released?;
    Ok(run.done)
}

pub(super) fn kept(table: ArchivedTable, retention: &Retention) -> Duration {
    match table {
        ArchivedTable::Log => retention.log,
        ArchivedTable::Windows => retention.windows,
        ArchivedTable::Rollups => retention.rollups,
    }
}

const fn record_table(table: ArchivedTable) -> &'static RecordTable {
    match table {
        ArchivedTable::Log => &LOG,
        ArchivedTable::Windows => &WINDOWS,
        ArchivedTable::Rollups => &ROLLUPS,
    }
}

impl Run<'_> {
    async fn archive_table(&mut self, table: ArchivedTable, oldest: u64) -> Result<(), ArchiveError> {
        self.delete_unfinished(table).await?;
        self.finish_earlier_runs(table, oldest).await?;
        for _ in 0..PERIODS_MAX {
            let Some(period) = self.next_period(table, oldest).await? else { break };
            let known = self.archive.store.list(Some(table), Some(period.start)).await?;
            self.archive_period(&period, &known).await?;
        }
        Ok(())
    }

    /// Deletes files without a manifest, whose runs ended early.
    async fn delete_unfinished(&mut self, table: ArchivedTable) -> Result<(), ArchiveError> {
        let unfinished = self.archive.store.unfinished(table, &self.lease.database).await?;
        // No other run was at work when they were listed, so nobody is writing them.
        self.lease.keep().await?;
        for file in unfinished {
            self.archive.store.delete(&file.path()).await?;
        }
        Ok(())
    }

    /// Removes the rows of files whose run ended before that, and of files that were restored.
    async fn finish_earlier_runs(&mut self, table: ArchivedTable, oldest: u64) -> Result<(), ArchiveError> {
        for file in self.archive.store.list(Some(table), None).await? {
            if file.database == self.lease.database && !file.is_removed && file.times.1 < oldest {
                self.verify(&file).await?;
                let records = record_table(table);
                let period = self.period(table, file.file.start);
                let is_partition = period.partitioned.is_some()
                    && partitions::list(&self.database.pool, records).await?.contains(&period.start);
                // The partition may have other rows by now.
                if is_partition && file.has(&self.totals(&period.range).await?) {
                    self.remove(&period, file).await?;
                } else {
                    self.delete_rows(&file).await?;
                }
            }
        }
        Ok(())
    }

    /// The oldest period that is beyond its retention.
    async fn next_period(
        &mut self,
        table: ArchivedTable,
        oldest: u64,
    ) -> Result<Option<Period>, DatabaseError> {
        let (pool, records) = (&self.database.pool, record_table(table));
        let start = if self.database.settings.engine() == Engine::Sqlite {
            let expired = TimeRange { table, start: 0, end: oldest };
            let Some(first) = expired.oldest(pool).await? else { return Ok(None) };
            records.period.start_of(date_time(first)?.date())
        } else {
            let Some(start) = partitions::list(pool, records).await?.into_iter().next() else {
                return Ok(None);
            };
            start
        };
        let is_expired = partitions::ends_before(records, start, date_time(oldest)?);
        Ok(is_expired.then(|| self.period(table, start)))
    }

    fn period(&self, table: ArchivedTable, start: Date) -> Period {
        let (engine, records) = (self.database.settings.engine(), record_table(table));
        // The oldest partition of MySQL contains all earlier rows.
        let from = if engine == Engine::MySql { 0 } else { micros_of(start) };
        let range = TimeRange { table, start: from, end: micros_of(records.period.next(start)) };
        Period { range, start, partitioned: (engine != Engine::Sqlite).then_some(records) }
    }

    /// The steps of one period. Every part is verified before its rows are removed.
    async fn archive_period(&mut self, period: &Period, parts: &[ArchivedFile]) -> Result<(), ArchiveError> {
        for file in parts {
            if file.database != self.lease.database {
                return Err(ArchiveError::OtherDatabase { file: file.file.to_string() });
            }
        }
        let next = parts.last().map_or(1, |file| file.file.part.saturating_add(1));
        for part in (next..=u32::MAX).take(PARTS_MAX) {
            if period.range.is_empty(&self.database.pool).await? {
                // If a row arrives meanwhile, the next run archives it.
                return self.drop_partition(period, (0, 0)).await.map(drop);
            }
            let (table, id) = (period.range.table, self.lease.file_id);
            let file = ArchiveFile { table, start: period.start, part, id };
            let written = self.write(file, &period.range).await?;
            if self.remove(period, written).await? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Removes the rows of a file. Returns whether the partition is gone: rows that were added meanwhile stay.
    async fn remove(&mut self, period: &Period, file: ArchivedFile) -> Result<bool, ArchiveError> {
        // Nobody else was at work until now, so nobody has deleted the file for want of its manifest.
        self.lease.keep().await?;
        let is_dropped = self.drop_partition(period, (file.rows, file.sum)).await?;
        if is_dropped {
            (self.report)(&ArchiveStep::Deleted { file: file.file, rows: file.rows });
            self.note_removed(file).await?;
        } else {
            self.delete_rows(&file).await?;
        }
        Ok(is_dropped)
    }

    async fn drop_partition(&mut self, period: &Period, expected: (u64, i64)) -> Result<bool, ArchiveError> {
        let Some(table) = period.partitioned else { return Ok(false) };
        let pool = &self.database.pool;
        Ok(remove::drop_partition(pool, table, period.start, &period.range, expected).await?)
    }

    /// Writes all rows of a range to a file, and verifies it.
    async fn write(&mut self, file: ArchiveFile, range: &TimeRange) -> Result<ArchivedFile, ArchiveError> {
        let mut upload = self.archive.store.create(&file.path()).await?;
        let totals = match self.send(file, range, &mut upload).await {
            Ok(totals) => totals,
            Err(error) => {
                upload.abort().await;
                return Err(error);
            }
        };
        let bytes = upload.finish().await?;
        (self.report)(&ArchiveStep::Written(file));
        let now = u64::try_from(wall_clock_micros()).unwrap_or(0);
        let written = ArchivedFile::new(file, self.lease.database.clone(), &totals, bytes, now);
        self.verify(&written).await?;
        self.archive.store.write_manifest(&written).await?;
        self.done.files += 1;
        self.done.rows += written.rows;
        self.done.bytes += written.bytes;
        (self.report)(&ArchiveStep::Verified(written.clone()));
        Ok(written)
    }

    async fn send(
        &mut self,
        file: ArchiveFile,
        range: &TimeRange,
        upload: &mut Upload,
    ) -> Result<Totals, ArchiveError> {
        let mut writer = FileWriter::new(file.table).map_err(|error| ArchiveError::damaged(&file, error))?;
        let (mut totals, mut reader) = (Totals::default(), RangeReader::new(&self.database.pool, *range));
        while let Some(batch) = reader.next().await? {
            self.lease.keep().await?;
            let (encoded, next, of_batch) = encode(writer, batch, file).await?;
            writer = next;
            totals.add(&of_batch);
            upload.write(encoded).await?;
            let percent = percent_read(file, range, &totals);
            (self.report)(&ArchiveStep::Read { file, rows: totals.rows, percent });
        }
        upload.write(writer.finish().map_err(|error| ArchiveError::damaged(&file, error))?).await?;
        Ok(totals)
    }

    /// Reads a file back and compares it with what was read from the database.
    async fn verify(&mut self, file: &ArchivedFile) -> Result<(), ArchiveError> {
        // Another run deletes an unfinished file, which would be reported as missing.
        self.lease.keep().await?;
        let reader = self.archive.read(file).await?;
        let mut totals = Totals::default();
        for group in reader.groups() {
            totals.add(&reader.totals(group).await?);
            (self.report)(&ArchiveStep::ReadBack { file: file.file, rows: totals.rows });
            self.lease.keep().await?;
        }
        file.compare(&totals)
    }

    /// The totals of the rows that are in the database.
    async fn totals(&mut self, range: &TimeRange) -> Result<Totals, ArchiveError> {
        let (mut totals, mut reader) = (Totals::default(), RangeReader::new(&self.database.pool, *range));
        while let Some(batch) = reader.next().await? {
            self.lease.keep().await?;
            totals.add(&batch.totals());
        }
        Ok(totals)
    }

    /// Deletes the rows of a file from the database, one by one.
    async fn delete_rows(&mut self, file: &ArchivedFile) -> Result<(), ArchiveError> {
        let reader = self.archive.read(file).await?;
        let mut rows = 0;
        for group in reader.groups() {
            self.lease.keep().await?;
            let batch = reader.read(group).await?;
            remove::delete_rows(&self.database.pool, &batch).await?;
            rows += batch.rows() as u64;
            (self.report)(&ArchiveStep::Deleted { file: file.file, rows });
        }
        self.note_removed(file.clone()).await
    }

    async fn note_removed(&mut self, file: ArchivedFile) -> Result<(), ArchiveError> {
        let removed = ArchivedFile { is_removed: true, ..file };
        self.archive.store.write_manifest(&removed).await?;
        (self.report)(&ArchiveStep::Removed(removed));
        Ok(())
    }
}

/// Encoding takes hundreds of milliseconds: too long for a thread that serves requests.
async fn encode(
    mut writer: FileWriter,
    mut batch: Batch,
    file: ArchiveFile,
) -> Result<(bytes::Bytes, FileWriter, Totals), ArchiveError> {
    let encoding = tokio::task::spawn_blocking(move || {
        let totals = batch.totals();
        let encoded = writer.write(&mut batch).map_err(|error| ArchiveError::damaged(&file, error))?;
        Ok((encoded, writer, totals))
    });
    encoding.await.map_err(|error| ArchiveError::damaged(&file, error))?
}

/// Rows are read in the order of time.
fn percent_read(file: ArchiveFile, range: &TimeRange, totals: &Totals) -> u8 {
    let newest = totals.times.and_then(|(_, newest)| u64::try_from(newest).ok()).unwrap_or(0);
    let start = micros_of(file.start);
    let percent = newest.saturating_sub(start).saturating_mul(100) / range.end.saturating_sub(start).max(1);
    u8::try_from(percent.min(100)).unwrap_or(100)
}

fn micros_of(day: Date) -> u64 {
    let start = day.to_zoned(jiff::tz::TimeZone::UTC).map(|start| start.timestamp().as_microsecond());
    start.ok().and_then(|micros| u64::try_from(micros).ok()).unwrap_or(0)
}

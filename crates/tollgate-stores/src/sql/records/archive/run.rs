//! One run of the archive.

use std::time::Duration;

use jiff::civil::Date;

use super::select::TimeRange;
use super::{lease, remove};
use crate::archive::batch::{BATCH_ROWS, Batch, Totals};
use crate::archive::reader::FileReader;
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
    /// Rows were read from the database.
    Read {
        /// The file that they are written to.
        file: ArchiveFile,
        /// Rows of the file so far.
        rows: u64,
    },
    /// A file was written.
    Written(ArchiveFile),
    /// The file was read back and is complete; its manifest was written.
    Verified(ArchivedFile),
    /// The rows of the file are no longer in the database.
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
    node: &'a str,
    /// The id of the database.
    identity: String,
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
    let identity = lease::prepare(&database.pool).await?;
    let mut run = Run { database, archive, node, identity, report, done: ArchiveRun::default() };
    run.keep_lease().await?;
    let mut result = Ok(());
    for table in ArchivedTable::ALL {
        // A table that fails does not stop the others.
        let oldest = oldest_micros(now_micros, kept(table, retention));
        result = result.and(run.archive_table(table, oldest).await);
    }
    lease::release(&database.pool, node).await?;
    result.map(|()| run.done)
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
    async fn keep_lease(&mut self) -> Result<(), ArchiveError> {
        if lease::take(&self.database.pool, self.node).await? { Ok(()) } else { Err(ArchiveError::Busy) }
    }

    async fn archive_table(&mut self, table: ArchivedTable, oldest: u64) -> Result<(), ArchiveError> {
        self.finish_earlier_runs(table, oldest).await?;
        for _ in 0..PERIODS_MAX {
            let Some(period) = self.next_period(table, oldest).await? else { break };
            let known = self.archive.store.list(Some(table), Some(period.start)).await?;
            self.archive_period(&period, &known).await?;
        }
        Ok(())
    }

    /// Removes the rows of files whose run ended before that, and of files that were restored. The partition may be another one
    /// now, so rows are removed one by one.
    async fn finish_earlier_runs(&mut self, table: ArchivedTable, oldest: u64) -> Result<(), ArchiveError> {
        for file in self.archive.store.list(Some(table), None).await? {
            if file.database == self.identity && !file.is_removed && file.times.1 < oldest {
                self.archive.verify(&file).await?;
                self.remove_rows(&file).await?;
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
        let engine = self.database.settings.engine();
        let start = if engine == Engine::Sqlite {
            let expired = TimeRange { table, start: 0, end: oldest };
            let Some(first) = expired.oldest(pool).await? else { return Ok(None) };
            records.period.start_of(date_time(first)?.date())
        } else {
            let Some(start) = partitions::list(pool, records).await?.into_iter().next() else {
                return Ok(None);
            };
            start
        };
        if !partitions::ends_before(records, start, date_time(oldest)?) {
            return Ok(None);
        }
        // The oldest partition of MySQL contains all earlier rows.
        let from = if engine == Engine::MySql { 0 } else { micros_of(start) };
        let range = TimeRange { table, start: from, end: micros_of(records.period.next(start)) };
        Ok(Some(Period { range, start, partitioned: (engine != Engine::Sqlite).then_some(records) }))
    }

    /// The steps of one period. Every part is verified before its rows are removed.
    async fn archive_period(&mut self, period: &Period, parts: &[ArchivedFile]) -> Result<(), ArchiveError> {
        for file in parts {
            if file.database != self.identity {
                return Err(ArchiveError::OtherDatabase { file: file.file.to_string() });
            }
        }
        let next = parts.last().map_or(1, |file| file.file.part.saturating_add(1));
        for part in (next..=u32::MAX).take(PARTS_MAX) {
            if period.range.is_empty(&self.database.pool).await? {
                return self.drop_empty(period).await;
            }
            let file = ArchiveFile { table: period.range.table, start: period.start, part };
            let written = self.write(file, &period.range).await?;
            if self.drop_partition(period, &written).await? {
                return self.note_removed(written).await;
            }
            // SQLite has no partitions; elsewhere rows were added meanwhile.
            self.remove_rows(&written).await?;
        }
        Ok(())
    }

    async fn drop_partition(&mut self, period: &Period, file: &ArchivedFile) -> Result<bool, ArchiveError> {
        let Some(table) = period.partitioned else { return Ok(false) };
        self.keep_lease().await?;
        let (pool, expected) = (&self.database.pool, (file.rows, file.sum));
        Ok(remove::drop_partition(pool, table, period.start, &period.range, expected).await?)
    }

    async fn drop_empty(&mut self, period: &Period) -> Result<(), ArchiveError> {
        let Some(table) = period.partitioned else { return Ok(()) };
        // If a row arrives meanwhile, the next run archives it.
        remove::drop_partition(&self.database.pool, table, period.start, &period.range, (0, 0)).await?;
        Ok(())
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
        let written = ArchivedFile::new(file, self.identity.clone(), &totals, bytes, now);
        self.archive.verify(&written).await?;
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
        let (mut totals, mut cursor, mut is_last) = (Totals::default(), None, false);
        while !is_last {
            self.keep_lease().await?;
            let mut batch = Batch::new(file.table);
            while batch.rows() < BATCH_ROWS && !is_last {
                cursor = range.read_page(&self.database.pool, cursor.as_ref(), &mut batch).await?;
                is_last = cursor.is_none();
            }
            if batch.rows() == 0 {
                break;
            }
            let (encoded, next, of_batch) = encode(writer, batch, file).await?;
            writer = next;
            totals.add(&of_batch);
            upload.write(encoded).await?;
            (self.report)(&ArchiveStep::Read { file, rows: totals.rows });
        }
        upload.write(writer.finish().map_err(|error| ArchiveError::damaged(&file, error))?).await?;
        Ok(totals)
    }

    /// Removes the rows of a file from the database.
    async fn remove_rows(&mut self, file: &ArchivedFile) -> Result<(), ArchiveError> {
        let reader = FileReader::open(&self.archive.store, file.file.table, file.file.path()).await?;
        for group in reader.groups() {
            self.keep_lease().await?;
            remove::delete_rows(&self.database.pool, &reader.read(group).await?).await?;
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

fn micros_of(day: Date) -> u64 {
    let start = day.to_zoned(jiff::tz::TimeZone::UTC).map(|start| start.timestamp().as_microsecond());
    start.ok().and_then(|micros| u64::try_from(micros).ok()).unwrap_or(0)
}

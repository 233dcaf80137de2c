//! The names of files: table, hour, and range of rows. They never contain recorded text.

use std::fmt;

use jiff::Timestamp;
use object_store::path::Path;

use crate::archive::ArchivedTable;
use crate::sql::records::{RowRange, SourceId};

const SUFFIX: &str = ".parquet";
const SECONDS_PER_HOUR: i64 = 3_600;

/// An hour (UTC) of a table: a folder of files.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Partition {
    table: ArchivedTable,
    start: Timestamp,
}

impl Partition {
    /// The hour of a time in microseconds since 1970; `None` if that is beyond the year 9999.
    pub fn of(table: ArchivedTable, micros: u64) -> Option<Self> {
        let time = Timestamp::from_microsecond(i64::try_from(micros).ok()?).ok()?;
        let second = time.as_second() - time.as_second() % SECONDS_PER_HOUR;
        Some(Partition { table, start: Timestamp::from_second(second).ok()? })
    }

    /// Parses the form that [`Display`](fmt::Display) writes.
    pub fn parse(folder: &str) -> Option<Self> {
        let mut parts = folder.split('/');
        let table = ArchivedTable::parse(parts.next()?.strip_prefix("table=")?)?;
        let date = parts.next()?.strip_prefix("date=")?;
        let hour = parts.next()?.strip_prefix("hour=")?;
        let start = format!("{date}T{hour}:00:00Z").parse().ok()?;
        let partition = Partition { table, start };
        (partition.to_string() == folder).then_some(partition)
    }

    /// Its table.
    pub fn table(&self) -> ArchivedTable {
        self.table
    }

    /// When the hour ends, in microseconds since 1970.
    pub fn end_micros(&self) -> u64 {
        let second = self.start.as_second().saturating_add(SECONDS_PER_HOUR);
        u64::try_from(second).unwrap_or(0).saturating_mul(1_000_000)
    }
}

impl fmt::Display for Partition {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (table, start) = (self.table.as_str(), self.start.strftime("date=%Y-%m-%d/hour=%H"));
        write!(out, "table={table}/{start}")
    }
}

/// A file: the rows of a range that belong to an hour of a table.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct RecordFile {
    pub(super) partition: Partition,
    pub(super) range: RowRange,
}

impl RecordFile {
    pub(super) fn path(&self) -> Path {
        let RowRange { source, first, end } = self.range;
        Path::from(format!("{}/{}-{first}-{end}{SUFFIX}", self.partition, source.to_hex()))
    }

    /// The file with this path; `None` if it is the path of something else.
    pub(super) fn of_path(path: &Path) -> Option<Self> {
        let (folder, name) = path.as_ref().rsplit_once('/')?;
        let mut parts = name.strip_suffix(SUFFIX)?.split('-');
        let source = SourceId::from_hex(parts.next()?)?;
        let (first, end) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        let file =
            RecordFile { partition: Partition::parse(folder)?, range: RowRange { source, first, end } };
        (file.path() == *path).then_some(file)
    }

    /// Whether all rows of the other file are in this one too.
    pub(super) fn covers(&self, other: &RecordFile) -> bool {
        self != other
            && self.partition == other.partition
            && self.range.source == other.range.source
            && self.range.first <= other.range.first
            && other.range.end <= self.range.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str =
        "table=rate_limit_records/date=2026-11-18/hour=07/0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a-5-12.parquet";

    fn file(first: u64, end: u64) -> RecordFile {
        let partition = Partition::of(ArchivedTable::Windows, 1_795_000_000_000_000).unwrap();
        RecordFile { partition, range: RowRange { source: SourceId([10; 16]), first, end } }
    }

    #[test]
    fn names_consist_of_table_hour_and_rows() {
        let found = file(5, 12);
        assert_eq!(found.path().as_ref().rsplit('/').next(), NAME.rsplit('/').next());
        assert_eq!(RecordFile::of_path(&found.path()), Some(found));
        assert_eq!(RecordFile::of_path(&Path::from(NAME)).unwrap().path().as_ref(), NAME);
        for other in [
            NAME.replace("-12.", "-012."),
            NAME.replace("-12.parquet", "-12.parquet#1"),
            NAME.replace("hour=07", "hour=7"),
            NAME.replace("hour=07", "hour=24"),
            NAME.replace("rate_limit_records", "users"),
            NAME.replace("0a0a0a0a-", "0A0a0a0a-"),
            NAME.replace("table=", "x/table="),
            NAME.replace("-12.", "."),
        ] {
            assert_eq!(RecordFile::of_path(&Path::from(other.as_str())), None, "{other}");
        }
    }

    #[test]
    fn hours_are_those_of_utc() {
        let partition = Partition::of(ArchivedTable::Log, 1_700_000_000_000_001).unwrap();
        assert_eq!(partition.to_string(), "table=rate_limit_audit_logs/date=2023-11-14/hour=22");
        assert_eq!(partition.end_micros(), 1_700_002_800_000_000);
        assert_eq!(Partition::parse(&partition.to_string()), Some(partition));
        assert_eq!(Partition::of(ArchivedTable::Log, u64::MAX), None);
        assert_eq!(Partition::of(ArchivedTable::Log, 1 << 62), None);
    }

    #[test]
    fn covering_ranges_are_recognised() {
        assert!(file(0, 10).covers(&file(0, 5)) && file(0, 10).covers(&file(5, 10)));
        assert!(!file(0, 10).covers(&file(0, 10)) && !file(0, 10).covers(&file(5, 11)));
        let mut other = file(0, 5);
        other.range.source = SourceId([11; 16]);
        assert!(!file(0, 10).covers(&other));
    }
}

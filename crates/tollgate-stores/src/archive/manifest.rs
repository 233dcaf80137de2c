//! The journal of the archive: one object next to each file, written after the file was verified.

use jiff::civil::Date;
use object_store::path::Path;
use serde::{Deserialize, Serialize};

use super::batch::Totals;
use super::table::ArchivedTable;

const VERSION: u32 = 1;
const FILE: &str = ".parquet";
const MANIFEST: &str = ".json";

/// A file of the archive: rows of one table and period. Rows that arrive after their period was archived go to another part.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ArchiveFile {
    /// The table.
    pub table: ArchivedTable,
    /// The first day of the period, in UTC.
    pub start: Date,
    /// The number of the part, from 1.
    pub part: u32,
}

/// What a file of the archive contains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArchivedFile {
    /// The file.
    pub file: ArchiveFile,
    /// The database that the rows are from.
    pub database: String,
    /// Its rows.
    pub rows: u64,
    /// Its size.
    pub bytes: u64,
    /// The time of the first and of the last row, in microseconds since 1970.
    pub times: (u64, u64),
    /// When it was written, in microseconds since 1970.
    pub written_at_micros: u64,
    /// Whether its rows are no longer in the database.
    pub is_removed: bool,
    pub(crate) sum: i64,
    pub(crate) checksum: u128,
}

/// As it is stored.
#[derive(Serialize, Deserialize)]
struct Manifest {
    version: u32,
    table: String,
    start: String,
    part: u32,
    database: String,
    rows: u64,
    bytes: u64,
    oldest_micros: u64,
    newest_micros: u64,
    written_at_micros: u64,
    sum: i64,
    checksum: String,
    removed_from_database: bool,
}

impl ArchiveFile {
    /// The place of the rows. It consists of names of tables and a date, never of recorded text.
    pub(crate) fn path(&self) -> Path {
        Path::from(format!("{}/part-{}{FILE}", Self::folder(self.table, Some(self.start)), self.part))
    }

    pub(crate) fn manifest_path(&self) -> Path {
        Path::from(format!("{}/part-{}{MANIFEST}", Self::folder(self.table, Some(self.start)), self.part))
    }

    /// The folder of a table, or of one of its periods.
    pub(crate) fn folder(table: ArchivedTable, start: Option<Date>) -> String {
        let start = start.map(|start| format!("/start={start}")).unwrap_or_default();
        format!("table={}{start}", table.as_str())
    }

    /// The file of a manifest; `None` if it is the path of something else.
    pub(crate) fn of_manifest(path: &Path) -> Option<Self> {
        let mut parts = path.as_ref().split('/');
        let table = ArchivedTable::parse(parts.next()?.strip_prefix("table=")?)?;
        let start = parts.next()?.strip_prefix("start=")?.parse().ok()?;
        let part = parts.next()?.strip_prefix("part-")?.strip_suffix(MANIFEST)?.parse().ok()?;
        let file = ArchiveFile { table, start, part };
        (parts.next().is_none() && file.manifest_path() == *path).then_some(file)
    }
}

impl std::fmt::Display for ArchiveFile {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{}", self.path())
    }
}

impl ArchivedFile {
    pub(crate) fn new(file: ArchiveFile, database: String, totals: &Totals, bytes: u64, now: u64) -> Self {
        let micros = |time: i64| u64::try_from(time).unwrap_or(0);
        let times = totals.times.unwrap_or_default();
        ArchivedFile {
            file,
            database,
            rows: totals.rows,
            bytes,
            times: (micros(times.0), micros(times.1)),
            written_at_micros: now,
            is_removed: false,
            sum: totals.sum,
            checksum: totals.checksum,
        }
    }

    /// Whether it contains exactly these rows.
    pub(crate) fn has(&self, totals: &Totals) -> bool {
        (self.rows, self.sum, self.checksum) == (totals.rows, totals.sum, totals.checksum)
    }

    pub(crate) fn to_json(&self) -> Vec<u8> {
        let manifest = Manifest {
            version: VERSION,
            table: self.file.table.as_str().to_owned(),
            start: self.file.start.to_string(),
            part: self.file.part,
            database: self.database.clone(),
            rows: self.rows,
            bytes: self.bytes,
            oldest_micros: self.times.0,
            newest_micros: self.times.1,
            written_at_micros: self.written_at_micros,
            sum: self.sum,
            checksum: format!("{:032x}", self.checksum),
            removed_from_database: self.is_removed,
        };
        let mut json = serde_json::to_vec_pretty(&manifest).unwrap_or_default();
        json.push(b'\n');
        json
    }

    /// Reads the manifest of a file.
    pub(crate) fn from_json(file: ArchiveFile, json: &[u8]) -> Result<Self, String> {
        let manifest: Manifest = serde_json::from_slice(json).map_err(|error| error.to_string())?;
        if manifest.version != VERSION {
            return Err(format!("version {} is not supported; upgrade tollgate", manifest.version));
        }
        let described = (manifest.table.as_str(), manifest.start.as_str(), manifest.part);
        if described != (file.table.as_str(), file.start.to_string().as_str(), file.part) {
            return Err("it describes another file".to_owned());
        }
        let checksum = u128::from_str_radix(&manifest.checksum, 16).map_err(|error| error.to_string())?;
        Ok(ArchivedFile {
            file,
            database: manifest.database,
            rows: manifest.rows,
            bytes: manifest.bytes,
            times: (manifest.oldest_micros, manifest.newest_micros),
            written_at_micros: manifest.written_at_micros,
            is_removed: manifest.removed_from_database,
            sum: manifest.sum,
            checksum,
        })
    }
}

#[cfg(test)]
mod tests {
    use jiff::civil::date;

    use super::*;

    const FILE_2: ArchiveFile = ArchiveFile { table: ArchivedTable::Log, start: date(2026, 8, 1), part: 2 };

    #[test]
    fn names_consist_of_table_and_date() {
        assert_eq!(FILE_2.path().as_ref(), "table=rate_limit_audit_logs/start=2026-08-01/part-2.parquet");
        assert_eq!(ArchiveFile::of_manifest(&FILE_2.manifest_path()), Some(FILE_2));
        for other in [
            "table=rate_limit_audit_logs/start=2026-08-01/part-2.parquet",
            "table=rate_limit_audit_logs/start=2026-08-01/part-+2.json",
            "table=rate_limit_audit_logs/start=2026-8-1/part-2.json",
            "table=rate_limit_audit_logs/start=../part-2.json",
            "table=users/start=2026-08-01/part-2.json",
            "table=rate_limit_audit_logs/start=2026-08-01/part-2.json/x",
            "part-2.json",
        ] {
            assert_eq!(ArchiveFile::of_manifest(&Path::from(other)), None, "{other}");
        }
    }

    #[test]
    fn manifest_is_read_back() {
        let totals = Totals { rows: 3, sum: 7, checksum: u128::MAX - 1, times: Some((5, 9)) };
        let written = ArchivedFile::new(FILE_2, "db".to_owned(), &totals, 100, 42);
        assert_eq!(ArchivedFile::from_json(FILE_2, &written.to_json()), Ok(written.clone()));
        assert!(written.has(&totals));
        let other = ArchiveFile { part: 3, ..FILE_2 };
        assert!(ArchivedFile::from_json(other, &written.to_json()).is_err());
        assert!(ArchivedFile::from_json(FILE_2, b"{}").is_err());
    }
}

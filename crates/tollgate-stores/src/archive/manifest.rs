//! The journal of the archive: one object next to each file, written after the file was verified.

use jiff::civil::Date;
use object_store::path::Path;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::batch::Totals;
use super::error::ArchiveError;
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
    /// Different in every run, so that no process overwrites the file of another one.
    pub id: FileId,
}

/// The database and the run that wrote a file: `1f0c9a3e5b7d2468`.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(u64);

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
    id: String,
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

impl FileId {
    /// The id of the files of one run. `random` is different in every run.
    pub(crate) fn new(database: &str, random: u32) -> Self {
        FileId(of_database(database) | u64::from(random))
    }

    /// Whether a file was written by a run on this database.
    pub(crate) fn is_of(self, database: &str) -> bool {
        self.0 & !u64::from(u32::MAX) == of_database(database)
    }

    fn parse(text: &str) -> Option<Self> {
        u64::from_str_radix(text, 16).ok().map(FileId)
    }
}

/// The upper half of an id.
fn of_database(database: &str) -> u64 {
    xxh3_64(database.as_bytes()) & !u64::from(u32::MAX)
}

impl std::fmt::Display for FileId {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{:016x}", self.0)
    }
}

impl ArchiveFile {
    /// The place of the rows. It consists of names of tables, a date and numbers, never of recorded text.
    pub(crate) fn path(&self) -> Path {
        self.path_with(FILE)
    }

    pub(crate) fn manifest_path(&self) -> Path {
        self.path_with(MANIFEST)
    }

    fn path_with(&self, ending: &str) -> Path {
        let folder = Self::folder(self.table, Some(self.start));
        Path::from(format!("{folder}/part-{}-{}{ending}", self.part, self.id))
    }

    /// The folder of a table, or of one of its periods.
    pub(crate) fn folder(table: ArchivedTable, start: Option<Date>) -> String {
        let start = start.map(|start| format!("/start={start}")).unwrap_or_default();
        format!("table={}{start}", table.as_str())
    }

    /// The file at a path; `None` if it is something else.
    pub(crate) fn of_path(path: &Path) -> Option<Self> {
        Self::parse(path, FILE)
    }

    /// The file of a manifest; `None` if it is the path of something else.
    pub(crate) fn of_manifest(path: &Path) -> Option<Self> {
        Self::parse(path, MANIFEST)
    }

    fn parse(path: &Path, ending: &str) -> Option<Self> {
        let mut parts = path.as_ref().split('/');
        let table = ArchivedTable::parse(parts.next()?.strip_prefix("table=")?)?;
        let start = parts.next()?.strip_prefix("start=")?.parse().ok()?;
        let name = parts.next()?.strip_prefix("part-")?.strip_suffix(ending)?;
        let (part, id) = name.split_once('-')?;
        let file = ArchiveFile { table, start, part: part.parse().ok()?, id: FileId::parse(id)? };
        (parts.next().is_none() && file.path_with(ending) == *path).then_some(file)
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

    /// Reports how these rows differ from those that were archived.
    pub(crate) fn compare(&self, totals: &Totals) -> Result<(), ArchiveError> {
        if self.has(totals) {
            return Ok(());
        }
        let (expected, found) = (self.rows, totals.rows);
        Err(ArchiveError::damaged(
            &self.file,
            if expected == found {
                "its checksum is not that of the archived rows".to_owned()
            } else {
                format!("it has {found} rows instead of {expected}")
            },
        ))
    }

    pub(crate) fn to_json(&self) -> Vec<u8> {
        let manifest = Manifest {
            version: VERSION,
            table: self.file.table.as_str().to_owned(),
            start: self.file.start.to_string(),
            part: self.file.part,
            id: self.file.id.to_string(),
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
        let described = (&*manifest.table, &*manifest.start, manifest.part, &*manifest.id);
        if described != (file.table.as_str(), &*file.start.to_string(), file.part, &*file.id.to_string()) {
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

    const FILE_2: ArchiveFile =
        ArchiveFile { table: ArchivedTable::Log, start: date(2026, 8, 1), part: 2, id: FileId(0xabc) };

    #[test]
    fn names_consist_of_table_date_and_numbers() {
        let path = "table=rate_limit_audit_logs/start=2026-08-01/part-2-0000000000000abc.parquet";
        assert_eq!(FILE_2.path().as_ref(), path);
        assert_eq!(ArchiveFile::of_path(&FILE_2.path()), Some(FILE_2));
        assert_eq!(ArchiveFile::of_manifest(&FILE_2.manifest_path()), Some(FILE_2));
        for other in [
            path,
            "table=rate_limit_audit_logs/start=2026-08-01/part-2.json",
            "table=rate_limit_audit_logs/start=2026-08-01/part-2-abc.json",
            "table=rate_limit_audit_logs/start=2026-08-01/part-+2-0000000000000abc.json",
            "table=rate_limit_audit_logs/start=2026-8-1/part-2-0000000000000abc.json",
            "table=rate_limit_audit_logs/start=../part-2-0000000000000abc.json",
            "table=users/start=2026-08-01/part-2-0000000000000abc.json",
            "table=rate_limit_audit_logs/start=2026-08-01/part-2-0000000000000abc.json/x",
            "part-2-0000000000000abc.json",
        ] {
            assert_eq!(ArchiveFile::of_manifest(&Path::from(other)), None, "{other}");
        }
    }

    #[test]
    fn id_names_its_database() {
        let id = FileId::new("db", 7);
        assert!(id.is_of("db") && !id.is_of("other"));
        assert_ne!(id, FileId::new("db", 8));
        assert_eq!(FileId::parse(&id.to_string()), Some(id));
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

//! `[records]`: the decision log, window records and rollups.

use std::path::Path;
use std::time::Duration;

use tollgate::config::TableReader;
use tollgate::config::values::{boolean, integer, sample_rate, text};
use tollgate::rules::SampleRate;
use tollgate_stores::redis::Secret;
use tollgate_stores::sql::records::Retention;
use tollgate_stores::sql::{Engine, SqlSettings};

use super::archive::{self, ArchiveSection};
use super::database;
use super::parquet::{self, ParquetSection};
use super::read::duration;

/// The default database in the data directory.
const FILE: &str = "records.db";
/// The URL that switches the database off.
pub(super) const NO_DATABASE: &str = "none";
const MEGABYTE: u64 = 1_000_000;
const BYTES_MAX: u64 = 1_000_000 * MEGABYTE;
const DAY: Duration = Duration::from_hours(24);
/// One writer, the maintenance and a few queries.
const CONNECTIONS: u32 = 6;

/// What is recorded, where and for how long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordSettings {
    /// Whether anything is recorded.
    pub enabled: bool,
    /// Whether records are stored in a database.
    pub has_database: bool,
    /// The database; by default a SQLite file in the data directory.
    pub url: Option<Secret>,
    /// The share of admitted requests in the decision log. Refused ones are all in it.
    pub sample_allowed: SampleRate,
    /// The interval between writes of the decision log to the disk.
    pub fsync_every: Duration,
    /// The size of the spool at most, in bytes.
    pub spool_bytes_max: u64,
    /// The size of a SQLite database at most, in bytes.
    pub sqlite_bytes_max: u64,
    /// How long the decision log is kept.
    pub log_retention: Duration,
    /// How long window records are kept.
    pub window_retention: Duration,
    /// How long rollups are kept.
    pub rollup_retention: Duration,
    /// Where records go after that, if anywhere.
    pub archive: Option<ArchiveSection>,
    /// Where records are written as Parquet files, if anywhere.
    pub parquet: Option<ParquetSection>,
}

impl Default for RecordSettings {
    fn default() -> Self {
        RecordSettings {
            enabled: true,
            has_database: true,
            url: None,
            sample_allowed: SampleRate::new(0.01).unwrap_or(SampleRate::NONE),
            fsync_every: Duration::from_millis(200),
            spool_bytes_max: 1_000 * MEGABYTE,
            sqlite_bytes_max: 1_000 * MEGABYTE,
            log_retention: DAY * 90,
            window_retention: DAY * 30,
            rollup_retention: DAY * 90,
            archive: None,
            parquet: None,
        }
    }
}

impl RecordSettings {
    /// How the database is reached; `None` without a database.
    pub fn sql(&self, data_dir: &Path) -> Option<SqlSettings> {
        if !self.has_database {
            return None;
        }
        // Invalid URLs are rejected when the settings are read.
        let written = self.url.as_ref().and_then(|url| SqlSettings::from_url(&url.0).ok());
        let mut sql = written.unwrap_or_else(|| SqlSettings::sqlite(data_dir.join(FILE)));
        sql.connections_max = CONNECTIONS;
        Some(sql)
    }

    /// How long rows stay in the database.
    pub fn retention(&self) -> Retention {
        Retention {
            log: self.log_retention,
            windows: self.window_retention,
            rollups: self.rollup_retention,
            sqlite_bytes_max: Some(self.sqlite_bytes_max),
            is_archived: self.archive.is_some(),
        }
    }

    /// Whether the database is a local file, whose size is bounded.
    pub fn is_local(&self, data_dir: &Path) -> bool {
        self.sql(data_dir).is_some_and(|sql| sql.engine() == Engine::Sqlite)
    }
}

/// Reads the section.
pub(super) fn read(fields: &mut TableReader<'_, '_>) -> RecordSettings {
    let default = RecordSettings::default();
    let retention = duration(DAY, DAY * 3_650);
    let interval = duration(Duration::from_millis(10), Duration::from_secs(10));
    let has_database = fields.peek("url", text).as_deref() != Some(NO_DATABASE);
    if !has_database {
        fields.skip("url");
    }
    let settings = RecordSettings {
        enabled: fields.read("enabled", boolean).unwrap_or(default.enabled),
        has_database,
        url: if has_database { fields.read("url", database::url) } else { None },
        sample_allowed: fields.read("sample_allowed", sample_rate).unwrap_or(default.sample_allowed),
        fsync_every: fields.read("fsync_every", interval).unwrap_or(default.fsync_every),
        spool_bytes_max: (fields.read("spool_bytes_max", integer(20 * MEGABYTE..=BYTES_MAX)))
            .unwrap_or(default.spool_bytes_max),
        sqlite_bytes_max: (fields.read("sqlite_bytes_max", integer(10 * MEGABYTE..=BYTES_MAX)))
            .unwrap_or(default.sqlite_bytes_max),
        log_retention: fields.read("log_retention", &retention).unwrap_or(default.log_retention),
        window_retention: fields.read("window_retention", &retention).unwrap_or(default.window_retention),
        rollup_retention: fields.read("rollup_retention", &retention).unwrap_or(default.rollup_retention),
        archive: fields.table("archive", archive::read).flatten(),
        parquet: parquet::read(fields),
    };
    check_places(fields, &settings);
    settings
}

fn check_places(fields: &mut TableReader<'_, '_>, settings: &RecordSettings) {
    if !settings.has_database && !fields.has("parquet") {
        let reason = "\"none\" needs records.parquet; to record nothing, set records.enabled = false";
        fields.report("url", reason.to_owned());
    }
    if !settings.has_database && fields.has("archive") {
        let reason = "needs a records database, and records.url is \"none\"; remove this section";
        fields.report("archive", reason.to_owned());
    }
    if let (Some(parquet), Some(archive)) = (&settings.parquet, &settings.archive)
        && parquet.files.place == archive.archive.place
    {
        let reason = "must be another folder or prefix than records.archive.url";
        fields.report("parquet", reason.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::super::Settings;
    use super::*;

    fn read(keys: &str) -> RecordSettings {
        let text = format!("[records]\n{keys}");
        Settings::from_toml(&text).unwrap_or_else(|error| panic!("{error}\n{text}")).records
    }

    #[test]
    fn every_key_is_used() {
        assert_eq!(read(""), RecordSettings::default());
        let settings = read(
            "enabled = false\nurl = \"mysql://u:canary@db/r\"\nsample_allowed = \"all\"\nfsync_every = \"1s\"\n\
             spool_bytes_max = 20000000\nsqlite_bytes_max = 10000000\nlog_retention = \"2d\"\n\
             window_retention = \"3d\"\nrollup_retention = \"4d\"",
        );
        let expected = RecordSettings {
            enabled: false,
            url: Some(Secret("mysql://u:canary@db/r".to_owned())),
            sample_allowed: SampleRate::ALL,
            fsync_every: Duration::from_secs(1),
            spool_bytes_max: 20_000_000,
            sqlite_bytes_max: 10_000_000,
            log_retention: DAY * 2,
            window_retention: DAY * 3,
            rollup_retention: DAY * 4,
            archive: None,
            parquet: None,
            has_database: true,
        };
        assert_eq!(settings, expected);
        assert!(!format!("{settings:?}").contains("canary"));
    }

    #[test]
    fn records_are_in_the_data_directory_by_default() {
        let data_dir = Path::new("/data");
        assert_eq!(read("").sql(data_dir).unwrap().describe(), "SQLite database /data/records.db");
        assert!(read("").is_local(data_dir));
        assert!(!read("url = \"postgres://u@db/r\"").is_local(data_dir));
    }

    #[test]
    fn sample_is_a_share_or_all() {
        for invalid in ["2", "-0.1", "\"some\"", "true"] {
            let error = Settings::from_toml(&format!("[records]\nsample_allowed = {invalid}")).unwrap_err();
            let error = format!("{error} {error:?}");
            assert!(error.contains("must be a number from 0 to 1 or"), "{error}");
        }
    }
}

//! `[records.parquet]`: records as Parquet files that nodes write themselves.

use std::path::PathBuf;
use std::time::Duration;

use tollgate::config::TableReader;
use tollgate::config::values::{boolean, integer, text};
use tollgate_stores::archive::ArchiveSettings;

use super::archive::{place, read_store};
use super::read::duration;

const EVERY: Duration = Duration::from_mins(5);
const BUFFER_BYTES_MAX: u64 = 256_000_000;

/// Where a node writes Parquet files, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParquetSection {
    /// How the files are reached.
    pub files: ArchiveSettings,
    /// The interval between writes.
    pub every: Duration,
    /// Rows are written earlier when this many bytes of them wait in the spool.
    pub buffer_bytes_max: u64,
    /// Whether small files of an hour are combined.
    pub compact: bool,
    /// The file that the secret access key was read from, if any.
    pub secret_file: Option<PathBuf>,
}

impl ParquetSection {
    fn new(files: ArchiveSettings, secret_file: Option<PathBuf>) -> Self {
        ParquetSection { files, every: EVERY, buffer_bytes_max: BUFFER_BYTES_MAX, compact: true, secret_file }
    }
}

/// Reads `parquet = "URL"` or the section.
pub(super) fn read(records: &mut TableReader<'_, '_>) -> Option<ParquetSection> {
    if records.peek("parquet", text).is_some() {
        let place = records.read("parquet", place)?;
        return Some(ParquetSection::new(ArchiveSettings::new(place), None));
    }
    records.table("parquet", read_section).flatten()
}

fn read_section(fields: &mut TableReader<'_, '_>) -> Option<ParquetSection> {
    let every = fields.read("every", duration(Duration::from_secs(1), Duration::from_hours(1)));
    let bytes = fields.read("buffer_bytes_max", integer(16_000_000..=1_000_000_000));
    let compact = fields.read("compact", boolean);
    let (files, secret_file) = read_store(fields)?;
    let default = ParquetSection::new(files, secret_file);
    Some(ParquetSection {
        every: every.unwrap_or(default.every),
        buffer_bytes_max: bytes.unwrap_or(default.buffer_bytes_max),
        compact: compact.unwrap_or(default.compact),
        ..default
    })
}

#[cfg(test)]
mod tests {
    use tollgate_stores::archive::ArchivePlace;

    use super::super::{RecordSettings, Settings};
    use super::*;

    fn read(records: &str) -> Result<RecordSettings, String> {
        let text = format!("[records]\n{records}");
        Ok(Settings::from_toml(&text).map_err(|error| format!("{error} {error:?}"))?.records)
    }

    #[test]
    fn every_key_is_used() {
        let files = ArchiveSettings::new(ArchivePlace::Folder("/var/records".into()));
        let short = read("parquet = \"file:///var/records\"").unwrap().parquet.unwrap();
        assert_eq!(short, ParquetSection::new(files, None));
        assert_eq!(read("[records.parquet]\nurl = \"file:///var/records\"").unwrap().parquet, Some(short));
        let section = read(
            "url = \"none\"\n[records.parquet]\nurl = \"s3://records/eu\"\nendpoint = \"https://minio:9000\"\n\
             access_key_id = \"id\"\nsecret_access_key = \"canary\"\nevery = \"1m\"\n\
             buffer_bytes_max = 16000000\ncompact = false",
        )
        .unwrap();
        let parquet = section.parquet.clone().unwrap();
        assert!(!section.has_database && !parquet.compact);
        assert_eq!(parquet.files.place.to_string(), "s3://records/eu");
        assert_eq!((parquet.every, parquet.buffer_bytes_max), (Duration::from_mins(1), 16_000_000));
        assert!(parquet.files.credentials.is_some() && !format!("{section:?}").contains("canary"));
    }

    #[test]
    fn mistakes_are_explained() {
        let folder = "url = \"file:///a\"";
        for (records, reason) in [
            ("parquet = \"/var/records\"", "records.parquet: must be file:///FOLDER or s3://BUCKET/PREFIX"),
            ("parquet = 5", "records.parquet"),
            ("[records.parquet]\nevery = \"1m\"", "records.parquet.url: is missing"),
            (&format!("[records.parquet]\n{folder}\nkeep = \"1d\""), "keep"),
            (&format!("[records.parquet]\n{folder}\nevery = \"0s\""), "records.parquet.every"),
            (&format!("[records.parquet]\n{folder}\nbuffer_bytes_max = 1"), "buffer_bytes_max"),
            ("url = \"none\"", "records.url: \\\"none\\\" needs records.parquet"),
            (
                &format!("url = \"none\"\nparquet = \"file:///b\"\n[records.archive]\n{folder}"),
                "records.archive: needs a records database",
            ),
            (&format!("parquet = \"file:///a\"\n[records.archive]\n{folder}"), "another folder or prefix"),
        ] {
            let error = read(records).unwrap_err();
            assert!(
                error.contains(reason) || error.contains(&reason.replace('\\', "")),
                "{records}: {error}"
            );
        }
    }
}

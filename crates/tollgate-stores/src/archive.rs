//! Records of decisions beyond their retention: Parquet files in a folder or an S3-compatible store.
//!
//! `table=NAME/start=DATE/part-N-ID.parquet` has rows of one table and period. Its manifest, `part-N-ID.json`, is written after the
//! file was read back and found complete; a file without a manifest does not count. The database side is in `sql/records/archive`.

pub(crate) mod batch;
mod error;
mod manifest;
pub(crate) mod reader;
mod search;
mod service;
mod settings;
pub(crate) mod store;
mod table;
pub(crate) mod writer;

pub(crate) use self::error::root_cause;
pub use self::error::{ArchiveError, ArchiveSettingsError};
pub use self::manifest::{ArchiveFile, ArchivedFile, FileId};
pub use self::search::ArchiveSearch;
pub use self::service::Archive;
pub use self::settings::{ArchiveCredentials, ArchivePlace, ArchiveSettings};
pub use self::table::ArchivedTable;
pub(crate) use self::table::{Column, ColumnKind};

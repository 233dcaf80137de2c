//! Records of decisions as Parquet files that nodes write without a database.
//!
//! `table=NAME/date=DATE/hour=HOUR/SOURCE-FIRST-END.parquet` has the rows of one table and hour among the rows `FIRST..END` of a
//! source. The name follows from the rows, so a range whose outcome is unknown is written again under the same names: nothing is
//! missing and nothing is twice. A file that covers others is their compaction.

mod columns;
mod compact;
mod encoder;
mod file_name;
mod files;

pub use self::compact::Compaction;
pub use self::encoder::{EncodeError, EncodedFile, RangeEncoder};
pub use self::file_name::Partition;
pub use self::files::RecordFiles;

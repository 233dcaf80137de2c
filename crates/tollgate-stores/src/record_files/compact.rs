//! Combines the small files that one node wrote in an hour.
//!
//! The combined file covers the range of rows of its inputs. It is read back and compared before they are deleted. A run that
//! ended in between left a file that covers others: the next run verifies it and deletes them.

use std::cmp::Reverse;

use bytes::Bytes;
use object_store::ObjectMeta;
use object_store::path::Path;

use super::file_name::{Partition, RecordFile};
use crate::archive::ArchiveError;
use crate::archive::batch::{BATCH_ROWS, Batch, Totals};
use crate::archive::reader::FileReader;
use crate::archive::store::{ArchiveStore, Upload};
use crate::archive::writer::FileWriter;
use crate::sql::records::{RowRange, SourceId};

/// Files of this size are not combined: queries gain nothing, and they would be encoded twice.
const SMALL_BYTES: u64 = 16 << 20;
/// Inputs of one file.
const INPUT_BYTES_MAX: u64 = 128 << 20;

/// What a run did.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Compaction {
    /// Files written.
    pub written: u64,
    /// Files deleted, because another one has their rows.
    pub deleted: u64,
}

/// A file and its size.
type Sized = (RecordFile, u64);

/// Combines files of a store.
pub(super) struct FileCompactor<'a>(pub(super) &'a ArchiveStore);

impl FileCompactor<'_> {
    pub(super) async fn compact(
        &self,
        partition: Partition,
        source: SourceId,
        stored_to: u64,
    ) -> Result<Compaction, ArchiveError> {
        let mut done = Compaction::default();
        let objects = self.0.objects(Some(&partition.to_string())).await?;
        let sized = |object: &ObjectMeta| Some((RecordFile::of_path(&object.location)?, object.size));
        let files = objects.iter().filter_map(sized);
        let own = |(file, _): &Sized| file.range.source == source && file.range.end <= stored_to;
        let (covering, rest) = split_covered(files.filter(own).collect());
        for (file, covered) in covering {
            self.open(&file).await?.verify().await?;
            self.delete(&covered, &mut done).await?;
        }
        for inputs in group_small(&rest) {
            self.combine(&inputs).await?;
            done.written += 1;
            self.delete(&inputs, &mut done).await?;
        }
        Ok(done)
    }

    async fn delete(&self, files: &[RecordFile], done: &mut Compaction) -> Result<(), ArchiveError> {
        for file in files {
            self.0.delete(&file.path()).await?;
            done.deleted += 1;
        }
        Ok(())
    }

    async fn open(&self, file: &RecordFile) -> Result<FileReader, ArchiveError> {
        FileReader::open(self.0, file.partition.table(), file.path()).await
    }

    /// Writes the rows of several files to one, and reads it back.
    async fn combine(&self, inputs: &[RecordFile]) -> Result<(), ArchiveError> {
        let Some(file) = covering(inputs) else { return Ok(()) };
        let path = file.path();
        let mut upload = self.0.create(&path).await?;
        let totals = match self.copy_rows(&path, inputs, &mut upload).await {
            Ok(totals) => totals,
            Err(error) => {
                upload.abort().await;
                return Err(error);
            }
        };
        upload.finish().await?;
        let checked = self.check(&file, &totals).await;
        if let Err(ArchiveError::Damaged { .. }) = checked {
            self.0.delete(&path).await?;
        }
        checked
    }

    async fn check(&self, file: &RecordFile, totals: &Totals) -> Result<(), ArchiveError> {
        let written = self.open(file).await?;
        written.expect(totals)?;
        written.verify().await
    }

    async fn copy_rows(
        &self,
        path: &Path,
        inputs: &[RecordFile],
        upload: &mut Upload,
    ) -> Result<Totals, ArchiveError> {
        let Some(table) = inputs.first().map(|input| input.partition.table()) else {
            return Ok(Totals::default());
        };
        let failed = |cause| ArchiveError::damaged(path, cause);
        let mut writer = FileWriter::new(table).map_err(|cause| failed(cause.to_string()))?;
        let (mut pending, mut totals) = (Batch::new(table), Totals::default());
        for input in inputs {
            let reader = self.open(input).await?;
            let mut of_input = Totals::default();
            for group in reader.groups() {
                let rows = reader.read(group).await?;
                of_input.add(&rows.totals());
                pending.append(rows);
                while pending.rows() >= BATCH_ROWS {
                    let rest = pending.split_off(BATCH_ROWS);
                    let bytes;
                    (writer, bytes) = encode(path, writer, pending).await?;
                    upload.write(bytes).await?;
                    pending = rest;
                }
            }
            reader.expect(&of_input)?;
            totals.add(&of_input);
        }
        if pending.rows() > 0 {
            let bytes;
            (writer, bytes) = encode(path, writer, pending).await?;
            upload.write(bytes).await?;
        }
        upload.write(writer.finish_with(&totals).map_err(|cause| failed(cause.to_string()))?).await?;
        Ok(totals)
    }
}

/// Encodes a row group on a thread that may block.
async fn encode(
    path: &Path,
    mut writer: FileWriter,
    mut batch: Batch,
) -> Result<(FileWriter, Bytes), ArchiveError> {
    let encoding = tokio::task::spawn_blocking(move || {
        let bytes = writer.write(&mut batch)?;
        Ok::<_, parquet::errors::ParquetError>((writer, bytes))
    });
    let encoded = encoding.await.map_err(|error| ArchiveError::damaged(path, error))?;
    encoded.map_err(|error| ArchiveError::damaged(path, error))
}

/// The file that has the rows of several.
fn covering(inputs: &[RecordFile]) -> Option<RecordFile> {
    let RecordFile { partition, range } = *inputs.first()?;
    let first = inputs.iter().map(|input| input.range.first).min()?;
    let end = inputs.iter().map(|input| input.range.end).max()?;
    Some(RecordFile { partition, range: RowRange { first, end, ..range } })
}

/// Files of one source that cover others, with those; and the files that no other one covers, in the order of their rows.
fn split_covered(mut files: Vec<Sized>) -> (Vec<(RecordFile, Vec<RecordFile>)>, Vec<Sized>) {
    files.sort_unstable_by_key(|(file, _)| (file.range.first, Reverse(file.range.end)));
    let (mut covering, mut rest): (Vec<(RecordFile, Vec<RecordFile>)>, Vec<Sized>) = Default::default();
    for (file, size) in files {
        match rest.last() {
            Some((before, _)) if before.covers(&file) => match covering.last_mut() {
                Some((by, covered)) if by == before => covered.push(file),
                _ => covering.push((*before, vec![file])),
            },
            _ => rest.push((file, size)),
        }
    }
    (covering, rest)
}

/// Groups of at least two small files that follow each other.
fn group_small(files: &[Sized]) -> Vec<Vec<RecordFile>> {
    let mut groups: Vec<Vec<RecordFile>> = vec![Vec::new()];
    let mut bytes = 0;
    for (file, size) in files {
        let is_small = *size < SMALL_BYTES;
        if !is_small || bytes + size > INPUT_BYTES_MAX {
            groups.push(Vec::new());
            bytes = 0;
        }
        if let Some(group) = groups.last_mut().filter(|_| is_small) {
            group.push(*file);
            bytes += size;
        }
    }
    groups.retain(|group| group.len() > 1);
    groups
}

#[cfg(test)]
mod tests;

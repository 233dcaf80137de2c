//! What of a spool is in Parquet files: a small file beside its segments.
//!
//! The spool is local, so the position can be. Before rows are written, their range is noted; after a crash the same rows are
//! written to the same names again.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tollgate_stores::record_files::Partition;
use tollgate_stores::sql::records::{RowRange, SourceId};
use tracing::warn;

const FILE: &str = "position.json";
/// Sources without files to compact are forgotten beyond this number. A removed segment may appear again after a power loss.
const SOURCES_MAX: usize = 100;

/// The position, shared by the task that writes files and the one that compacts them. Its methods block on the disk.
#[derive(Debug)]
pub(super) struct Positions {
    path: PathBuf,
    state: Mutex<State>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct State {
    /// Oldest first.
    sources: Vec<SourceState>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct SourceState {
    source: String,
    /// Rows before this number are in files.
    stored_to: u64,
    /// Rows before this number may be in files too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    writing_to: Option<u64>,
    /// Hours with files that were not compacted since.
    #[serde(default)]
    hours: Vec<String>,
}

/// An hour with files of a source.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct HourOfSource {
    pub(super) partition: Partition,
    pub(super) source: SourceId,
    pub(super) stored_to: u64,
}

impl Positions {
    /// Reads the position from the folder of a spool.
    pub(super) fn open(spool: &Path) -> io::Result<Self> {
        let path = spool.join(FILE);
        let state = match fs::read(&path) {
            Ok(json) => serde_json::from_slice(&json).unwrap_or_else(|error| {
                warn!(%error, file = %path.display(), "the file is damaged: records that wait in the spool may be written twice");
                State::default()
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => State::default(),
            Err(error) => return Err(error),
        };
        Ok(Positions { path, state: Mutex::new(state) })
    }

    /// Up to where rows of a source are stored, and up to where a write was begun and not finished.
    pub(super) fn of(&self, source: SourceId) -> (u64, Option<u64>) {
        let state = self.state.lock();
        state.find(source).map_or((0, None), |found| (found.stored_to, found.writing_to))
    }

    /// Notes that a range is about to be written.
    pub(super) fn begin(&self, range: &RowRange) -> io::Result<()> {
        self.change(|state| state.find_or_add(range.source).writing_to = Some(range.end))
    }

    /// Notes that a range is stored, in files of these hours.
    pub(super) fn finish(&self, range: &RowRange, hours: impl Iterator<Item = Partition>) -> io::Result<()> {
        self.change(|state| {
            let source = state.find_or_add(range.source);
            source.stored_to = source.stored_to.max(range.end);
            source.writing_to = None;
            for hour in hours.map(|hour| hour.to_string()) {
                if !source.hours.contains(&hour) {
                    source.hours.push(hour);
                }
            }
            state.forget_oldest();
        })
    }

    /// Hours that were over at a time and have files that were not compacted.
    pub(super) fn hours_before(&self, micros: u64) -> Vec<HourOfSource> {
        let state = self.state.lock();
        let of_source = |found: &SourceState| {
            let (source, stored_to) = (SourceId::from_hex(&found.source)?, found.stored_to);
            let hours = found.hours.iter().filter_map(|hour| Partition::parse(hour));
            let over = hours.filter(|hour| hour.end_micros() <= micros);
            Some(over.map(|partition| HourOfSource { partition, source, stored_to }).collect::<Vec<_>>())
        };
        state.sources.iter().filter_map(of_source).flatten().collect()
    }

    /// Notes that an hour was compacted, unless files were added meanwhile.
    pub(super) fn compacted(&self, hour: &HourOfSource) -> io::Result<()> {
        self.change(|state| {
            let source = state.find_or_add(hour.source);
            if source.stored_to == hour.stored_to && source.writing_to.is_none() {
                let name = hour.partition.to_string();
                source.hours.retain(|other| *other != name);
            }
        })
    }

    /// Changes the file, then the memory.
    fn change(&self, change: impl FnOnce(&mut State)) -> io::Result<()> {
        let mut state = self.state.lock();
        let mut changed = state.clone();
        change(&mut changed);
        self.write(&serde_json::to_vec(&changed)?)?;
        *state = changed;
        Ok(())
    }

    fn write(&self, json: &[u8]) -> io::Result<()> {
        let draft = self.path.with_extension("tmp");
        let mut file = OpenOptions::new().mode(0o600).create(true).truncate(true).write(true).open(&draft)?;
        file.write_all(json)?;
        file.sync_all()?;
        fs::rename(&draft, &self.path)?;
        self.path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
    }
}

impl State {
    fn find(&self, source: SourceId) -> Option<&SourceState> {
        let name = source.to_hex();
        self.sources.iter().find(|found| found.source == name)
    }

    fn find_or_add(&mut self, source: SourceId) -> &mut SourceState {
        let name = source.to_hex();
        let place = self.sources.iter().position(|found| found.source == name).unwrap_or_else(|| {
            let state = SourceState { source: name, stored_to: 0, writing_to: None, hours: Vec::new() };
            self.sources.push(state);
            self.sources.len() - 1
        });
        &mut self.sources[place]
    }

    fn forget_oldest(&mut self) {
        let mut surplus = self.sources.len().saturating_sub(SOURCES_MAX);
        self.sources.retain(|source| {
            let is_kept = surplus == 0 || !source.hours.is_empty();
            surplus -= usize::from(!is_kept);
            is_kept
        });
    }
}

#[cfg(test)]
mod tests {
    use tollgate_stores::archive::ArchivedTable;

    use super::*;

    const HOUR: u64 = 3_600_000_000;

    fn range(source: u8, first: u64, end: u64) -> RowRange {
        RowRange { source: SourceId([source; 16]), first, end }
    }

    fn hour(number: u64) -> Partition {
        Partition::of(ArchivedTable::Log, number * HOUR).unwrap()
    }

    #[test]
    fn position_survives_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let positions = Positions::open(folder.path()).unwrap();
        let (one, two) = (range(1, 0, 50), range(1, 50, 80));
        positions.begin(&one).unwrap();
        assert_eq!(Positions::open(folder.path()).unwrap().of(one.source), (0, Some(50)));
        positions.finish(&one, [hour(7), hour(8)].into_iter()).unwrap();
        positions.begin(&two).unwrap();
        let again = Positions::open(folder.path()).unwrap();
        assert_eq!(again.of(one.source), (50, Some(80)));
        assert_eq!(again.of(SourceId([2; 16])), (0, None));
        assert_eq!(again.hours_before(8 * HOUR).len(), 1);
        assert_eq!(again.hours_before(9 * HOUR).len(), 2);
    }

    #[test]
    fn hour_with_new_files_is_compacted_again() {
        let folder = tempfile::tempdir().unwrap();
        let positions = Positions::open(folder.path()).unwrap();
        positions.finish(&range(1, 0, 50), [hour(7)].into_iter()).unwrap();
        let found = positions.hours_before(8 * HOUR)[0];
        positions.finish(&range(1, 50, 60), [hour(7)].into_iter()).unwrap();
        positions.compacted(&found).unwrap();
        let found = positions.hours_before(8 * HOUR)[0];
        assert_eq!(found.stored_to, 60);
        positions.compacted(&found).unwrap();
        assert!(positions.hours_before(8 * HOUR).is_empty());
    }

    #[test]
    fn old_sources_are_forgotten_unless_they_have_work() {
        let folder = tempfile::tempdir().unwrap();
        let positions = Positions::open(folder.path()).unwrap();
        for source in 0..150 {
            let hours = (source == 3).then(|| hour(1));
            positions.finish(&range(source, 0, 5), hours.into_iter()).unwrap();
        }
        let is_known = |source| positions.of(SourceId([source; 16])).0 == 5;
        assert!(is_known(3) && is_known(149) && is_known(60) && !is_known(4));
    }
}

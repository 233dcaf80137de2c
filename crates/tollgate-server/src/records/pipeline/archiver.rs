//! Archives records beyond their retention while the service runs.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tollgate_stores::archive::{Archive, ArchiveError, ArchiveSettings};
use tollgate_stores::sql::records::{ArchiveRun, ArchiveStep, Retention};
use tracing::info;

use super::RecordStats;
use crate::records::drain::RecordsConnection;
use crate::runtime::clock::Clock;

/// Pause before the first run, in which the maintenance creates partitions.
const FIRST_AFTER: Duration = Duration::from_secs(5);
/// Pause between runs. Months and weeks expire rarely.
const EVERY: Duration = Duration::from_hours(1);
/// Pause after a failure, or while another node archives.
const RETRY_AFTER: Duration = Duration::from_mins(5);

/// What the archiver works with.
pub(super) struct Archiver {
    pub(super) settings: ArchiveSettings,
    pub(super) retention: Retention,
    pub(super) node: String,
    pub(super) clock: Clock,
    pub(super) stats: Arc<RecordStats>,
}

impl Archiver {
    /// Runs until the service stops. A run that is interrupted is continued after the next start.
    pub(super) async fn run(self, target: Arc<RecordsConnection>, mut stop: watch::Receiver<bool>) {
        let mut pause = FIRST_AFTER;
        loop {
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                _ = stop.wait_for(|stop| *stop) => return,
            }
            tokio::select! {
                next = self.run_once(&target) => pause = next,
                _ = stop.wait_for(|stop| *stop) => return,
            }
        }
    }

    /// Returns the pause until the next run.
    async fn run_once(&self, target: &RecordsConnection) -> Duration {
        // The drains report an unreachable database.
        let Some(database) = target.get() else { return FIRST_AFTER };
        let mut report = |step: &ArchiveStep| {
            if let ArchiveStep::Removed(file) = step {
                info!(file = %file.file, rows = file.rows, bytes = file.bytes, "records were archived");
            }
        };
        let now = self.clock.now().as_micros();
        let done = match Archive::open(&self.settings) {
            Ok(archive) => database.archive(&archive, &self.node, now, &self.retention, &mut report).await,
            Err(error) => Err(error),
        };
        let pause = if done.is_ok() { EVERY } else { RETRY_AFTER };
        self.note(done);
        pause
    }

    fn note(&self, done: Result<ArchiveRun, ArchiveError>) {
        if !matches!(done, Err(ArchiveError::Busy { .. })) {
            self.stats.note_archive(done);
        }
    }
}

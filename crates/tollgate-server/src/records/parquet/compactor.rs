//! Combines the small files of this node after their hour.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tollgate_stores::archive::ArchiveError;
use tracing::{info, warn};

use super::ParquetTarget;
use super::position::{HourOfSource, Positions};
use super::stats::ParquetStats;
use crate::runtime::clock::Clock;

/// Pause between looks for hours that are over.
const EVERY: Duration = Duration::from_mins(1);
/// Pause after a failure.
const RETRY_AFTER: Duration = Duration::from_mins(10);
/// Rows of an hour arrive for this long after it, beside the interval of writes.
const LATE: Duration = Duration::from_mins(5);

/// What the compactor works with.
pub(super) struct Compactor {
    pub(super) target: Arc<ParquetTarget>,
    pub(super) positions: Arc<Positions>,
    pub(super) stats: Arc<ParquetStats>,
    pub(super) clock: Clock,
}

impl Compactor {
    /// Runs until the service stops. A run that is interrupted is continued after the next start.
    pub(super) async fn run(self, mut stop: watch::Receiver<bool>) {
        let (mut pause, mut is_failing) = (EVERY, false);
        loop {
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                _ = stop.wait_for(|stop| *stop) => return,
            }
            let done = tokio::select! {
                done = self.run_once() => done,
                _ = stop.wait_for(|stop| *stop) => return,
            };
            pause = if done.is_ok() { EVERY } else { RETRY_AFTER };
            let was_failing = std::mem::replace(&mut is_failing, done.is_err());
            if let Err(error) = done {
                self.stats.failures.add(1);
                if !was_failing {
                    warn!(%error, "Parquet files cannot be compacted; they stay as they are");
                }
            }
        }
    }

    /// Compacts the hours that are over.
    pub(super) async fn run_once(&self) -> Result<(), ArchiveError> {
        let late = u64::try_from((self.target.every + LATE).as_micros()).unwrap_or(u64::MAX);
        let before = self.clock.now().as_micros().saturating_sub(late);
        for hour in self.positions.hours_before(before) {
            self.compact(hour).await?;
        }
        Ok(())
    }

    async fn compact(&self, hour: HourOfSource) -> Result<(), ArchiveError> {
        let files = self.target.files()?;
        let done = files.compact(hour.partition, hour.source, hour.stored_to).await?;
        self.stats.compacted.add(done.deleted);
        if done.deleted > 0 {
            info!(hour = %hour.partition, files = done.deleted, into = done.written, "Parquet files were compacted");
        }
        let positions = Arc::clone(&self.positions);
        let noted = tokio::task::spawn_blocking(move || positions.compacted(&hour)).await;
        if let Ok(Err(error)) = noted {
            warn!(%error, "cannot note a compaction; it is repeated");
        }
        Ok(())
    }
}

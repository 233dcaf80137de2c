//! Moves records from memory to the database: flusher, drains and maintenance.
//!
//! Nothing here can fail a request or the start of the service. While the spool cannot be opened, records are dropped and counted;
//! while the database is unreachable, they wait in the spool.

mod archiver;
mod stats;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tollgate_stores::archive::ArchiveSettings;
use tollgate_stores::sql::SqlSettings;
use tollgate_stores::sql::records::Retention;
use tracing::{info, warn};

use self::archiver::Archiver;
pub(crate) use self::stats::{RecordStats, SPOOLS};
use super::drain::{AggregateSink, DecisionSink, Drain, DrainSettings, Quarantine, RecordsConnection};
use super::flusher::{Flusher, FlusherHandle};
use super::recorder::Recorder;
use super::row_buffer::ROWS_MAX;
use super::spool::{self, Recovery, SpoolReader, SpoolWriter};
use crate::config::settings::Settings;
use crate::runtime::clock::Clock;

/// The folder of the spools in the data directory.
const FOLDER: &str = "records";
const LOG: &str = "log";
const AGGREGATES: &str = "aggregates";
const QUARANTINE: &str = "quarantine.ndjson";
/// Pause between attempts to open the spools.
const OPEN_EVERY: Duration = Duration::from_secs(10);
/// Pause between runs of the maintenance.
const MAINTAIN_EVERY: Duration = Duration::from_mins(1);

/// What the pipeline works with.
pub(crate) struct PipelineParts {
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) stats: Arc<RecordStats>,
    pub(crate) clock: Clock,
    folder: PathBuf,
    spool_bytes_max: u64,
    fsync_every: Duration,
    sql: SqlSettings,
    retention: Retention,
    archive: Option<ArchiveSettings>,
    node: String,
}

/// The running pipeline.
pub(crate) struct Pipeline {
    task: JoinHandle<()>,
    stop: watch::Sender<bool>,
}

impl PipelineParts {
    pub(crate) fn new(
        recorder: Arc<Recorder>,
        stats: Arc<RecordStats>,
        clock: Clock,
        settings: &Settings,
    ) -> Self {
        let records = &settings.records;
        PipelineParts {
            node: recorder.node.id.to_string(),
            recorder,
            stats,
            clock,
            folder: settings.data_dir.join(FOLDER),
            spool_bytes_max: records.spool_bytes_max,
            fsync_every: records.fsync_every,
            sql: records.sql(&settings.data_dir),
            retention: records.retention(),
            archive: records.archive.as_ref().map(|section| section.archive.clone()),
        }
    }
}

impl Pipeline {
    pub(crate) fn start(parts: PipelineParts) -> Self {
        let (stop, stopped) = watch::channel(false);
        Pipeline { task: tokio::spawn(run(parts, stopped)), stop }
    }

    /// Writes what was offered so far, and stores as much of it as the database takes in a few seconds. The rest stays in the
    /// spool.
    pub(crate) async fn stop(self) {
        self.stop.send_replace(true);
        // A panic there was printed already.
        let _ = self.task.await;
    }
}

async fn run(parts: PipelineParts, mut stop: watch::Receiver<bool>) {
    let Some((flusher, readers)) = open(&parts, &mut stop).await else { return };
    let target = Arc::new(RecordsConnection::new(parts.sql.clone()));
    let quarantine = Arc::new(Quarantine::new(parts.folder.join(QUARANTINE)));
    let [log, aggregates] = readers;
    let log = Drain::new(DecisionSink(Arc::clone(&target)), log, DrainSettings::LOG, Arc::clone(&quarantine));
    let aggregates =
        Drain::new(AggregateSink(Arc::clone(&target)), aggregates, DrainSettings::AGGREGATES, quarantine);
    parts.stats.set_drains([Arc::clone(log.stats()), Arc::clone(aggregates.stats())]);
    let drains = [tokio::spawn(log.run()), tokio::spawn(aggregates.run())];
    let archiver = parts.archive.clone().map(|settings| {
        let (retention, node, clock) = (parts.retention, parts.node.clone(), parts.clock);
        let archiver = Archiver { settings, retention, node, clock, stats: Arc::clone(&parts.stats) };
        tokio::spawn(archiver.run(Arc::clone(&target), stop.clone()))
    });
    maintain(&parts, &target, &mut stop).await;
    if let Some(archiver) = archiver {
        let _ = archiver.await;
    }
    let _ = tokio::task::spawn_blocking(move || flusher.stop()).await;
    for drain in drains {
        let _ = drain.await;
    }
    if let Some(database) = target.get() {
        database.close().await;
    }
}

/// Opens the spools and starts the flusher; retries until the service stops.
async fn open(
    parts: &PipelineParts,
    stop: &mut watch::Receiver<bool>,
) -> Option<(FlusherHandle, [SpoolReader; 2])> {
    let mut has_failed = false;
    loop {
        match open_once(parts).await {
            Ok(opened) => {
                if has_failed {
                    info!(folder = %parts.folder.display(), "decisions are recorded again");
                }
                return Some(opened);
            }
            Err(error) => {
                if !has_failed {
                    warn!(%error, folder = %parts.folder.display(), "cannot open the spool; decisions are not recorded");
                }
                has_failed = true;
            }
        }
        tokio::select! {
            () = tokio::time::sleep(OPEN_EVERY) => {}
            _ = stop.wait_for(|stop| *stop) => return None,
        }
    }
}

async fn open_once(parts: &PipelineParts) -> io::Result<(FlusherHandle, [SpoolReader; 2])> {
    let (folder, bytes_max) = (parts.folder.clone(), parts.spool_bytes_max);
    let opening = tokio::task::spawn_blocking(move || {
        let log = spool::open(&folder.join(LOG), bytes_max)?;
        Ok::<_, io::Error>((log, spool::open(&folder.join(AGGREGATES), bytes_max)?))
    });
    let (log, aggregates) = opening.await.map_err(io::Error::other)??;
    note_recovery(parts, &log.2, &aggregates.2);
    let stats = &parts.stats;
    stats.set_spools([&log.0, &aggregates.0].map(|spool: &SpoolWriter| Arc::clone(spool.stats())));
    let (recorder, flush_stats) = (Arc::clone(&parts.recorder), Arc::clone(&stats.flushed));
    let flusher = Flusher::new(recorder, flush_stats, log.0, aggregates.0, parts.fsync_every, parts.clock);
    Ok((flusher.start()?, [log.1, aggregates.1]))
}

/// After a crash, what was in memory is lost: at most what fits there.
fn note_recovery(parts: &PipelineParts, log: &Recovery, aggregates: &Recovery) {
    if log.was_clean && aggregates.was_clean {
        return;
    }
    parts.stats.set_lost_in_crash(u64::from(ROWS_MAX));
    let torn_bytes = log.torn_bytes + aggregates.torn_bytes;
    let rows_max = ROWS_MAX;
    warn!(
        rows_max,
        torn_bytes,
        "the last process did not shut down in order: decisions of its last moments are not recorded"
    );
}

/// Maintains the database every minute until the service stops.
async fn maintain(parts: &PipelineParts, target: &RecordsConnection, stop: &mut watch::Receiver<bool>) {
    let mut pause = Duration::from_secs(1);
    loop {
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            _ = stop.wait_for(|stop| *stop) => return,
        }
        pause = MAINTAIN_EVERY;
        // The drains report an unreachable database.
        let Some(database) = target.get() else { continue };
        let now = parts.clock.now().as_micros();
        tokio::select! {
            done = database.maintain(&parts.node, now, &parts.retention) => parts.stats.note_maintenance(done),
            _ = stop.wait_for(|stop| *stop) => return,
        }
    }
}

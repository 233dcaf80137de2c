//! Moves records from memory to the database and to Parquet files: flusher, drains and maintenance.
//!
//! Each target has spools of its own, so that an outage of one does not stop the other. Nothing here can fail a request or the
//! start of the service. While a spool cannot be opened, records are dropped and counted; while a target is unreachable, they wait
//! in its spools.

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
pub(crate) use self::stats::{RecordStats, SpoolName};
use super::drain::{AggregateSink, DecisionSink, Drain, DrainSettings, Quarantine, RecordsConnection};
use super::flusher::{Flusher, FlusherHandle};
use super::parquet::{ParquetDrain, ParquetTarget, RowKind};
use super::recorder::Recorder;
use super::row_buffer::ROWS_MAX;
use super::spool::{self, Recovery, SpoolReader, SpoolStats, SpoolWriter};
use crate::config::settings::{ParquetSection, Settings};
use crate::runtime::clock::Clock;

/// The folder of the spools in the data directory.
const FOLDER: &str = "records";
/// The folders of the spools, and their names in metrics: the decision log, windows and rollups.
const DATABASE_SPOOLS: [SpoolName; 2] = ["log", "aggregates"];
const PARQUET_SPOOLS: [SpoolName; 2] = ["parquet_log", "parquet_aggregates"];
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
    /// Absent without a database.
    sql: Option<SqlSettings>,
    parquet: Option<ParquetSection>,
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
            parquet: records.parquet.clone(),
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
    let Some(opened) = open(&parts, &mut stop).await else { return };
    let Opened { flusher, database, parquet, quarantine } = opened;
    parts.stats.set_parquet(parquet.iter().map(|(name, drain)| (*name, Arc::clone(drain.stats()))).collect());
    let mut drains: Vec<_> = parquet.into_iter().flat_map(|(_, drain)| drain.start(stop.clone())).collect();
    let target = parts.sql.clone().map(|sql| Arc::new(RecordsConnection::new(sql)));
    if let (Some(target), Some(readers)) = (&target, database) {
        drains.extend(start_database(&parts, target, readers, quarantine));
        maintain_and_archive(&parts, target, &mut stop).await;
    }
    let _ = stop.wait_for(|stop| *stop).await;
    let _ = tokio::task::spawn_blocking(move || flusher.stop()).await;
    for drain in drains {
        let _ = drain.await;
    }
    if let Some(database) = target.as_ref().and_then(|target| target.get()) {
        database.close().await;
    }
}

fn start_database(
    parts: &PipelineParts,
    target: &Arc<RecordsConnection>,
    readers: [SpoolReader; 2],
    quarantine: Arc<Quarantine>,
) -> [JoinHandle<()>; 2] {
    let [log, aggregates] = readers;
    let log = Drain::new(DecisionSink(Arc::clone(target)), log, DrainSettings::LOG, Arc::clone(&quarantine));
    let aggregates =
        Drain::new(AggregateSink(Arc::clone(target)), aggregates, DrainSettings::AGGREGATES, quarantine);
    let stats = [Arc::clone(log.stats()), Arc::clone(aggregates.stats())];
    parts.stats.set_drains(DATABASE_SPOOLS.into_iter().zip(stats).collect());
    [tokio::spawn(log.run()), tokio::spawn(aggregates.run())]
}

/// Until the service stops.
async fn maintain_and_archive(
    parts: &PipelineParts,
    target: &Arc<RecordsConnection>,
    stop: &mut watch::Receiver<bool>,
) {
    let archiver = parts.archive.clone().map(|settings| {
        let (retention, node, clock) = (parts.retention, parts.node.clone(), parts.clock);
        let archiver = Archiver { settings, retention, node, clock, stats: Arc::clone(&parts.stats) };
        tokio::spawn(archiver.run(Arc::clone(target), stop.clone()))
    });
    maintain(parts, target, stop).await;
    if let Some(archiver) = archiver {
        let _ = archiver.await;
    }
}

/// The flusher, and what drains its spools.
struct Opened {
    flusher: FlusherHandle,
    database: Option<[SpoolReader; 2]>,
    parquet: Vec<(SpoolName, ParquetDrain)>,
    quarantine: Arc<Quarantine>,
}

/// Opens the spools and starts the flusher; retries until the service stops.
async fn open(parts: &PipelineParts, stop: &mut watch::Receiver<bool>) -> Option<Opened> {
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

async fn open_once(parts: &PipelineParts) -> io::Result<Opened> {
    let mut writers = Writers::default();
    let database = open_target(parts, DATABASE_SPOOLS, parts.sql.is_some()).await?;
    let database = database.map(|spools| writers.add(DATABASE_SPOOLS, spools));
    let quarantine = Arc::new(Quarantine::new(parts.folder.join(QUARANTINE)));
    let mut parquet = Vec::new();
    let spools = open_target(parts, PARQUET_SPOOLS, parts.parquet.is_some()).await?;
    if let (Some(section), Some(spools)) = (&parts.parquet, spools) {
        let target = Arc::new(ParquetTarget::new(section, parts.spool_bytes_max));
        let readers = writers.add(PARQUET_SPOOLS, spools);
        let named = PARQUET_SPOOLS.into_iter().zip([RowKind::Log, RowKind::Aggregates]);
        for ((name, kind), reader) in named.zip(readers) {
            let (target, folder) = (Arc::clone(&target), parts.folder.join(name));
            let drain =
                ParquetDrain::open(target, &folder, reader, kind, Arc::clone(&quarantine), parts.clock)?;
            parquet.push((name, drain));
        }
    }
    note_recovery(parts, &writers.recoveries);
    parts.stats.set_spools(writers.stats);
    let (recorder, flush_stats) = (Arc::clone(&parts.recorder), Arc::clone(&parts.stats.flushed));
    let Writers { log, aggregates, .. } = writers;
    let flusher = Flusher::new(recorder, flush_stats, log, aggregates, parts.fsync_every, parts.clock);
    Ok(Opened { flusher: flusher.start()?, database, parquet, quarantine })
}

type OpenSpool = (SpoolWriter, SpoolReader, Recovery);

/// Opens the spools of a target. Rows of one that is no longer configured stay where they are.
async fn open_target(
    parts: &PipelineParts,
    names: [SpoolName; 2],
    is_configured: bool,
) -> io::Result<Option<[OpenSpool; 2]>> {
    let folders = names.map(|name| parts.folder.join(name));
    if !is_configured {
        for folder in folders.iter().filter(|folder| spool::has_rows(folder)) {
            let folder = folder.display();
            warn!(%folder, "records wait for a target that is not configured; restore the setting or delete the folder");
        }
        return Ok(None);
    }
    let bytes_max = parts.spool_bytes_max;
    let opening = tokio::task::spawn_blocking(move || {
        let [log, aggregates] = folders;
        Ok::<_, io::Error>([spool::open(&log, bytes_max)?, spool::open(&aggregates, bytes_max)?])
    });
    opening.await.map_err(io::Error::other)?.map(Some)
}

/// What the flusher appends to.
#[derive(Default)]
struct Writers {
    log: Vec<SpoolWriter>,
    aggregates: Vec<SpoolWriter>,
    stats: Vec<(SpoolName, Arc<SpoolStats>)>,
    recoveries: Vec<Recovery>,
}

impl Writers {
    fn add(&mut self, names: [SpoolName; 2], spools: [OpenSpool; 2]) -> [SpoolReader; 2] {
        let [(log, log_reader, log_recovery), (aggregates, aggregates_reader, aggregates_recovery)] = spools;
        let stats = [Arc::clone(log.stats()), Arc::clone(aggregates.stats())];
        self.stats.extend(names.into_iter().zip(stats));
        self.recoveries.extend([log_recovery, aggregates_recovery]);
        self.log.push(log);
        self.aggregates.push(aggregates);
        [log_reader, aggregates_reader]
    }
}

/// After a crash, what was in memory is lost: at most what fits there.
fn note_recovery(parts: &PipelineParts, recoveries: &[Recovery]) {
    if recoveries.iter().all(|recovery| recovery.was_clean) {
        return;
    }
    parts.stats.set_lost_in_crash(u64::from(ROWS_MAX));
    let torn_bytes: u64 = recoveries.iter().map(|recovery| recovery.torn_bytes).sum();
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

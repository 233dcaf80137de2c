//! The state of the stores of this node: counters, database and records.

use std::sync::Arc;

use serde::Serialize;
use tollgate_stores::counters::StoreState;
use utoipa::ToSchema;

use crate::app::App;
use crate::config::sync::SyncState;
use crate::records::pipeline::{RecordStats, SpoolName};
use crate::records::recorder::Recorder;
use crate::records::spool::SpoolStats;

/// The state of the stores of the node that answers.
#[derive(Serialize, ToSchema)]
pub(crate) struct StoresView {
    counters: CounterStoreView,
    database: DatabaseView,
    records: RecordStoreView,
}

/// Where requests are counted.
#[derive(Serialize, ToSchema)]
pub(crate) struct CounterStoreView {
    /// `memory` or `redis`.
    kind: &'static str,
    /// `up`, `impaired`, `unreachable` (this node counts its share of each limit) or `rejected` (all checks fail).
    state: &'static str,
    /// What is wrong; absent if nothing is.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// The database of rules, quotas, keys and blocks.
#[derive(Serialize, ToSchema)]
pub(crate) struct DatabaseView {
    /// `up`, `impaired` (a part of its content is not in force) or `unreachable`.
    state: &'static str,
    /// What is wrong, and which configuration is in force meanwhile; absent if nothing is.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// The records of decisions, on their way to their database and to Parquet files.
#[derive(Serialize, ToSchema)]
pub(crate) struct RecordStoreView {
    /// `up`, `starting` (the spool is not open), `waiting` (rows wait in the spool for the database or for the store of Parquet
    /// files) or `dropping` (the spool cannot be written).
    state: &'static str,
    /// What is wrong; absent if nothing is.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// Rows in the spool.
    backlog_rows: u64,
    /// Rows, and requests in counts, that this process has dropped.
    dropped_rows: u64,
    /// Rows that were set aside because they could not be stored.
    quarantined_rows: u64,
}

impl StoresView {
    pub(super) fn of(app: &App) -> Self {
        let records = app.limiter().records();
        StoresView {
            counters: CounterStoreView::new(app.counters().redis().is_some(), &app.counters().state()),
            database: DatabaseView::new(&app.config_sync().state()),
            records: RecordStoreView::new(&records.record_stats, records.recorder.as_deref()),
        }
    }
}

impl CounterStoreView {
    fn new(is_redis: bool, store: &StoreState) -> Self {
        let state = match store {
            StoreState::Up => "up",
            StoreState::Impaired(_) => "impaired",
            StoreState::Unreachable(_) => "unreachable",
            StoreState::Rejected(_) => "rejected",
        };
        CounterStoreView { kind: if is_redis { "redis" } else { "memory" }, state, error: store.problem() }
    }
}

impl DatabaseView {
    fn new(sync: &SyncState) -> Self {
        let error = sync.problem();
        let state = match (&sync.database_error, &error) {
            (Some(_), _) => "unreachable",
            (None, Some(_)) => "impaired",
            (None, None) => "up",
        };
        DatabaseView { state, error }
    }
}

impl RecordStoreView {
    fn new(pipeline: &RecordStats, recorder: Option<&Recorder>) -> Self {
        let spools = pipeline.spools();
        let state = if spools.is_empty() {
            "starting"
        } else if spools.iter().any(|(_, spool)| spool.last_error.lock().is_some()) {
            "dropping"
        } else if pipeline.targets().any(|target| target.last_error().is_some()) {
            "waiting"
        } else {
            "up"
        };
        let in_memory =
            recorder.map_or(0, |recorder| recorder.dropped().iter().map(|(_, count)| count).sum());
        let dropped = |(_, spool): &(SpoolName, Arc<SpoolStats>)| {
            spool.rows_dropped_full.get() + spool.rows_dropped_disk.get() + spool.rows_damaged.get()
        };
        let in_spools: u64 = spools.iter().map(dropped).sum();
        RecordStoreView {
            state,
            error: pipeline.problem(),
            backlog_rows: spools.iter().map(|(_, spool)| spool.backlog_rows.get()).sum(),
            dropped_rows: in_spools.saturating_add(in_memory),
            quarantined_rows: pipeline.targets().map(|target| target.rows_quarantined.get()).sum(),
        }
    }
}

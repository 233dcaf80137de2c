//! Reads the records: decisions, windows, rollups, usage of one client, and rankings.
//!
//! Every query is one read-only transaction with the statement timeout of its connection, on a pool of its own: a slow query
//! cannot keep the drain from storing.

mod columns;
mod counts;
mod decisions;
mod filter;
mod ranking;
mod rollups;
pub(super) mod statement;
mod trend;
mod usage;
mod windows;

pub use self::counts::RequestCounts;
pub use self::decisions::{DecisionCursor, StoredDecision};
pub use self::filter::{Order, RecordFilter, TenantFilter};
pub use self::ranking::{RankedBy, RankedClient, RankedName, Violation};
pub use self::rollups::{RollupCursor, StoredRollup};
pub use self::trend::TrendPoint;
pub use self::usage::{RouteUsage, Usage, UsagePeriod};
pub use self::windows::{StoredWindow, WindowCursor};

use super::granularity::Granularity;
use crate::sql::engine::{Durability, Pool};
use crate::sql::error::DatabaseError;
use crate::sql::settings::SqlSettings;

/// Maximum number of rows in one result: a page of 1000, plus one that shows whether there is a next page.
pub const RECORD_COUNT_MAX: u32 = 1001;

/// Reads the database of records. Clones share the pool.
#[derive(Clone, Debug)]
pub struct RecordReader {
    pool: Pool,
}

#[expect(
    clippy::missing_errors_doc,
    reason = "each fails when the database is unreachable or rejects the query"
)]
impl RecordReader {
    /// Connects. Does not touch the schema.
    pub async fn connect(settings: &SqlSettings) -> Result<Self, DatabaseError> {
        Ok(RecordReader { pool: Pool::connect(settings, Durability::Checkpoint).await? })
    }

    /// Closes all connections, waiting for those in use.
    pub async fn close(&self) {
        self.pool.close().await;
    }

    /// A page of the decision log.
    pub async fn decisions(
        &self,
        filter: &RecordFilter,
        order: Order,
        after: Option<&DecisionCursor>,
        count_max: u32,
    ) -> Result<Vec<StoredDecision>, DatabaseError> {
        decisions::page(&self.pool, filter, order, after, count_max.min(RECORD_COUNT_MAX)).await
    }

    /// A page of the window records.
    pub async fn windows(
        &self,
        filter: &RecordFilter,
        order: Order,
        after: Option<&WindowCursor>,
        count_max: u32,
    ) -> Result<Vec<StoredWindow>, DatabaseError> {
        windows::page(&self.pool, filter, order, after, count_max.min(RECORD_COUNT_MAX)).await
    }

    /// A page of the rollups of one granularity, with all servers of a region added up.
    pub async fn rollups(
        &self,
        granularity: Granularity,
        filter: &RecordFilter,
        order: Order,
        after: Option<&RollupCursor>,
        count_max: u32,
    ) -> Result<Vec<StoredRollup>, DatabaseError> {
        rollups::page(&self.pool, granularity, filter, order, after, count_max.min(RECORD_COUNT_MAX)).await
    }

    /// The requests of one client, from its window records: by period, and on its busiest routes.
    pub async fn usage(&self, filter: &RecordFilter, per: Granularity) -> Result<Usage, DatabaseError> {
        usage::of_client(&self.pool, filter, per).await
    }

    /// The requests that match a filter, from the window records.
    pub async fn request_counts(&self, filter: &RecordFilter) -> Result<RequestCounts, DatabaseError> {
        usage::total(&self.pool, filter).await
    }

    /// The clients with the most requests, or the most refused ones.
    pub async fn top_clients(
        &self,
        filter: &RecordFilter,
        by: RankedBy,
        count_max: u32,
    ) -> Result<Vec<RankedClient>, DatabaseError> {
        ranking::clients(&self.pool, filter, by, count_max.min(RECORD_COUNT_MAX)).await
    }

    /// The routes with the most requests, or the most refused ones.
    pub async fn top_routes(
        &self,
        filter: &RecordFilter,
        by: RankedBy,
        count_max: u32,
    ) -> Result<Vec<RankedName>, DatabaseError> {
        ranking::routes(&self.pool, filter, by, count_max.min(RECORD_COUNT_MAX)).await
    }

    /// The rules that decided most requests, or refused most.
    pub async fn top_rules(
        &self,
        filter: &RecordFilter,
        by: RankedBy,
        count_max: u32,
    ) -> Result<Vec<RankedName>, DatabaseError> {
        ranking::rules(&self.pool, filter, by, count_max.min(RECORD_COUNT_MAX)).await
    }

    /// The clients that were refused, with the route, most refused first.
    pub async fn violations(
        &self,
        filter: &RecordFilter,
        count_max: u32,
    ) -> Result<Vec<Violation>, DatabaseError> {
        ranking::violations(&self.pool, filter, count_max.min(RECORD_COUNT_MAX)).await
    }

    /// Requests and latencies by period, oldest first. Periods without requests are missing.
    pub async fn trend(
        &self,
        filter: &RecordFilter,
        per: Granularity,
    ) -> Result<Vec<TrendPoint>, DatabaseError> {
        trend::by_period(&self.pool, filter, per).await
    }
}

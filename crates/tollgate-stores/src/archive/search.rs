//! Searches the archived decision log.
//!
//! Files and row groups outside of the time are skipped, and for one client also row groups whose Bloom filter does not have it.

use std::ops::Range;

use super::batch::Batch;
use super::error::ArchiveError;
use super::reader::FileReader;
use super::service::Archive;
use super::table::ArchivedTable;
use crate::sql::records::{DecisionKind, DecisionRow, RecordFilter, StoredDecision, TenantFilter};

/// What a search found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ArchiveSearch {
    /// The newest decisions that match, newest first.
    pub decisions: Vec<StoredDecision>,
    /// Row groups that were read.
    pub groups_read: u64,
    /// Row groups that could be skipped.
    pub groups_skipped: u64,
}

impl Archive {
    /// The newest archived decisions that match a filter, newest first.
    ///
    /// # Errors
    /// When the archive is unreachable, or a file is damaged.
    pub async fn search(
        &self,
        filter: &RecordFilter,
        count_max: usize,
    ) -> Result<ArchiveSearch, ArchiveError> {
        let times = wanted_times(filter);
        let mut files = self.store.list(Some(ArchivedTable::Log), None).await?;
        files.retain(|file| file.times.1 >= times.start && file.times.0 < times.end);
        files.sort_by_key(|file| std::cmp::Reverse(file.times.1));
        let mut found = ArchiveSearch::default();
        for file in files {
            if found.is_full(count_max, file.times.1) {
                break;
            }
            let reader = FileReader::open(&self.store, ArchivedTable::Log, file.file.path()).await?;
            found.search_file(&reader, filter, &times, count_max).await?;
        }
        Ok(found)
    }
}

/// The time of the filter; the end of time if it has none.
fn wanted_times(filter: &RecordFilter) -> Range<u64> {
    filter.from_micros.unwrap_or(0)..filter.to_micros.unwrap_or(u64::MAX)
}

impl ArchiveSearch {
    /// Whether nothing up to a time can be among the newest any more.
    fn is_full(&self, count_max: usize, newest: u64) -> bool {
        self.decisions.len() >= count_max
            && self.decisions.last().is_some_and(|oldest| oldest.row.at_micros > newest)
    }

    async fn search_file(
        &mut self,
        reader: &FileReader,
        filter: &RecordFilter,
        times: &Range<u64>,
        count_max: usize,
    ) -> Result<(), ArchiveError> {
        // Row groups follow each other in time.
        for group in reader.groups().rev() {
            let (oldest, newest) = reader.times(group).map_or((0, u64::MAX), |(oldest, newest)| {
                (u64::try_from(oldest).unwrap_or(0), u64::try_from(newest).unwrap_or(u64::MAX))
            });
            let is_wanted = newest >= times.start && oldest < times.end && !self.is_full(count_max, newest);
            let has_client = match &filter.identifier {
                Some(identifier) if is_wanted => reader.may_contain(group, identifier).await?,
                _ => true,
            };
            if !is_wanted || !has_client {
                self.groups_skipped += 1;
                continue;
            }
            self.groups_read += 1;
            let batch = reader.read(group).await?;
            let subject = &batch.columns[ArchivedTable::Log.keys().subject];
            let is_client = |row: &usize| {
                filter.identifier.is_none() || subject.text(*row) == filter.identifier.as_deref()
            };
            let matching = (0..batch.rows()).filter(is_client).filter_map(|row| decision(&batch, row));
            self.decisions.extend(matching.filter(|found| matches(filter, times, found)));
            self.decisions.sort_by_key(|found| std::cmp::Reverse((found.row.at_micros, found.id)));
            self.decisions.dedup_by_key(|found| (found.row.at_micros, found.id));
            self.decisions.truncate(count_max);
        }
        Ok(())
    }
}

fn matches(filter: &RecordFilter, times: &Range<u64>, found: &StoredDecision) -> bool {
    let row = &found.row;
    let is = |wanted: &Option<String>, found: Option<&str>| wanted.is_none() || wanted.as_deref() == found;
    times.contains(&row.at_micros)
        && is(&filter.identifier, Some(&row.identifier))
        && is(&filter.user, row.user_id.as_deref())
        && is(&filter.route, Some(&row.endpoint))
        && is(&filter.rule, row.rule.as_deref())
        && filter.decision.is_none_or(|wanted| wanted == row.decision)
        && match &filter.tenant {
            TenantFilter::Any => true,
            TenantFilter::Without => row.tenant.is_none(),
            TenantFilter::Named(name) => row.tenant.as_deref() == Some(name),
        }
}

/// A row as the database returns it; `None` if it is not one of tollgate.
fn decision(batch: &Batch, row: usize) -> Option<StoredDecision> {
    let place = |name: &str| batch.table.columns().iter().position(|column| column.name == name);
    let values = |name: &str| place(name).map(|column| &batch.columns[column]);
    let text = |name: &str| values(name)?.text(row).filter(|text| !text.is_empty()).map(str::to_owned);
    let int = |name: &str| values(name)?.int(row);
    let number = |name: &str| int(name).and_then(|int| u64::try_from(int).ok());
    let small = |name: &str| int(name).unwrap_or(0);
    Some(StoredDecision {
        id: number("log_id")?,
        truncated: small("truncated") != 0,
        row: DecisionRow {
            at_micros: number("timestamp")?,
            tenant: text("tenant"),
            identifier: text("identifier")?,
            user_id: text("user_id"),
            api_key_id: text("api_key_id"),
            ip_address: text("ip_address"),
            endpoint: text("endpoint").unwrap_or_default(),
            http_method: text("http_method"),
            rule: text("rule_id"),
            decision: DecisionKind::parse(&text("decision")?)?,
            current_count: number("current_count"),
            limit_value: number("limit_value"),
            remaining: number("remaining"),
            cost: u32::try_from(small("cost")).unwrap_or(0),
            response_status: u16::try_from(small("response_status")).unwrap_or(0),
            retry_after_seconds: number("retry_after_seconds"),
            region: text("region").unwrap_or_default(),
            server_id: text("server_id").unwrap_or_default(),
            latency_micros: number("latency_us").unwrap_or(0),
            request_id: text("request_id"),
            degraded: small("degraded") != 0,
        },
    })
}

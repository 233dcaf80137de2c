//! Requests per route, rule and period: `rate_limit_metrics`. Nodes add to minute rows; maintenance computes the others.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::chunks::chunks;
use super::decisions::maybe_int;
use super::granularity::Granularity;
use super::key_hash::key_hash;
use super::latency::LatencyHistogram;
use super::rows::RollupRow;
use super::text::{Fit, width};
use super::time::{HOUR_MICROS, bind_time, push_rows, time_text};
use crate::sql::engine::{Transaction, to_i64};
use crate::sql::error::DatabaseError;
use crate::sql::migrations::now_micros;
use crate::sql::query::{Query, Value};
use crate::sql::settings::Engine;

const TABLE: &str = "rate_limit_metrics";
/// The columns that are times, which come first.
const TIMES: usize = 2;
const INSERT: &str = "INSERT INTO rate_limit_metrics (timestamp, created_at, key_hash, granularity, tenant, user_id, endpoint, \
                      rule_id, region, server_id, total_requests, allowed_requests, throttled_requests, \
                      blocked_requests, cache_hits, cache_misses, latency_p50_us, latency_p95_us, latency_p99_us, \
                      latency_histogram) VALUES ";
const ADD: &str = " ON CONFLICT (timestamp, key_hash) DO UPDATE SET \
                   total_requests = rate_limit_metrics.total_requests + excluded.total_requests, \
                   allowed_requests = rate_limit_metrics.allowed_requests + excluded.allowed_requests, \
                   throttled_requests = rate_limit_metrics.throttled_requests + excluded.throttled_requests, \
                   blocked_requests = rate_limit_metrics.blocked_requests + excluded.blocked_requests, \
                   cache_hits = rate_limit_metrics.cache_hits + excluded.cache_hits, \
                   cache_misses = rate_limit_metrics.cache_misses + excluded.cache_misses, \
                   latency_p50_us = excluded.latency_p50_us, latency_p95_us = excluded.latency_p95_us, \
                   latency_p99_us = excluded.latency_p99_us, latency_histogram = excluded.latency_histogram";
/// For rows that are computed from scratch.
pub(super) const REPLACE: &str = " ON CONFLICT (timestamp, key_hash) DO UPDATE SET \
                   total_requests = excluded.total_requests, allowed_requests = excluded.allowed_requests, \
                   throttled_requests = excluded.throttled_requests, blocked_requests = excluded.blocked_requests, \
                   cache_hits = excluded.cache_hits, cache_misses = excluded.cache_misses, \
                   latency_p50_us = excluded.latency_p50_us, latency_p95_us = excluded.latency_p95_us, \
                   latency_p99_us = excluded.latency_p99_us, latency_histogram = excluded.latency_histogram";
const MARK_HOURS: &str = "INSERT INTO record_changed_hours (source_id, hour_micros, changes) VALUES ";
const MARK_AGAIN: &str =
    " ON CONFLICT (source_id, hour_micros) DO UPDATE SET changes = record_changed_hours.changes + 1";

/// The primary key.
pub(crate) type Key = (u64, [u8; 16]);

/// Adds deltas to the minute rows of this server, in the order of their keys, and marks their hours as changed.
pub(super) async fn add(
    transaction: &mut Transaction,
    source_id: i64,
    rows: &[RollupRow],
) -> Result<(), DatabaseError> {
    let mut merged = BTreeMap::new();
    merge_into(&mut merged, Granularity::Minute, rows);
    let stored = lock_stored(transaction, &merged).await?;
    for (key, latency) in &stored {
        if let Some(row) = merged.get_mut(key) {
            row.latency.merge(latency);
        }
    }
    let (known, new): (Vec<_>, Vec<_>) = merged.iter().partition(|(key, _)| stored.contains_key(*key));
    write(transaction, Granularity::Minute, &known, ADD).await?;
    // Without an upsert: if another process with the same server id creates the same row, the whole transaction is retried
    // and merges its histogram.
    write(transaction, Granularity::Minute, &new, "").await?;
    mark_hours(transaction, source_id, merged.keys().map(|(start, _)| start - start % HOUR_MICROS)).await
}

/// Adds rows to the sums of their keys: a statement must not change a row twice.
pub(crate) fn merge_into(sums: &mut BTreeMap<Key, RollupRow>, granularity: Granularity, rows: &[RollupRow]) {
    for row in rows {
        let key = (row.start_micros, hash(granularity, row));
        match sums.get_mut(&key) {
            Some(sum) => add_to(sum, row),
            None => drop(sums.insert(key, row.clone())),
        }
    }
}

pub(crate) fn hash(granularity: Granularity, row: &RollupRow) -> [u8; 16] {
    key_hash(&[
        Some(granularity.as_str()),
        row.tenant.as_deref(),
        row.user_id.as_deref(),
        Some(&row.endpoint),
        row.rule.as_deref(),
        Some(&row.region),
        Some(&row.server_id),
    ])
}

fn add_to(sum: &mut RollupRow, row: &RollupRow) {
    sum.allowed = sum.allowed.saturating_add(row.allowed);
    sum.throttled = sum.throttled.saturating_add(row.throttled);
    sum.blocked = sum.blocked.saturating_add(row.blocked);
    sum.cache_hits = sum.cache_hits.saturating_add(row.cache_hits);
    sum.cache_misses = sum.cache_misses.saturating_add(row.cache_misses);
    sum.latency.merge(&row.latency);
}

/// The histograms of the rows that exist, which stay locked until the transaction ends.
async fn lock_stored(
    transaction: &mut Transaction,
    rows: &BTreeMap<Key, RollupRow>,
) -> Result<HashMap<Key, LatencyHistogram>, DatabaseError> {
    let engine = transaction.engine();
    let mut stored = HashMap::new();
    let keys: Vec<&Key> = rows.keys().collect();
    for minute in keys.chunk_by(|(start, _), (next, _)| start == next) {
        for piece in chunks(minute) {
            let Some((start, _)) = piece.first() else { continue };
            let mut select =
                Query::new("SELECT key_hash, latency_histogram FROM rate_limit_metrics WHERE timestamp = ");
            bind_time(&mut select, engine, *start)?;
            select
                .push(" AND key_hash IN (")
                .bind_all(piece.iter().map(|(_, hash)| hash.as_slice()))
                .push(")");
            // SQLite has only one writer.
            select.push(if engine == Engine::Sqlite { "" } else { " ORDER BY key_hash FOR UPDATE" });
            for row in transaction.rows(&select).await? {
                let corrupt = || DatabaseError::Corrupt { what: TABLE };
                let hash = row.bytes(0)?.and_then(|hash| hash.try_into().ok()).ok_or_else(corrupt)?;
                // An unreadable histogram must not stop all further records.
                let latency = row.text(1, TABLE)?.parse().unwrap_or_default();
                stored.insert((*start, hash), latency);
            }
        }
    }
    Ok(stored)
}

/// Writes rows. `on_conflict` is the end of the statement.
pub(super) async fn write(
    transaction: &mut Transaction,
    granularity: Granularity,
    rows: &[(&Key, &RollupRow)],
    on_conflict: &'static str,
) -> Result<(), DatabaseError> {
    let engine = transaction.engine();
    let now = time_text(engine, u64::try_from(now_micros()).unwrap_or(0))?;
    for piece in chunks(rows) {
        let values: Result<Vec<_>, _> =
            piece.iter().map(|(key, row)| values(engine, granularity, key, row, &now)).collect();
        let mut insert = Query::new(INSERT);
        push_rows(&mut insert, engine, TIMES, values?);
        insert.push(on_conflict);
        transaction.execute(&insert).await?;
    }
    Ok(())
}

fn values<'a>(
    engine: Engine,
    granularity: Granularity,
    key: &'a Key,
    row: &'a RollupRow,
    now: &'a str,
) -> Result<Vec<Value<'a>>, DatabaseError> {
    let mut fit = Fit::default();
    let text = |text| Value::Text(Some(text));
    let total = row.allowed.saturating_add(row.throttled).saturating_add(row.blocked);
    Ok(vec![
        time_text(engine, row.start_micros)?.into(),
        now.into(),
        key.1.as_slice().into(),
        granularity.as_str().into(),
        Value::Text(fit.maybe(row.tenant.as_deref(), width::TENANT)),
        Value::Text(fit.maybe(row.user_id.as_deref(), width::USER)),
        text(fit.text(&row.endpoint, width::ENDPOINT)),
        Value::Text(fit.maybe(row.rule.as_deref(), width::RULE)),
        text(fit.text(&row.region, width::REGION)),
        text(fit.text(&row.server_id, width::SERVER)),
        to_i64(total, "total_requests")?.into(),
        to_i64(row.allowed, "allowed_requests")?.into(),
        to_i64(row.throttled, "throttled_requests")?.into(),
        to_i64(row.blocked, "blocked_requests")?.into(),
        to_i64(row.cache_hits, "cache_hits")?.into(),
        to_i64(row.cache_misses, "cache_misses")?.into(),
        maybe_int(row.latency.quantile(0.5), "latency_p50_us")?,
        maybe_int(row.latency.quantile(0.95), "latency_p95_us")?,
        maybe_int(row.latency.quantile(0.99), "latency_p99_us")?,
        row.latency.to_string().into(),
    ])
}

/// Marks hours as changed, so that maintenance computes their rows. Increments a counter, which locks the mark until this
/// transaction ends: maintenance cannot remove it before it sees the new rows.
async fn mark_hours(
    transaction: &mut Transaction,
    source_id: i64,
    hours: impl Iterator<Item = u64>,
) -> Result<(), DatabaseError> {
    let hours: Vec<u64> = hours.collect::<BTreeSet<_>>().into_iter().collect();
    for piece in chunks(&hours) {
        let marks: Result<Vec<_>, DatabaseError> = piece
            .iter()
            .map(|hour| Ok(vec![source_id.into(), to_i64(*hour, "hour")?.into(), 1_i64.into()]))
            .collect();
        let mut mark = Query::new(MARK_HOURS);
        mark.rows(marks?).push(MARK_AGAIN);
        transaction.execute(&mark).await?;
    }
    Ok(())
}

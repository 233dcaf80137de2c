//! Requests per client, route and minute: `rate_limit_records`.

use super::chunks::chunks;
use super::decisions::maybe_int;
use super::key_hash::key_hash;
use super::rows::WindowRow;
use super::text::{Fit, width};
use super::time::{MINUTE_MICROS, push_rows, time_text};
use crate::sql::engine::{Transaction, to_i64};
use crate::sql::error::DatabaseError;
use crate::sql::migrations::now_micros;
use crate::sql::query::{Query, Value};

/// The columns that are times, which come first.
const TIMES: usize = 4;
const INSERT: &str = "INSERT INTO rate_limit_records (window_start, window_end, created_at, updated_at, key_hash, tenant, \
                      identifier, window_type, route_path, request_count, allowed, refused, limit_value) VALUES ";
const ADD: &str = " ON CONFLICT (window_start, key_hash) DO UPDATE SET \
                   request_count = rate_limit_records.request_count + excluded.request_count, \
                   allowed = rate_limit_records.allowed + excluded.allowed, \
                   refused = rate_limit_records.refused + excluded.refused, \
                   limit_value = COALESCE(excluded.limit_value, rate_limit_records.limit_value), \
                   updated_at = excluded.updated_at";

/// The primary key.
type Key = (u64, [u8; 16]);

/// Adds deltas to the windows, in the order of their keys.
pub(super) async fn add(transaction: &mut Transaction, rows: &[WindowRow]) -> Result<(), DatabaseError> {
    let engine = transaction.engine();
    let now = time_text(engine, u64::try_from(now_micros()).unwrap_or(0))?;
    let sums = merge(rows);
    for minute in sums.chunk_by(|one, next| one.key.0 == next.key.0) {
        let Some(WindowSum { key: (start, _), .. }) = minute.first() else { continue };
        let end = time_text(engine, start.saturating_add(MINUTE_MICROS))?;
        let times = [time_text(engine, *start)?, end, now.clone()];
        for piece in chunks(minute) {
            let values: Result<Vec<_>, _> = piece.iter().map(|sum| values(sum, &times)).collect();
            let mut upsert = Query::new(INSERT);
            push_rows(&mut upsert, engine, TIMES, values?);
            upsert.push(ADD);
            transaction.execute(&upsert).await?;
        }
    }
    Ok(())
}

/// The deltas of one window, added up.
struct WindowSum<'a> {
    key: Key,
    /// The first of them.
    row: &'a WindowRow,
    allowed: u64,
    refused: u64,
    limit_value: Option<u64>,
}

impl<'a> WindowSum<'a> {
    fn new(row: &'a WindowRow) -> Self {
        let hash = key_hash_of(row);
        let WindowRow { start_micros, allowed, refused, limit_value, .. } = *row;
        WindowSum { key: (start_micros, hash), row, allowed, refused, limit_value }
    }
}

/// The second column of the primary key.
pub(crate) fn key_hash_of(row: &WindowRow) -> [u8; 16] {
    key_hash(&[row.tenant.as_deref(), Some(&row.identifier), Some(&row.route)])
}

/// One delta per window, by key: a statement must not change a row twice.
fn merge(rows: &[WindowRow]) -> Vec<WindowSum<'_>> {
    let mut sums: Vec<WindowSum<'_>> = rows.iter().map(WindowSum::new).collect();
    // Stable: the last limit of a window stays the last.
    sums.sort_by_key(|sum| sum.key);
    sums.dedup_by(|next, sum| {
        let is_same = next.key == sum.key;
        if is_same {
            sum.allowed = sum.allowed.saturating_add(next.allowed);
            sum.refused = sum.refused.saturating_add(next.refused);
            sum.limit_value = next.limit_value.or(sum.limit_value);
        }
        is_same
    });
    sums
}

fn values<'a>(sum: &'a WindowSum<'a>, times: &'a [String; 3]) -> Result<Vec<Value<'a>>, DatabaseError> {
    let WindowSum { key, row, allowed, refused, limit_value } = sum;
    let [start, end, now] = times.each_ref().map(String::as_str);
    let mut fit = Fit::default();
    let text = |text| Value::Text(Some(text));
    Ok(vec![
        start.into(),
        end.into(),
        now.into(),
        now.into(),
        key.1.as_slice().into(),
        Value::Text(fit.maybe(row.tenant.as_deref(), width::TENANT)),
        text(fit.text(&row.identifier, width::IDENTIFIER)),
        "minute".into(),
        text(fit.text(&row.route, width::ENDPOINT)),
        to_i64(allowed.saturating_add(*refused), "request_count")?.into(),
        to_i64(*allowed, "allowed")?.into(),
        to_i64(*refused, "refused")?.into(),
        maybe_int(*limit_value, "limit_value")?,
    ])
}

//! Requests per client, route and minute: `rate_limit_records`.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use super::decisions::maybe_int;
use super::key_hash::key_hash;
use super::rows::WindowRow;
use super::text::{Fit, width};
use super::time::{MINUTE_MICROS, push_rows, time_text};
use crate::sql::engine::{Transaction, to_i64};
use crate::sql::error::DatabaseError;
use crate::sql::migrations::now_micros;
use crate::sql::query::{Query, Value};
use crate::sql::settings::Engine;

const CHUNK_ROWS: usize = 500;
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
    let merged = merge(rows);
    let rows: Vec<(&Key, &WindowRow)> = merged.iter().collect();
    for piece in rows.chunks(CHUNK_ROWS) {
        let values: Result<Vec<_>, _> =
            piece.iter().map(|(key, row)| values(engine, key, row, &now)).collect();
        let mut upsert = Query::new(INSERT);
        push_rows(&mut upsert, engine, TIMES, values?);
        upsert.push(ADD);
        transaction.execute(&upsert).await?;
    }
    Ok(())
}

/// One delta per window: a statement must not change a row twice.
fn merge(rows: &[WindowRow]) -> BTreeMap<Key, WindowRow> {
    let mut merged = BTreeMap::new();
    for row in rows {
        let hash = key_hash(&[row.tenant.as_deref(), Some(&row.identifier), Some(&row.route)]);
        match merged.entry((row.start_micros, hash)) {
            Entry::Vacant(entry) => {
                entry.insert(row.clone());
            }
            Entry::Occupied(mut entry) => {
                let sum = entry.get_mut();
                sum.allowed = sum.allowed.saturating_add(row.allowed);
                sum.refused = sum.refused.saturating_add(row.refused);
                sum.limit_value = row.limit_value.or(sum.limit_value);
            }
        }
    }
    merged
}

fn values<'a>(
    engine: Engine,
    key: &'a Key,
    row: &'a WindowRow,
    now: &'a str,
) -> Result<Vec<Value<'a>>, DatabaseError> {
    let mut fit = Fit::default();
    let text = |text| Value::Text(Some(text));
    Ok(vec![
        time_text(engine, row.start_micros)?.into(),
        time_text(engine, row.start_micros.saturating_add(MINUTE_MICROS))?.into(),
        now.into(),
        now.into(),
        key.1.as_slice().into(),
        Value::Text(fit.maybe(row.tenant.as_deref(), width::TENANT)),
        text(fit.text(&row.identifier, width::IDENTIFIER)),
        "minute".into(),
        text(fit.text(&row.route, width::ENDPOINT)),
        to_i64(row.allowed.saturating_add(row.refused), "request_count")?.into(),
        to_i64(row.allowed, "allowed")?.into(),
        to_i64(row.refused, "refused")?.into(),
        maybe_int(row.limit_value, "limit_value")?,
    ])
}

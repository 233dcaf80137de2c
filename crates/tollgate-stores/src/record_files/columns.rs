//! Rows as values of the columns in `archive/table.rs`, with the same limits as in SQL.

use std::borrow::Cow;
use std::net::IpAddr;

use parquet::data_type::ByteArray;

use crate::archive::batch::Cell;
use crate::sql::records::text::{Fit, width};
use crate::sql::records::{
    DecisionRow, Granularity, RollupRow, SourceId, WindowRow, rollup_key_hash, window_key_hash,
};

/// Bits of `log_id` for the number of a row; the others are of its source.
const ROW_BITS: u32 = 40;

/// The columns of `rate_limit_audit_logs`.
pub(super) fn decision(source: &SourceId, number: u64, row: DecisionRow) -> [Cell; 23] {
    let mut fit = Fit::default();
    let ip_address = row.ip_address.as_deref().and_then(|text| text.parse::<IpAddr>().ok());
    [
        Cell::Int(Some(log_id(source, number))),
        int(row.at_micros),
        maybe_fitted(&mut fit, row.tenant, width::TENANT),
        fitted(&mut fit, row.identifier, width::IDENTIFIER),
        maybe_fitted(&mut fit, row.user_id, width::USER),
        maybe_fitted(&mut fit, row.api_key_id, width::API_KEY),
        Cell::Bytes(ip_address.map(|address| address.to_string().into_bytes().into())),
        fitted(&mut fit, row.endpoint, width::ENDPOINT),
        maybe_fitted(&mut fit, row.http_method, width::METHOD),
        maybe_fitted(&mut fit, row.rule, width::RULE),
        text(row.decision.as_str()),
        maybe_int(row.current_count),
        maybe_int(row.limit_value),
        maybe_int(row.remaining),
        Cell::Int(Some(row.cost.into())),
        Cell::Int(Some(row.response_status.into())),
        maybe_int(row.retry_after_seconds),
        fitted(&mut fit, row.region, width::REGION),
        fitted(&mut fit, row.server_id, width::SERVER),
        int(row.latency_micros),
        maybe_fitted(&mut fit, row.request_id, width::REQUEST),
        Cell::Int(Some(row.degraded.into())),
        Cell::Int(Some(fit.is_changed.into())),
    ]
}

/// The columns of `rate_limit_records`.
pub(super) fn window(row: WindowRow, written_at: i64) -> [Cell; 13] {
    let (mut fit, key) = (Fit::default(), window_key_hash(&row));
    let end = row.start_micros.saturating_add(Granularity::Minute.micros());
    [
        int(row.start_micros),
        hash(key),
        maybe_fitted(&mut fit, row.tenant, width::TENANT),
        fitted(&mut fit, row.identifier, width::IDENTIFIER),
        text("minute"),
        fitted(&mut fit, row.route, width::ENDPOINT),
        int(row.allowed.saturating_add(row.refused)),
        int(row.allowed),
        int(row.refused),
        maybe_int(row.limit_value),
        int(end),
        Cell::Int(Some(written_at)),
        Cell::Int(Some(written_at)),
    ]
}

/// The columns of `rate_limit_metrics`.
pub(super) fn rollup(row: RollupRow, written_at: i64) -> [Cell; 20] {
    let (mut fit, key) = (Fit::default(), rollup_key_hash(Granularity::Minute, &row));
    let total = row.allowed.saturating_add(row.throttled).saturating_add(row.blocked);
    [
        int(row.start_micros),
        hash(key),
        text(Granularity::Minute.as_str()),
        maybe_fitted(&mut fit, row.tenant, width::TENANT),
        maybe_fitted(&mut fit, row.user_id, width::USER),
        fitted(&mut fit, row.endpoint, width::ENDPOINT),
        maybe_fitted(&mut fit, row.rule, width::RULE),
        fitted(&mut fit, row.region, width::REGION),
        fitted(&mut fit, row.server_id, width::SERVER),
        int(total),
        int(row.allowed),
        int(row.throttled),
        int(row.blocked),
        maybe_int(row.latency.quantile(0.5)),
        maybe_int(row.latency.quantile(0.95)),
        maybe_int(row.latency.quantile(0.99)),
        Cell::Bytes(Some(row.latency.to_string().into_bytes().into())),
        int(row.cache_hits),
        int(row.cache_misses),
        Cell::Int(Some(written_at)),
    ]
}

/// Without a database that numbers sources, 22 bits of the random id distinguish the starts of a node.
fn log_id(source: &SourceId, number: u64) -> i64 {
    let [a, b, c, ..] = source.0;
    let prefix = (i64::from(a) << 16 | i64::from(b) << 8 | i64::from(c)) >> 2;
    let number = i64::try_from(number % (1 << ROW_BITS)).unwrap_or(0);
    prefix << ROW_BITS | number
}

fn int(number: u64) -> Cell {
    maybe_int(Some(number))
}

fn maybe_int(number: Option<u64>) -> Cell {
    Cell::Int(number.map(|number| i64::try_from(number).unwrap_or(i64::MAX)))
}

fn text(text: &'static str) -> Cell {
    Cell::Bytes(Some(ByteArray::from(text)))
}

fn hash(hash: [u8; 16]) -> Cell {
    Cell::Bytes(Some(hash.to_vec().into()))
}

/// A text that fits is not copied.
fn fitted(fit: &mut Fit, text: String, width: usize) -> Cell {
    let changed = match fit.text(&text, width) {
        Cow::Borrowed(kept) if kept.len() == text.len() => None,
        changed => Some(changed.into_owned()),
    };
    Cell::Bytes(Some(changed.unwrap_or(text).into_bytes().into()))
}

fn maybe_fitted(fit: &mut Fit, text: Option<String>, width: usize) -> Cell {
    text.map_or(Cell::Bytes(None), |text| fitted(fit, text, width))
}

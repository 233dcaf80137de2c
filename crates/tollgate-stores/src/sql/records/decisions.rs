//! The decision log: `rate_limit_audit_logs`.

use std::net::IpAddr;

use super::chunks::chunks;
use super::rows::DecisionRow;
use super::text::{Fit, width};
use super::time::time_text;
use crate::sql::engine::{Transaction, to_i64};
use crate::sql::error::{DatabaseError, ValueError};
use crate::sql::query::{Query, Value};
use crate::sql::settings::Engine;

/// Bits of a `log_id` that number the rows of a source.
const ROW_BITS: u32 = 40;

macro_rules! columns {
    () => {
        "rate_limit_audit_logs (log_id, timestamp, tenant, identifier, user_id, api_key_id, ip_address, endpoint, \
         http_method, rule_id, decision, current_count, limit_value, remaining, cost, response_status, \
         retry_after_seconds, region, server_id, latency_us, request_id, degraded, truncated)"
    };
}

const INSERT: &str = concat!("INSERT INTO ", columns!(), " VALUES ");
const COPY: &str = concat!("COPY ", columns!(), " FROM STDIN");

/// Appends rows, numbered from `first`.
pub(super) async fn append(
    transaction: &mut Transaction,
    source_id: i64,
    first: u64,
    rows: &[DecisionRow],
) -> Result<(), DatabaseError> {
    let engine = transaction.engine();
    let numbered = (first..).zip(rows).map(|(number, row)| values(engine, log_id(source_id, number)?, row));
    if engine == Engine::Postgres {
        let mut input = Vec::with_capacity(rows.len() * 256);
        for row in numbered {
            write_copy_line(&mut input, &row?);
        }
        return transaction.copy_in(COPY, &input).await;
    }
    let rows = numbered.collect::<Result<Vec<_>, _>>()?;
    for piece in chunks(&rows) {
        let mut insert = Query::new(INSERT);
        insert.rows(piece.iter().cloned());
        transaction.execute(&insert).await?;
    }
    Ok(())
}

fn log_id(source_id: i64, number: u64) -> Result<i64, DatabaseError> {
    let number = i64::try_from(number).ok().filter(|number| *number < 1 << ROW_BITS);
    let id = source_id.checked_mul(1 << ROW_BITS).zip(number).map(|(start, number)| start + number);
    id.ok_or_else(|| DatabaseError::value("row number", ValueError::TooLarge))
}

/// The values of the columns. Booleans are 0 or 1.
fn values(engine: Engine, log_id: i64, row: &DecisionRow) -> Result<Vec<Value<'_>>, DatabaseError> {
    let mut fit = Fit::default();
    let ip_address = row.ip_address.as_deref().and_then(|text| text.parse::<IpAddr>().ok());
    let text = |text| Value::Text(Some(text));
    let mut values = vec![
        log_id.into(),
        time_text(engine, row.at_micros)?.into(),
        Value::Text(fit.maybe(row.tenant.as_deref(), width::TENANT)),
        text(fit.text(&row.identifier, width::IDENTIFIER)),
        Value::Text(fit.maybe(row.user_id.as_deref(), width::USER)),
        Value::Text(fit.maybe(row.api_key_id.as_deref(), width::API_KEY)),
        ip_address.map(|address| address.to_string()).into(),
        text(fit.text(&row.endpoint, width::ENDPOINT)),
        Value::Text(fit.maybe(row.http_method.as_deref(), width::METHOD)),
        Value::Text(fit.maybe(row.rule.as_deref(), width::RULE)),
        row.decision.as_str().into(),
        maybe_int(row.current_count, "current_count")?,
        maybe_int(row.limit_value, "limit_value")?,
        maybe_int(row.remaining, "remaining")?,
        row.cost.into(),
        u32::from(row.response_status).into(),
        maybe_int(row.retry_after_seconds, "retry_after_seconds")?,
        text(fit.text(&row.region, width::REGION)),
        text(fit.text(&row.server_id, width::SERVER)),
        to_i64(row.latency_micros, "latency_us")?.into(),
        Value::Text(fit.maybe(row.request_id.as_deref(), width::REQUEST)),
        u32::from(row.degraded).into(),
    ];
    values.push(u32::from(fit.is_changed).into());
    Ok(values)
}

/// An integer that may be absent.
pub(super) fn maybe_int(number: Option<u64>, field: &'static str) -> Result<Value<'static>, DatabaseError> {
    number.map(|number| to_i64(number, field)).transpose().map(Value::Int)
}

/// Writes a row in the text format of `COPY`.
fn write_copy_line(out: &mut Vec<u8>, row: &[Value<'_>]) {
    for (position, value) in row.iter().enumerate() {
        if position > 0 {
            out.push(b'\t');
        }
        match value {
            Value::Int(Some(number)) => out.extend_from_slice(number.to_string().as_bytes()),
            Value::Text(Some(text)) => write_copy_text(out, text),
            Value::Int(None) | Value::Text(None) | Value::Bytes(_) => out.extend_from_slice(b"\\N"),
        }
    }
    out.push(b'\n');
}

fn write_copy_text(out: &mut Vec<u8>, text: &str) {
    for byte in text.bytes() {
        match byte {
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'\t' => out.extend_from_slice(b"\\t"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            byte => out.push(byte),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copy_lines_escape_separators() {
        let mut line = Vec::new();
        let row = [7_i64.into(), "a\tb\nc\\N\r".into(), None::<&str>.into(), "".into(), None::<i64>.into()];
        write_copy_line(&mut line, &row);
        assert_eq!(String::from_utf8(line).unwrap(), "7\ta\\tb\\nc\\\\N\\r\t\\N\t\t\\N\n");
    }

    #[test]
    fn log_ids_are_unique_per_source() {
        assert_eq!(log_id(1, 0).unwrap(), 1 << 40);
        assert_eq!(log_id(2, 5).unwrap(), (2 << 40) + 5);
        assert!(log_id(1, 1 << 40).is_err());
        assert!(log_id(1 << 23, 0).is_err());
        assert!(log_id((1 << 23) - 1, (1 << 40) - 1).is_ok());
    }
}

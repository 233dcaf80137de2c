//! Times in SQL: `TIMESTAMPTZ` in PostgreSQL, UTC `DATETIME(6)` in MySQL, UTC text in SQLite.

use jiff::Timestamp;

use crate::sql::error::{DatabaseError, ValueError};
use crate::sql::query::{Query, Value};
use crate::sql::settings::Engine;

pub(super) const MINUTE_MICROS: u64 = 60_000_000;
pub(super) const HOUR_MICROS: u64 = 60 * MINUTE_MICROS;

/// A time as the engine reads it, from microseconds since 1970.
pub(super) fn time_text(engine: Engine, micros: u64) -> Result<String, DatabaseError> {
    let too_large = || DatabaseError::value("time", ValueError::TooLarge);
    let micros = i64::try_from(micros).map_err(|_| too_large())?;
    let time = Timestamp::from_microsecond(micros).map_err(|_| too_large())?;
    // The session may have another time zone.
    let format =
        if engine == Engine::Postgres { "%Y-%m-%d %H:%M:%S.%6f+00" } else { "%Y-%m-%d %H:%M:%S.%6f" };
    Ok(time.strftime(format).to_string())
}

/// Binds a time.
pub(super) fn bind_time(query: &mut Query<'_>, engine: Engine, micros: u64) -> Result<(), DatabaseError> {
    bind_time_text(query, engine, time_text(engine, micros)?.into());
    Ok(())
}

fn bind_time_text<'a>(query: &mut Query<'a>, engine: Engine, time: Value<'a>) {
    match engine {
        Engine::Sqlite => query.bind(time),
        Engine::Postgres => query.push("CAST(").bind(time).push(" AS TIMESTAMPTZ)"),
        Engine::MySql => query.push("CAST(").bind(time).push(" AS DATETIME(6))"),
    };
}

/// Appends a column of times as microseconds since 1970.
pub(super) fn push_micros(query: &mut Query<'_>, engine: Engine, column: &'static str) {
    match engine {
        Engine::Sqlite => query
            .push("(CAST(strftime('%s', ")
            .push(column)
            .push(") AS INTEGER) * 1000000 + CAST(substr(")
            .push(column)
            .push(", 21, 6) AS INTEGER))"),
        Engine::Postgres => {
            query.push("CAST(EXTRACT(EPOCH FROM ").push(column).push(") * 1000000 AS BIGINT)")
        }
        Engine::MySql => query.push("TIMESTAMPDIFF(MICROSECOND, '1970-01-01', ").push(column).push(")"),
    };
}

/// Appends the rows of an `INSERT … VALUES` whose first `times` columns are times.
pub(super) fn push_rows<'a>(
    query: &mut Query<'a>,
    engine: Engine,
    times: usize,
    rows: impl IntoIterator<Item = Vec<Value<'a>>>,
) {
    for (number, row) in rows.into_iter().enumerate() {
        query.push(if number == 0 { "(" } else { ", (" });
        for (position, value) in row.into_iter().enumerate() {
            query.push(if position == 0 { "" } else { ", " });
            if position < times {
                bind_time_text(query, engine, value);
            } else {
                query.bind(value);
            }
        }
        query.push(")");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_utc_with_microseconds() {
        let micros = 1_700_000_000_000_001;
        assert_eq!(time_text(Engine::Sqlite, micros).unwrap(), "2023-11-14 22:13:20.000001");
        assert_eq!(time_text(Engine::Postgres, micros).unwrap(), "2023-11-14 22:13:20.000001+00");
        assert_eq!(time_text(Engine::MySql, 0).unwrap(), "1970-01-01 00:00:00.000000");
        assert!(time_text(Engine::Sqlite, u64::MAX).is_err());
        assert!(time_text(Engine::Sqlite, 1 << 62).is_err());
    }
}

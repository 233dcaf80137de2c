//! The binary form of rows in the spool.
//!
//! A row starts with its kind. Numbers are little-endian; a text is its length in two bytes and its bytes. Rows of an unknown kind or with
//! missing bytes do not decode: a newer tollgate wrote them, or the file is damaged.

use std::fmt;
use std::io::Write as _;

use bytes::Bytes;
use tollgate_stores::sql::records::{DecisionKind, DecisionRow, LatencyHistogram, RollupRow, WindowRow};

const DECISION: u8 = 1;
const WINDOW: u8 = 2;
const ROLLUP: u8 = 3;
/// The length of a text that is absent.
const ABSENT: u16 = u16::MAX;
const ABSENT_NUMBER: u64 = u64::MAX;

/// A row of the spool of aggregates. Windows are many, and are decoded when those of a batch are added up.
pub(crate) enum SpooledAggregate {
    Window(SpooledWindow),
    Rollup(Box<RollupRow>),
}

/// A window in its binary form, which was checked.
pub(crate) struct SpooledWindow(Bytes);

/// What a window row has beside its key.
#[derive(Copy, Clone, Default)]
pub(crate) struct WindowSums {
    pub(crate) allowed: u64,
    pub(crate) refused: u64,
    pub(crate) limit_value: Option<u64>,
}

/// A decoded row of the spool of aggregates.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum AggregateRow {
    Window(WindowRow),
    Rollup(Box<RollupRow>),
}

/// Writes the fields of a row.
pub(crate) struct RowWriter<'a>(&'a mut Vec<u8>);

impl<'a> RowWriter<'a> {
    pub(crate) fn decision(out: &'a mut Vec<u8>) -> Self {
        out.push(DECISION);
        RowWriter(out)
    }

    pub(crate) fn window(out: &'a mut Vec<u8>) -> Self {
        out.push(WINDOW);
        RowWriter(out)
    }

    pub(crate) fn rollup(out: &'a mut Vec<u8>) -> Self {
        out.push(ROLLUP);
        RowWriter(out)
    }

    /// A writer of fields that another row will contain.
    pub(crate) fn fields(out: &'a mut Vec<u8>) -> Self {
        RowWriter(out)
    }

    pub(crate) fn byte(&mut self, value: u8) -> &mut Self {
        self.0.push(value);
        self
    }

    pub(crate) fn number(&mut self, value: u64) -> &mut Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub(crate) fn maybe_number(&mut self, value: Option<u64>) -> &mut Self {
        self.number(value.unwrap_or(ABSENT_NUMBER))
    }

    pub(crate) fn text(&mut self, text: &str) -> &mut Self {
        // Longer texts do not get here: requests and names are bounded.
        let length = u16::try_from(text.len()).ok().filter(|length| *length < ABSENT);
        let text = if length.is_some() { text } else { "" };
        self.0.extend_from_slice(&length.unwrap_or(0).to_le_bytes());
        self.0.extend_from_slice(text.as_bytes());
        self
    }

    pub(crate) fn maybe_text(&mut self, text: Option<&str>) -> &mut Self {
        if let Some(text) = text {
            return self.text(text);
        }
        self.0.extend_from_slice(&ABSENT.to_le_bytes());
        self
    }

    /// Writes the display form without a text of its own in memory.
    pub(crate) fn display(&mut self, value: impl std::fmt::Display) -> &mut Self {
        let start = self.0.len();
        self.0.extend_from_slice(&[0, 0]);
        let _ = write!(self.0, "{value}"); // writing to memory does not fail
        let length = u16::try_from(self.0.len() - start - 2).unwrap_or(0);
        self.0[start..start + 2].copy_from_slice(&length.to_le_bytes());
        self.0.truncate(start + 2 + usize::from(length));
        self
    }

    /// Fields that were written with [`RowWriter::fields`].
    pub(crate) fn copied(&mut self, fields: &[u8]) -> &mut Self {
        self.0.extend_from_slice(fields);
        self
    }

    pub(crate) fn histogram(&mut self, histogram: &LatencyHistogram) -> &mut Self {
        let start = self.0.len();
        self.0.push(0);
        for (bucket, count) in histogram.buckets() {
            self.0[start] += 1;
            self.0.push(bucket);
            self.0.extend_from_slice(&count.to_le_bytes());
        }
        self
    }
}

/// Reads the fields of a row.
struct RowReader<'a>(&'a [u8]);

/// The bytes are not those of a row.
struct Damaged;

impl<'a> RowReader<'a> {
    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], Damaged> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or(Damaged)?;
        self.0 = rest;
        Ok(*bytes)
    }

    fn byte(&mut self) -> Result<u8, Damaged> {
        self.bytes().map(|[byte]| byte)
    }

    fn number(&mut self) -> Result<u64, Damaged> {
        self.bytes().map(u64::from_le_bytes)
    }

    fn maybe_number(&mut self) -> Result<Option<u64>, Damaged> {
        self.number().map(|value| Some(value).filter(|value| *value != ABSENT_NUMBER))
    }

    fn borrowed(&mut self) -> Result<Option<&'a str>, Damaged> {
        let length = self.bytes().map(u16::from_le_bytes)?;
        if length == ABSENT {
            return Ok(None);
        }
        let (text, rest) = self.0.split_at_checked(usize::from(length)).ok_or(Damaged)?;
        self.0 = rest;
        std::str::from_utf8(text).map(Some).map_err(|_| Damaged)
    }

    fn maybe_text(&mut self) -> Result<Option<String>, Damaged> {
        Ok(self.borrowed()?.map(ToOwned::to_owned))
    }

    fn text(&mut self) -> Result<String, Damaged> {
        self.maybe_text()?.ok_or(Damaged)
    }

    fn histogram(&mut self) -> Result<LatencyHistogram, Damaged> {
        let mut histogram = LatencyHistogram::default();
        for _ in 0..self.byte()? {
            let bucket = self.byte()?;
            if !histogram.add_bucket(bucket, self.bytes().map(u32::from_le_bytes)?) {
                return Err(Damaged);
            }
        }
        Ok(histogram)
    }
}

/// A row of the spool of decisions.
pub(crate) fn decode_decision(row: &[u8]) -> Option<DecisionRow> {
    match row.split_first()? {
        (&DECISION, fields) => read_decision(RowReader(fields)).ok(),
        _ => None,
    }
}

fn read_decision(mut fields: RowReader<'_>) -> Result<DecisionRow, Damaged> {
    Ok(DecisionRow {
        at_micros: fields.number()?,
        decision: DecisionKind::ALL.get(usize::from(fields.byte()?)).copied().ok_or(Damaged)?,
        degraded: fields.byte()? != 0,
        response_status: u16::try_from(fields.number()?).map_err(|_| Damaged)?,
        cost: u32::try_from(fields.number()?).map_err(|_| Damaged)?,
        latency_micros: fields.number()?,
        current_count: fields.maybe_number()?,
        limit_value: fields.maybe_number()?,
        remaining: fields.maybe_number()?,
        retry_after_seconds: fields.maybe_number()?,
        identifier: fields.text()?,
        tenant: fields.maybe_text()?,
        user_id: fields.maybe_text()?,
        api_key_id: fields.maybe_text()?,
        ip_address: fields.maybe_text()?,
        endpoint: fields.text()?,
        http_method: fields.maybe_text()?,
        rule: fields.maybe_text()?,
        request_id: fields.maybe_text()?,
        region: fields.text()?,
        server_id: fields.text()?,
    })
}

impl SpooledAggregate {
    /// `None` if it is not a row.
    pub(crate) fn new(row: &Bytes) -> Option<Self> {
        match row.split_first()? {
            (&WINDOW, _) => {
                let window = SpooledWindow(row.clone());
                let (_, key, _) = window.parts()?;
                WindowKey::read(key)?;
                Some(SpooledAggregate::Window(window))
            }
            (&ROLLUP, fields) => {
                read_rollup(RowReader(fields)).map(Box::new).map(SpooledAggregate::Rollup).ok()
            }
            _ => None,
        }
    }
}

impl SpooledWindow {
    /// The start in microseconds, the fields of the key, and the counts.
    pub(crate) fn parts(&self) -> Option<(u64, &[u8], WindowSums)> {
        let mut fields = RowReader(self.0.get(1..)?);
        let start_micros = fields.number().ok()?;
        let (allowed, refused) = (fields.number().ok()?, fields.number().ok()?);
        let limit_value = fields.maybe_number().ok()?;
        Some((start_micros, fields.0, WindowSums { allowed, refused, limit_value }))
    }
}

impl fmt::Debug for SpooledAggregate {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SpooledAggregate::Window(window) => decode_aggregate(&window.0).fmt(out),
            SpooledAggregate::Rollup(row) => row.fmt(out),
        }
    }
}

/// A row of the spool of aggregates.
pub(crate) fn decode_aggregate(row: &[u8]) -> Option<AggregateRow> {
    match row.split_first()? {
        (&WINDOW, fields) => read_window(RowReader(fields)).map(AggregateRow::Window).ok(),
        (&ROLLUP, fields) => read_rollup(RowReader(fields)).map(Box::new).map(AggregateRow::Rollup).ok(),
        _ => None,
    }
}

fn read_window(mut fields: RowReader<'_>) -> Result<WindowRow, Damaged> {
    Ok(WindowRow {
        start_micros: fields.number()?,
        allowed: fields.number()?,
        refused: fields.number()?,
        limit_value: fields.maybe_number()?,
        identifier: fields.text()?,
        tenant: fields.maybe_text()?,
        route: fields.text()?,
    })
}

fn read_rollup(mut fields: RowReader<'_>) -> Result<RollupRow, Damaged> {
    Ok(RollupRow {
        start_micros: fields.number()?,
        allowed: fields.number()?,
        throttled: fields.number()?,
        blocked: fields.number()?,
        cache_hits: fields.number()?,
        cache_misses: fields.number()?,
        latency: fields.histogram()?,
        endpoint: fields.text()?,
        rule: fields.maybe_text()?,
        tenant: fields.maybe_text()?,
        user_id: fields.maybe_text()?,
        region: fields.text()?,
        server_id: fields.text()?,
    })
}

/// Whether fields are exactly these texts, as [`RowWriter::maybe_text`] writes them.
pub(crate) fn has_texts(mut fields: &[u8], texts: [Option<&str>; 4]) -> bool {
    for text in texts {
        let Some((length, rest)) = fields.split_first_chunk() else { return false };
        let length = u16::from_le_bytes(*length);
        let Some(text) = text else {
            fields = rest;
            if length == ABSENT {
                continue;
            }
            return false;
        };
        match rest.split_at_checked(text.len()) {
            Some((bytes, rest)) if usize::from(length) == text.len() && bytes == text.as_bytes() => {
                fields = rest;
            }
            _ => return false,
        }
    }
    fields.is_empty()
}

impl WindowSums {
    pub(crate) fn add(&mut self, more: WindowSums) {
        self.allowed = self.allowed.saturating_add(more.allowed);
        self.refused = self.refused.saturating_add(more.refused);
        self.limit_value = more.limit_value.or(self.limit_value);
    }
}

/// The key of a window record.
pub(crate) struct WindowKey<'a> {
    pub(crate) identifier: &'a str,
    pub(crate) tenant: Option<&'a str>,
    pub(crate) route: &'a str,
}

impl<'a> WindowKey<'a> {
    /// Reads the fields that the rows of a window have in common.
    pub(crate) fn read(fields: &'a [u8]) -> Option<Self> {
        let mut fields = RowReader(fields);
        Some(WindowKey {
            identifier: fields.borrowed().ok()??,
            tenant: fields.borrowed().ok()?,
            route: fields.borrowed().ok()??,
        })
    }

    pub(crate) fn row(&self, start_micros: u64, sums: WindowSums) -> WindowRow {
        WindowRow {
            start_micros,
            identifier: self.identifier.to_owned(),
            tenant: self.tenant.map(ToOwned::to_owned),
            route: self.route.to_owned(),
            allowed: sums.allowed,
            refused: sums.refused,
            limit_value: sums.limit_value,
        }
    }
}

/// Rule and tenant of the fields that the rows of a rollup have in common.
pub(crate) fn rule_of(fields: &[u8]) -> Option<(&str, Option<&str>)> {
    let mut fields = RowReader(fields);
    let _route = fields.borrowed().ok()?;
    Some((fields.borrowed().ok()??, fields.borrowed().ok()?))
}

//! Reads the columns of a row one after another.

use crate::sql::engine::{Row, from_i64};
use crate::sql::error::DatabaseError;
use crate::sql::records::LatencyHistogram;

use super::counts::RequestCounts;

/// What a text lacks that names only the start of a minute, hour or day.
const WHOLE: &str = "0000-00-00 00:00:00";

/// The columns of a row.
pub(super) struct Columns<'r> {
    row: &'r Row,
    next: usize,
    table: &'static str,
}

impl<'r> Columns<'r> {
    pub(super) fn new(row: &'r Row, table: &'static str) -> Self {
        Columns { row, next: 0, table }
    }

    fn advance(&mut self) -> usize {
        self.next += 1;
        self.next - 1
    }

    pub(super) fn corrupt(&self) -> DatabaseError {
        DatabaseError::Corrupt { what: self.table }
    }

    pub(super) fn text(&mut self) -> Result<String, DatabaseError> {
        let column = self.advance();
        self.row.text(column, self.table)
    }

    /// A text; `None` if it is NULL or empty.
    pub(super) fn maybe_text(&mut self) -> Result<Option<String>, DatabaseError> {
        let column = self.advance();
        Ok(self.row.maybe_text(column, self.table)?.filter(|text| !text.is_empty()))
    }

    pub(super) fn number<T: TryFrom<i64>>(&mut self) -> Result<T, DatabaseError> {
        self.maybe_number()?.ok_or(self.corrupt())
    }

    pub(super) fn maybe_number<T: TryFrom<i64>>(&mut self) -> Result<Option<T>, DatabaseError> {
        let column = self.advance();
        self.row.maybe_int(column)?.map(|number| from_i64(number, self.table)).transpose()
    }

    /// 0 for the sum of no rows.
    pub(super) fn sum(&mut self) -> Result<u64, DatabaseError> {
        Ok(self.maybe_number()?.unwrap_or(0))
    }

    /// The sums of allowed and refused requests.
    pub(super) fn counts(&mut self) -> Result<RequestCounts, DatabaseError> {
        Ok(RequestCounts { allowed: self.sum()?, refused: self.sum()? })
    }

    pub(super) fn flag(&mut self) -> Result<bool, DatabaseError> {
        Ok(self.number::<u8>()? != 0)
    }

    /// An instant in microseconds since 1970.
    pub(super) fn time(&mut self) -> Result<u64, DatabaseError> {
        self.maybe_time()?.ok_or(self.corrupt())
    }

    pub(super) fn maybe_time(&mut self) -> Result<Option<u64>, DatabaseError> {
        let Some(text) = self.maybe_text()? else { return Ok(None) };
        parse_time(&text).map(Some).ok_or(self.corrupt())
    }

    pub(super) fn hash(&mut self) -> Result<[u8; 16], DatabaseError> {
        let column = self.advance();
        let bytes = self.row.bytes(column)?.and_then(|bytes| bytes.try_into().ok());
        bytes.ok_or(self.corrupt())
    }

    /// One or more histograms, separated by spaces. A pair that a server cut off is left out.
    pub(super) fn histogram(&mut self) -> Result<LatencyHistogram, DatabaseError> {
        let mut histogram = LatencyHistogram::default();
        let text = self.maybe_text()?.unwrap_or_default();
        for pair in text.split_ascii_whitespace().filter_map(|pair| pair.split_once(':')) {
            if let (Ok(bucket), Ok(count)) = (pair.0.parse(), pair.1.parse()) {
                histogram.add_bucket(bucket, count);
            }
        }
        Ok(histogram)
    }
}

/// `2027-01-31 12:00:00.000000` or its start, in UTC.
fn parse_time(text: &str) -> Option<u64> {
    let text = format!("{text}{}", WHOLE.get(text.len()..).unwrap_or_default());
    let civil: jiff::civil::DateTime = text.parse().ok()?;
    let instant = civil.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp();
    u64::try_from(instant.as_microsecond()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_parsed_to_the_microsecond() {
        assert_eq!(parse_time("1970-01-01 00:00:01.000002"), Some(1_000_002));
        assert_eq!(parse_time("1970-01-02"), Some(86_400_000_000));
        assert_eq!(parse_time("1970-01-01 01"), Some(3_600_000_000));
        assert_eq!(parse_time("1970-01-01 00:01"), Some(60_000_000));
        assert_eq!(parse_time("1969-12-31"), None);
        assert_eq!(parse_time("yesterday"), None);
    }
}

//! The calendar of partitions: months and weeks in UTC.

use jiff::civil::{Date, DateTime};
use jiff::tz::Offset;
use jiff::{Timestamp, ToSpan as _};

use crate::sql::error::{DatabaseError, ValueError};

/// The length of a partition.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(in crate::sql::records) enum Period {
    /// From Monday.
    Week,
    Month,
}

impl Period {
    /// The first day of the period of a day.
    pub(in crate::sql::records) fn start_of(self, day: Date) -> Date {
        match self {
            Period::Week => day.saturating_sub(i64::from(day.weekday().to_monday_zero_offset()).days()),
            Period::Month => day.first_of_month(),
        }
    }

    /// The first day of the next period.
    pub(in crate::sql::records) fn next(self, start: Date) -> Date {
        match self {
            Period::Week => start.saturating_add(1.week()),
            Period::Month => start.saturating_add(1.month()),
        }
    }
}

/// The UTC date and time.
pub(in crate::sql::records) fn date_time(micros: u64) -> Result<DateTime, DatabaseError> {
    let time = i64::try_from(micros).ok().and_then(|micros| Timestamp::from_microsecond(micros).ok());
    let time = time.ok_or_else(|| DatabaseError::value("time", ValueError::TooLarge))?;
    Ok(Offset::UTC.to_datetime(time))
}

/// `20261101`.
pub(in crate::sql::records) fn digits(day: Date) -> String {
    format!("{:04}{:02}{:02}", day.year(), day.month(), day.day())
}

/// The day of eight digits.
pub(in crate::sql::records) fn parse_digits(digits: &str) -> Option<Date> {
    if digits.len() != 8 || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let (year, month, day) =
        (digits[..4].parse().ok()?, digits[4..6].parse().ok()?, digits[6..].parse().ok()?);
    Date::new(year, month, day).ok()
}

#[cfg(test)]
mod tests {
    use jiff::civil::date;

    use super::*;

    #[test]
    fn periods_follow_each_other() {
        let day = date(2026, 12, 31);
        assert_eq!(Period::Month.start_of(day), date(2026, 12, 1));
        assert_eq!(Period::Month.next(date(2026, 12, 1)), date(2027, 1, 1));
        assert_eq!(Period::Week.start_of(day), date(2026, 12, 28));
        assert_eq!(Period::Week.start_of(date(2026, 12, 28)), date(2026, 12, 28));
        assert_eq!(Period::Week.next(date(2026, 12, 28)), date(2027, 1, 4));
    }

    #[test]
    fn digits_name_a_day() {
        assert_eq!(parse_digits(&digits(date(2026, 2, 3))), Some(date(2026, 2, 3)));
        for invalid in ["default", "20261301", "2026110", "+0261101"] {
            assert_eq!(parse_digits(invalid), None, "{invalid}");
        }
    }
}

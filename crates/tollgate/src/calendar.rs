//! Calendar windows: days, weeks and months in a time zone.
//!
//! Days have 23 to 25 hours and months differ, so boundaries are computed from the time-zone database. A day whose
//! midnight falls into a daylight-saving gap or overlap starts at the first instant of that date.

use std::fmt;

use jiff::civil::{Date, Weekday};
use jiff::tz::TimeZone;
use jiff::{Timestamp as Instant, ToSpan};

use crate::time::{Span, Timestamp};

/// The unit of a calendar window.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum CalendarUnit {
    /// From midnight to midnight.
    Day,
    /// Seven days, starting on this weekday.
    Week(Weekday),
    /// A month that starts on this day (1 to 31; the last day in shorter months).
    Month(i8),
}

/// A calendar window: a unit in a time zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Calendar {
    unit: CalendarUnit,
    zone: TimeZone,
}

/// Why a calendar window is invalid.
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CalendarError {
    /// The time-zone database does not have this name.
    #[error("unknown time zone {0:?} (an IANA name such as Europe/Berlin, or UTC)")]
    UnknownZone(String),
    /// A day of the month outside 1 to 31.
    #[error("the day of a month must be 1 to 31")]
    DayOutOfRange,
}

impl Calendar {
    /// A calendar window of a unit in a time zone, given by its IANA name.
    ///
    /// # Errors
    /// When the zone is unknown or the anchor day is not 1 to 31.
    pub fn new(unit: CalendarUnit, zone: &str) -> Result<Self, CalendarError> {
        if matches!(unit, CalendarUnit::Month(day) if !(1..=31).contains(&day)) {
            return Err(CalendarError::DayOutOfRange);
        }
        let zone = TimeZone::get(zone).map_err(|_| CalendarError::UnknownZone(zone.to_owned()))?;
        Ok(Calendar { unit, zone })
    }

    /// Parses the [display](fmt::Display) form.
    pub fn parse(text: &str) -> Option<Self> {
        let (unit, zone) = text.split_once('@')?;
        let anchor = |anchor: &str| anchor.parse::<i8>().ok();
        let unit = match unit.split_once('-') {
            None if unit == "day" => CalendarUnit::Day,
            Some(("week", day)) => CalendarUnit::Week(Weekday::from_monday_one_offset(anchor(day)?).ok()?),
            Some(("month", day)) => CalendarUnit::Month(anchor(day)?),
            _ => return None,
        };
        Calendar::new(unit, zone).ok()
    }

    /// The unit, with its anchor.
    pub fn unit(&self) -> CalendarUnit {
        self.unit
    }

    /// The window that contains `now`: its first instant and the first instant after it.
    pub fn bounds(&self, now: Timestamp) -> (Timestamp, Timestamp) {
        let micros = i64::try_from(now.as_micros()).unwrap_or(i64::MAX);
        // `Timestamp` ends in 2112, inside the calendar's range: the fallback is never taken.
        let instant = Instant::from_microsecond(micros).unwrap_or(Instant::UNIX_EPOCH);
        let date = instant.to_zoned(self.zone.clone()).date();
        let first = self.first_day(date);
        (self.midnight(first), self.midnight(self.next_first(first)))
    }

    /// For people: `day in UTC`, `week from Sunday in UTC`, `month from day 15 in Europe/Berlin`.
    pub(crate) fn describe(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.unit {
            CalendarUnit::Day => f.write_str("day")?,
            CalendarUnit::Week(start) => write!(f, "week from {start:?}")?,
            CalendarUnit::Month(1) => f.write_str("month")?,
            CalendarUnit::Month(day) => write!(f, "month from day {day}")?,
        }
        write!(f, " in {}", self.zone.iana_name().unwrap_or("UTC"))
    }

    /// The nominal length: 24 hours, 7 days or 30 days.
    pub const fn nominal(&self) -> Span {
        Span::from_secs(match self.unit {
            CalendarUnit::Day => 86_400,
            CalendarUnit::Week(_) => 7 * 86_400,
            CalendarUnit::Month(_) => 30 * 86_400,
        })
    }

    /// An upper bound of the length of a window.
    pub fn longest(&self) -> Span {
        let days = match self.unit {
            CalendarUnit::Day => 1,
            CalendarUnit::Week(_) => 7,
            CalendarUnit::Month(_) => 31,
        };
        // Slack for the end of daylight saving time and for zones that skip a date.
        Span::from_secs(days * 86_400 + 26 * 3_600)
    }

    fn first_day(&self, date: Date) -> Date {
        match self.unit {
            CalendarUnit::Day => date,
            CalendarUnit::Week(start) => {
                let since = date.weekday().since(start);
                date.saturating_sub(i32::from(since).days())
            }
            CalendarUnit::Month(day) => {
                let here = anchor(date, day);
                if date >= here { here } else { anchor(date.first_of_month().saturating_sub(1.day()), day) }
            }
        }
    }

    fn next_first(&self, first: Date) -> Date {
        match self.unit {
            CalendarUnit::Day => first.saturating_add(1.day()),
            CalendarUnit::Week(_) => first.saturating_add(7.days()),
            CalendarUnit::Month(day) => anchor(first.last_of_month().saturating_add(1.day()), day),
        }
    }

    fn midnight(&self, date: Date) -> Timestamp {
        let start = date.to_zoned(self.zone.clone()).map_or(0, |zoned| zoned.timestamp().as_microsecond());
        Timestamp::from_micros(u64::try_from(start).unwrap_or(0))
    }
}

/// Day `day` of the month of `date`, or its last day if the month has fewer.
fn anchor(date: Date, day: i8) -> Date {
    let day = day.min(date.days_in_month());
    date.first_of_month().saturating_add(i32::from(day - 1).days())
}

impl fmt::Display for Calendar {
    /// Stable: it is part of counter ids.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.unit {
            CalendarUnit::Day => f.write_str("day")?,
            CalendarUnit::Week(start) => write!(f, "week-{}", start.to_monday_one_offset())?,
            CalendarUnit::Month(day) => write!(f, "month-{day}")?,
        }
        write!(f, "@{}", self.zone.iana_name().unwrap_or("UTC"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        let instant: Instant = text.parse().unwrap();
        Timestamp::from_micros(u64::try_from(instant.as_microsecond()).unwrap())
    }

    fn hours(unit: CalendarUnit, zone: &str, now: &str) -> u64 {
        let (start, end) = Calendar::new(unit, zone).unwrap().bounds(at(now));
        assert!(start <= at(now) && at(now) < end);
        end.since(start).as_micros() / 3_600_000_000
    }

    #[test]
    fn days_follow_daylight_saving_time() {
        assert_eq!(hours(CalendarUnit::Day, "Europe/Berlin", "2026-03-29T10:00:00Z"), 23);
        assert_eq!(hours(CalendarUnit::Day, "Europe/Berlin", "2026-10-25T10:00:00Z"), 25);
        assert_eq!(hours(CalendarUnit::Day, "UTC", "2026-10-25T10:00:00Z"), 24);
    }

    #[test]
    fn day_without_midnight_starts_at_its_first_instant() {
        // Beirut moves the clock from 00:00 to 01:00.
        let calendar = Calendar::new(CalendarUnit::Day, "Asia/Beirut").unwrap();
        let (start, end) = calendar.bounds(at("2026-03-29T10:00:00Z"));
        assert_eq!(start, at("2026-03-28T22:00:00Z"));
        assert_eq!(end.since(start), Span::from_secs(23 * 3_600));
    }

    #[test]
    fn week_starts_on_its_anchor() {
        let monday = Calendar::new(CalendarUnit::Week(Weekday::Monday), "UTC").unwrap();
        let sunday = Calendar::new(CalendarUnit::Week(Weekday::Sunday), "UTC").unwrap();
        assert_eq!(monday.bounds(at("2026-11-15T12:00:00Z")).0, at("2026-11-09T00:00:00Z"));
        assert_eq!(sunday.bounds(at("2026-11-15T12:00:00Z")).0, at("2026-11-15T00:00:00Z"));
    }

    #[test]
    fn late_month_anchor_uses_last_day_of_short_months() {
        let calendar = Calendar::new(CalendarUnit::Month(31), "UTC").unwrap();
        let bounds = |now| calendar.bounds(at(now));
        assert_eq!(bounds("2026-02-10T00:00:00Z"), (at("2026-01-31T00:00:00Z"), at("2026-02-28T00:00:00Z")));
        assert_eq!(bounds("2026-02-28T00:00:00Z"), (at("2026-02-28T00:00:00Z"), at("2026-03-31T00:00:00Z")));
        assert_eq!(bounds("2024-02-29T00:00:00Z"), (at("2024-02-29T00:00:00Z"), at("2024-03-31T00:00:00Z")));
    }

    #[test]
    fn windows_are_contiguous() {
        for unit in [CalendarUnit::Day, CalendarUnit::Week(Weekday::Saturday), CalendarUnit::Month(29)] {
            let calendar = Calendar::new(unit, "America/Sao_Paulo").unwrap();
            let (mut start, mut end) = calendar.bounds(at("2015-01-01T00:00:00Z"));
            for _ in 0..600 {
                assert!(start < end && end.since(start) <= calendar.longest());
                assert_eq!(calendar.bounds(Timestamp::from_micros(end.as_micros() - 1)).0, start);
                let next = calendar.bounds(end);
                assert_eq!(next.0, end);
                (start, end) = next;
            }
        }
    }

    #[test]
    fn display_form_parses_again() {
        for unit in [CalendarUnit::Day, CalendarUnit::Week(Weekday::Sunday), CalendarUnit::Month(31)] {
            for zone in ["UTC", "Europe/Berlin", "America/Port-au-Prince"] {
                let calendar = Calendar::new(unit, zone).unwrap();
                assert_eq!(Calendar::parse(&calendar.to_string()), Some(calendar));
            }
        }
        for text in ["day", "week@UTC", "month-32@UTC", "week-0@UTC", "day-1@UTC", "year@UTC", "day@Nowhere"]
        {
            assert_eq!(Calendar::parse(text), None, "{text}");
        }
    }

    #[test]
    fn unknown_zones_and_days_are_rejected() {
        let error = Calendar::new(CalendarUnit::Day, "Mars/Olympus").unwrap_err();
        assert!(error.to_string().contains("Mars/Olympus"));
        assert_eq!(Calendar::new(CalendarUnit::Month(32), "UTC"), Err(CalendarError::DayOutOfRange));
    }
}

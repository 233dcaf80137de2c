//! Calendar windows against the proleptic Gregorian calendar, computed day by day.

use std::sync::Arc;

use jiff::civil::Weekday;
use tollgate::algorithms::Outcome;
use tollgate::calendar::{Calendar, CalendarUnit};
use tollgate::{Algorithm, Limit, Window};

use crate::properties::Single;
use crate::random::{Random, span};

const DAY: i128 = 86_400_000_000;

/// The days from 1970 to 2106 on which a window of that unit starts.
fn first_days(unit: CalendarUnit) -> Vec<i128> {
    let mut starts = Vec::new();
    let mut day = 0;
    for year in 1970..=2106_i128 {
        let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        for length in [31, 28 + i128::from(leap), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
            for date in 1..=length {
                let starts_here = match unit {
                    CalendarUnit::Day => true,
                    // The first of January 1970 was a Thursday.
                    CalendarUnit::Week(first) => (day + 3) % 7 == i128::from(first.to_monday_zero_offset()),
                    CalendarUnit::Month(anchor) => date == i128::from(anchor).min(length),
                };
                if starts_here {
                    starts.push(day);
                }
                day += 1;
            }
        }
    }
    starts
}

#[test]
fn calendar_windows_match_the_gregorian_calendar() {
    let units = [
        CalendarUnit::Day,
        CalendarUnit::Week(Weekday::Monday),
        CalendarUnit::Week(Weekday::Sunday),
        CalendarUnit::Month(1),
        CalendarUnit::Month(15),
        CalendarUnit::Month(30),
        CalendarUnit::Month(31),
    ];
    for (seed, unit) in (0..).zip(units) {
        let starts = first_days(unit);
        let calendar = Window::Calendar(Arc::new(Calendar::new(unit, "UTC").unwrap()));
        let limit = Limit::new(Algorithm::FixedWindow, 1, calendar).unwrap();
        let mut random = Random::new(seed);
        for _ in 0..500 {
            let single = Single::new(limit.clone());
            let now = random.between(40 * DAY, 49_000 * DAY);
            let end = starts[starts.partition_point(|start| start * DAY <= now)] * DAY;
            assert!(single.charge(1, now).admits());
            let refused = Outcome::Refuse { retry_after: span(end - now) };
            assert_eq!(single.charge(1, now).outcome, refused, "{unit:?} at {now}");
            assert!(
                !single.charge(1, end - 1).admits() && single.charge(1, end).admits(),
                "{unit:?} at {end}"
            );
        }
    }
}

/// Days around both changes of daylight saving time in Berlin have 23 and 25 hours; each admits its limit once, and the wait
/// ends at the next local midnight.
#[test]
fn days_of_23_and_25_hours_admit_their_limit_once() {
    const HOUR: i128 = DAY / 24;
    // 2026-03-28 and 2026-10-24, midnight in Berlin.
    for (first, lengths) in [(1_774_652_400, [24, 23, 24]), (1_792_792_800, [24, 25, 24])] {
        let calendar = Window::Calendar(Arc::new(Calendar::new(CalendarUnit::Day, "Europe/Berlin").unwrap()));
        let single = Single::new(Limit::new(Algorithm::FixedWindow, 5, calendar).unwrap());
        let mut midnight = first * 1_000_000;
        for hours in lengths {
            let next = midnight + hours * HOUR;
            let mut admitted = 0;
            for now in (midnight..next).step_by(usize::try_from(HOUR / 4).unwrap()).chain([next - 1]) {
                match single.charge(1, now).outcome {
                    Outcome::Admit { .. } => admitted += 1,
                    outcome => assert_eq!(outcome, Outcome::Refuse { retry_after: span(next - now) }),
                }
            }
            assert_eq!(admitted, 5, "a day of {hours} hours");
            midnight = next;
        }
    }
}

//! Clocks differ: the server's decides, however wrong a node's is.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod harness;

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tollgate::calendar::{Calendar, CalendarUnit};
use tollgate::counters::CounterStore;
use tollgate::counters::conformance::Harness;
use tollgate::{Algorithm, Limit, Span, Window};

use self::harness::Shared;
use self::harness::limits::{DAY, Gauge, charges};

/// The caller sends the boundaries of a calendar's windows, around its own clock.
#[test]
fn a_node_that_is_days_behind_gives_nobody_a_second_quota() {
    let shared = Shared::single();
    let calendar = Calendar::new(CalendarUnit::Day, "UTC").unwrap();
    let limit = Limit::new(Algorithm::FixedWindow, 5, Window::Calendar(Arc::new(calendar))).unwrap();
    for days in [0_u64, 1, 2, 3, 40] {
        let gauge = Gauge::new(limit.clone());
        let behind = Span::from_micros(DAY.as_micros() * days);
        let admits = || {
            thread::sleep(Duration::from_millis(5));
            let charges = charges([&gauge], 1);
            let told = shared.block_on(shared.store.charge_all(&charges, shared.now() - behind)).unwrap();
            told.admitted(&charges)
        };
        assert_eq!((0..15).filter(|_| admits()).count(), 5, "{days} days behind");
    }
}

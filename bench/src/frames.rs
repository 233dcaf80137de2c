//! Frames of the decision log, as the spool stores them.

use tollgate_server::bench::push_decision;

pub const FRAME_ROWS: u32 = 1_000;
/// The time of the first decision.
pub const START_MICROS: u64 = 1_700_000_000_000_000;

/// A frame of decisions about 10,000 users, starting with a row number.
pub fn frame(first: u64) -> Vec<u8> {
    let mut payload = Vec::new();
    for row in first..first + u64::from(FRAME_ROWS) {
        push_decision(&mut payload, START_MICROS + row, row % 10_000);
    }
    payload
}

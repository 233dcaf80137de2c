//! What follows stores that time out: fewer rows per call, until a row that times out alone is set aside.

/// Timeouts of a row alone before it is set aside.
const ALONE_MAX: u32 = 10;

/// Timeouts since the last rows that were stored.
#[derive(Debug)]
pub(super) struct StoreTimeouts {
    /// Rows that one call stores at most.
    rows_max: usize,
    is_pending: bool,
    /// Timeouts in a row of the same single row.
    alone: u32,
    /// Doubled for every row that is set aside. A table that somebody has locked for hours then costs a few rows only.
    alone_max: u32,
}

impl Default for StoreTimeouts {
    fn default() -> Self {
        StoreTimeouts { rows_max: usize::MAX, is_pending: false, alone: 0, alone_max: ALONE_MAX }
    }
}

impl StoreTimeouts {
    /// Rows that the next call stores at most.
    pub(super) fn rows_max(&self) -> usize {
        self.rows_max
    }

    /// Whether the last store timed out.
    pub(super) fn is_pending(&self) -> bool {
        self.is_pending
    }

    /// Whether the single row that timed out is to be set aside.
    pub(super) fn is_exhausted(&self) -> bool {
        self.alone >= self.alone_max
    }

    /// The next call may store more rows, but not many more: each timeout costs minutes.
    pub(super) fn note_stored(&mut self) {
        let rows_max = self.rows_max.saturating_add(self.rows_max / 8 + 1);
        *self = StoreTimeouts { rows_max, ..StoreTimeouts::default() };
    }

    pub(super) fn note_timeout(&mut self, rows: usize) {
        self.is_pending = true;
        self.rows_max = (rows / 2).max(1);
        self.alone = if rows == 1 { self.alone.saturating_add(1) } else { 0 };
    }

    pub(super) fn note_set_aside(&mut self) {
        self.alone = 0;
        self.alone_max = self.alone_max.saturating_mul(2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Timeouts of single rows until one is set aside.
    fn exhaust(timeouts: &mut StoreTimeouts) -> u32 {
        let mut count = 0;
        while !timeouts.is_exhausted() {
            timeouts.note_timeout(1);
            count += 1;
        }
        timeouts.note_set_aside();
        count
    }

    #[test]
    fn timeouts_halve_and_stores_grow_the_batch() {
        let mut timeouts = StoreTimeouts::default();
        timeouts.note_stored();
        assert_eq!(timeouts.rows_max(), usize::MAX);
        timeouts.note_timeout(5_000);
        assert_eq!((timeouts.rows_max(), timeouts.is_pending()), (2_500, true));
        timeouts.note_stored();
        assert_eq!((timeouts.rows_max(), timeouts.is_pending()), (2_813, false));
        timeouts.note_timeout(1);
        assert_eq!(timeouts.rows_max(), 1);
    }

    #[test]
    fn patience_doubles_until_rows_are_stored() {
        let mut timeouts = StoreTimeouts::default();
        assert_eq!([exhaust(&mut timeouts), exhaust(&mut timeouts), exhaust(&mut timeouts)], [10, 20, 40]);
        timeouts.note_stored();
        assert_eq!(exhaust(&mut timeouts), 10);
    }
}

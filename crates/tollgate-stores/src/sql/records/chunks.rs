//! Rows of one statement.

/// Rows per statement: below the 32,766 values of SQLite and the 65,535 of MySQL and PostgreSQL.
const ROWS_MAX: usize = 512;

/// Splits rows into chunks whose lengths are powers of two. Statements then have few lengths, and the driver reuses those it has prepared.
pub(super) fn chunks<T>(rows: &[T]) -> impl Iterator<Item = &[T]> {
    let mut rest = rows;
    std::iter::from_fn(move || {
        let size = 1 << rest.len().min(ROWS_MAX).checked_ilog2()?;
        let (chunk, after) = rest.split_at(size);
        rest = after;
        Some(chunk)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_powers_of_two_and_cover_all_rows() {
        let sizes = |rows: usize| chunks(&vec![(); rows]).map(<[()]>::len).collect::<Vec<_>>();
        assert!(sizes(0).is_empty());
        assert_eq!(sizes(1), [1]);
        assert_eq!(sizes(217), [128, 64, 16, 8, 1]);
        assert_eq!(sizes(1_100), [512, 512, 64, 8, 4]);
        let rows: Vec<u32> = (0..777).collect();
        assert_eq!(chunks(&rows).flatten().copied().collect::<Vec<_>>(), rows);
    }
}

//! Medians and tables.

use std::fmt;

/// The median, the lower one of two. NaN without values, so that a table shows the gap.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or(f64::NAN)
}

/// The values below which a quarter and three quarters of all values are. NaN without values.
pub fn quartiles(values: impl IntoIterator<Item = f64>) -> [f64; 2] {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let last = values.len().saturating_sub(1);
    [last / 4, last - last / 4].map(|index| values.get(index).copied().unwrap_or(f64::NAN))
}

/// The median of the ratios of each round. Figures of one round are comparable, because the load of the machine was the
/// same.
pub fn median_ratio(of: impl IntoIterator<Item = f64>, to: impl IntoIterator<Item = f64>) -> f64 {
    median(of.into_iter().zip(to).map(|(of, to)| of / to))
}

/// A table for a terminal: the first column left-aligned, the others right-aligned.
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new<S: Into<String>>(header: impl IntoIterator<Item = S>) -> Self {
        let mut table = Self { rows: Vec::new() };
        table.row(header);
        table
    }

    pub fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    fn width(&self, column: usize) -> usize {
        self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for row in &self.rows {
            for (column, cell) in row.iter().enumerate() {
                let width = self.width(column);
                if column == 0 { write!(f, "{cell:<width$}")? } else { write!(f, "  {cell:>width$}")? }
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

/// Figures with their targets.
#[derive(Default)]
pub struct Targets(Vec<[String; 4]>);

impl Targets {
    pub fn at_most(&mut self, what: impl Into<String>, measured: f64, most: f64) {
        self.push(what, measured, most, format!("<= {most}"), measured <= most);
    }

    pub fn at_least(&mut self, what: impl Into<String>, measured: f64, least: f64) {
        self.push(what, measured, least, format!(">= {least}"), measured >= least);
    }

    fn push(&mut self, what: impl Into<String>, measured: f64, bound: f64, target: String, holds: bool) {
        let verdict = if holds { "holds" } else { "MISSED" };
        // Enough digits to compare it with a small bound.
        let digits = if bound > 0.0 && bound < 0.1 { 4 } else { 2 };
        self.0.push([what.into(), format!("{measured:.digits$}"), target, verdict.into()]);
    }
}

impl fmt::Display for Targets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new(["target", "measured", "should be", ""]);
        self.0.iter().for_each(|row| table.row(row.clone()));
        table.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_ignores_one_wild_round() {
        assert!((median([9.0, 10.0, 500.0]) - 10.0).abs() < f64::EPSILON);
        assert!(median([]).is_nan());
    }

    #[test]
    fn quartiles_enclose_the_middle_half() {
        let [low, high] = quartiles([5.0, 1.0, 4.0, 2.0, 3.0]);
        assert!((low - 2.0).abs() < f64::EPSILON && (high - 4.0).abs() < f64::EPSILON);
        assert!(quartiles([]).iter().all(|quartile| quartile.is_nan()));
    }

    #[test]
    fn ratio_is_taken_inside_each_round() {
        // The machine was twice as slow in the second round, for both.
        assert!((median_ratio([20.0, 40.0], [10.0, 20.0]) - 2.0).abs() < f64::EPSILON);
    }
}

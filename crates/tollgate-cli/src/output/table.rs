//! Aligned columns.

use super::{Output, Style, escape};

/// A cell of a table.
pub(crate) struct Cell {
    text: String,
    style: Style,
}

impl Cell {
    pub(crate) fn styled(style: Style, text: impl AsRef<str>) -> Self {
        Cell { text: escape(text.as_ref()), style }
    }
}

impl<T: AsRef<str>> From<T> for Cell {
    fn from(text: T) -> Self {
        Cell::styled(Style::Plain, text)
    }
}

/// Rows of cells.
pub(crate) struct Table {
    rows: Vec<Vec<Cell>>,
}

impl Table {
    pub(crate) fn new(headings: &[&str]) -> Self {
        Table { rows: vec![headings.iter().map(|text| Cell::styled(Style::Heading, text)).collect()] }
    }

    pub(crate) fn without_headings() -> Self {
        Table { rows: Vec::new() }
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = Cell>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// The table as lines of text.
    pub(crate) fn render(&self, output: &Output) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.text.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut blank = 0;
            for (cell, width) in row.iter().zip(&widths) {
                let length = cell.text.chars().count();
                if length > 0 {
                    text.extend(std::iter::repeat_n(' ', blank));
                    text.push_str(&output.paint(cell.style, &cell.text));
                    blank = 0;
                }
                // Written before the next cell, so that lines have no trailing spaces.
                blank += width - length + 2;
            }
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Color;

    fn render(color: Color) -> String {
        let mut table = Table::new(&["RULE", "N", "WHY"]);
        table.row(["a".into(), Cell::styled(Style::Good, "100"), "".into()]);
        table.row(["grüße".into(), "".into(), "x\ny".into()]);
        table.render(&Output::new(false, color))
    }

    #[test]
    fn columns_align_without_trailing_spaces() {
        assert_eq!(render(Color::Never), "RULE   N    WHY\na      100\ngrüße       x\\ny\n");
    }

    #[test]
    fn colors_do_not_shift_columns() {
        let painted = render(Color::Always);
        assert!(painted.contains("a      \x1b[32m100\x1b[0m\n"), "{painted:?}");
    }
}

//! Columns that line up.

use crate::output::{Output, Style, escape};

/// A text in a table.
pub(crate) struct Cell {
    text: String,
    style: Style,
}

impl Cell {
    /// A text in a style.
    pub(crate) fn styled(style: Style, text: impl AsRef<str>) -> Self {
        Cell { text: escape(text.as_ref()), style }
    }
}

impl<T: AsRef<str>> From<T> for Cell {
    fn from(text: T) -> Self {
        Cell::styled(Style::Plain, text)
    }
}

/// Rows of cells under headings.
pub(crate) struct Table {
    rows: Vec<Vec<Cell>>,
}

impl Table {
    pub(crate) fn new(headings: &[&str]) -> Self {
        Table { rows: vec![headings.iter().map(|text| Cell::styled(Style::Heading, text)).collect()] }
    }

    /// Without headings.
    pub(crate) fn plain() -> Self {
        Table { rows: Vec::new() }
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = Cell>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// The table as lines; the last column is as wide as it wants to be.
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
                // Only written before the next text, so that no line ends in spaces.
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
    use crate::args::Color;

    fn render(color: Color) -> String {
        let mut table = Table::new(&["RULE", "N", "WHY"]);
        table.row(["a".into(), Cell::styled(Style::Good, "100"), "".into()]);
        table.row(["grüße".into(), "".into(), "x\ny".into()]);
        table.render(&Output::new(false, color))
    }

    #[test]
    fn columns_line_up_and_no_line_ends_in_spaces() {
        assert_eq!(render(Color::Never), "RULE   N    WHY\na      100\ngrüße       x\\ny\n");
    }

    #[test]
    fn colours_do_not_move_columns() {
        let painted = render(Color::Always);
        assert!(painted.contains("a      \x1b[32m100\x1b[0m\n"), "{painted:?}");
    }
}

//! Aligned columns that fit the terminal.
//!
//! Without a terminal, lines are as long as they need to be, unless `COLUMNS` is set. Otherwise a table that is too wide
//! first loses its optional columns, then wraps cells at words, and is last shown as one block of lines per row. No cell
//! is ever cut.

use super::{Output, Style, escape};

/// The gap between two columns.
const GAP: usize = 2;
/// Columns are not made narrower than this: text of one word per line is hard to read.
const READABLE: usize = 12;

/// A cell of a table.
pub(crate) struct Cell {
    text: String,
    style: Style,
}

impl Cell {
    pub(crate) fn styled(style: Style, text: impl AsRef<str>) -> Self {
        Cell { text: escape(text.as_ref()), style }
    }

    fn width(&self) -> usize {
        self.text.chars().count()
    }

    /// The width of its longest word.
    fn word_width(&self) -> usize {
        self.text.split(' ').map(|word| word.chars().count()).max().unwrap_or(0)
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
    has_headings: bool,
    /// Columns that a narrow terminal can do without, the least important first.
    optional: Vec<usize>,
}

impl Table {
    pub(crate) fn new(headings: &[&str]) -> Self {
        let row = headings.iter().map(|text| Cell::styled(Style::Heading, text)).collect();
        Table { rows: vec![row], has_headings: true, optional: Vec::new() }
    }

    pub(crate) fn without_headings() -> Self {
        Table { rows: Vec::new(), has_headings: false, optional: Vec::new() }
    }

    /// Marks columns as optional by their headings, the least important first.
    pub(crate) fn optional(mut self, headings: &[&str]) -> Self {
        let position = |heading: &&str| self.rows.first()?.iter().position(|cell| cell.text == *heading);
        self.optional = headings.iter().filter_map(position).collect();
        self
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = Cell>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// The table as lines of text.
    pub(crate) fn render(&self, output: &Output) -> String {
        let all = self.kept(0);
        let Some(width) = output.width() else { return self.lines(&all, &self.natural(&all), output) };
        let dropped = 0..=self.optional.len();
        for kept in dropped.clone().map(|count| self.kept(count)) {
            let widths = self.natural(&kept);
            if total(&widths) <= width {
                return self.lines(&kept, &widths, output);
            }
        }
        for kept in dropped.map(|count| self.kept(count)) {
            if let Some(widths) = self.shrunk(&kept, width) {
                return self.lines(&kept, &widths, output);
            }
        }
        if self.has_headings {
            self.blocks(width, output)
        } else {
            self.lines(&all, &self.natural(&all), output)
        }
    }

    /// The columns that are left without the first optional ones.
    fn kept(&self, dropped: usize) -> Vec<usize> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        (0..columns).filter(|column| !self.optional[..dropped].contains(column)).collect()
    }

    fn cells(&self, column: usize) -> impl Iterator<Item = &Cell> {
        self.rows.iter().filter_map(move |row| row.get(column))
    }

    fn natural(&self, columns: &[usize]) -> Vec<usize> {
        columns.iter().map(|column| self.cells(*column).map(Cell::width).max().unwrap_or(0)).collect()
    }

    /// Widths with which the columns fit if their cells are wrapped at words.
    fn shrunk(&self, columns: &[usize], width: usize) -> Option<Vec<usize>> {
        let mut widths = self.natural(columns);
        let word = |column: &usize| self.cells(*column).map(Cell::word_width).max().unwrap_or(0);
        let least: Vec<usize> = columns
            .iter()
            .zip(&widths)
            .map(|(column, natural)| word(column).max(READABLE.min(*natural)))
            .collect();
        if total(&least) > width {
            return None;
        }
        while total(&widths) > width {
            let spare = (0..widths.len()).filter(|n| widths[*n] > least[*n]);
            let widest = spare.max_by_key(|n| widths[*n])?;
            widths[widest] -= 1;
        }
        Some(widths)
    }

    fn lines(&self, columns: &[usize], widths: &[usize], output: &Output) -> String {
        let empty = Cell::from("");
        let mut text = String::new();
        for row in &self.rows {
            let cells: Vec<&Cell> = columns.iter().map(|column| row.get(*column).unwrap_or(&empty)).collect();
            let wrapped: Vec<Vec<String>> =
                cells.iter().zip(widths).map(|(cell, width)| wrap(&cell.text, *width)).collect();
            let height = wrapped.iter().map(Vec::len).max().unwrap_or(1);
            for line in 0..height {
                let pieces = wrapped.iter().map(|pieces| pieces.get(line).map_or("", String::as_str));
                push_line(&mut text, pieces.zip(&cells).zip(widths), output);
            }
        }
        text
    }

    /// One block per row: a line for each cell that is not empty.
    fn blocks(&self, width: usize, output: &Output) -> String {
        let Some((headings, rows)) = self.rows.split_first() else { return String::new() };
        let margin = headings.iter().map(Cell::width).max().unwrap_or(0) + GAP;
        let mut blocks = Vec::new();
        for row in rows {
            let mut block = String::new();
            for (heading, cell) in headings.iter().zip(row).filter(|(_, cell)| !cell.text.is_empty()) {
                let mut label = output.paint(Style::Heading, &heading.text);
                label.extend(std::iter::repeat_n(' ', margin - heading.width()));
                for piece in wrap(&cell.text, width.saturating_sub(margin)) {
                    block.push_str(&label);
                    block.push_str(&output.paint(cell.style, &piece));
                    block.push('\n');
                    label = " ".repeat(margin);
                }
            }
            blocks.push(block);
        }
        blocks.join("\n")
    }
}

/// The width of a line.
fn total(widths: &[usize]) -> usize {
    widths.iter().sum::<usize>() + GAP * widths.len().saturating_sub(1)
}

/// Adds one line without trailing spaces.
fn push_line<'a>(
    text: &mut String,
    pieces: impl Iterator<Item = ((&'a str, &'a &'a Cell), &'a usize)>,
    output: &Output,
) {
    let mut blank = 0;
    for ((piece, cell), width) in pieces {
        let length = piece.chars().count();
        if length > 0 {
            text.extend(std::iter::repeat_n(' ', blank));
            text.push_str(&output.paint(cell.style, piece));
            blank = 0;
        }
        // Written before the next cell.
        blank += width.saturating_sub(length) + GAP;
    }
    text.push('\n');
}

/// The text in lines of this width, broken at spaces. A longer word has a line of its own.
pub(crate) fn wrap(text: &str, width: usize) -> Vec<String> {
    if text.chars().count() <= width {
        return vec![text.to_owned()];
    }
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
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

    #[test]
    fn narrow_table_drops_then_wraps_then_stacks() {
        let mut table = Table::new(&["RULE", "VERSION", "WHY"]).optional(&["VERSION"]);
        table.row(["free".into(), "12".into(), "matches the request".into()]);
        let shown = |width| table.render(&Output::new(false, Color::Never).with_width(width));
        assert_eq!(shown(40), "RULE  VERSION  WHY\nfree  12       matches the request\n");
        assert_eq!(shown(30), "RULE  WHY\nfree  matches the request\n");
        assert_eq!(shown(20), "RULE  WHY\nfree  matches the\n      request\n");
        assert_eq!(
            shown(16),
            "RULE     free\nVERSION  12\nWHY      matches\n         the\n         request\n"
        );
    }
}

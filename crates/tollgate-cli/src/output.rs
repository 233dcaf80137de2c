//! Everything that a command prints.
//!
//! A closed pipe (`tollgate rules list f | head -1`) is not an error. Text may come from clients or from a server, so
//! characters that control a terminal are escaped before they are printed.

pub(crate) mod changes;
pub(crate) mod decision;
pub(crate) mod format;
pub(crate) mod progress;
pub(crate) mod record;
pub(crate) mod rule;
pub(crate) mod table;
pub(crate) mod toml;

use std::io::{self, IsTerminal, Write};

pub(crate) use clap::ColorChoice as Color;
use serde_json::Value;

use crate::Exit;

/// The meaning of a piece of text, which decides its color.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    Plain,
    /// Admitted, passed, created.
    Good,
    /// Refused, failed, deleted.
    Bad,
    Warning,
    Heading,
    Faint,
}

/// Prints results to standard output, and messages to standard error.
pub(crate) struct Output {
    json: bool,
    stdout_colors: bool,
    stderr_colors: bool,
    /// The width that tables must fit; none for a file or a pipe.
    width: Option<usize>,
}

impl Output {
    pub(crate) fn new(json: bool, color: Color) -> Self {
        let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let colors = |terminal: bool| match color {
            Color::Auto => terminal && wanted,
            Color::Always => true,
            Color::Never => false,
        };
        Output {
            json,
            stdout_colors: colors(io::stdout().is_terminal()),
            stderr_colors: colors(io::stderr().is_terminal()),
            width: line_width(),
        }
    }

    /// The same output for lines of this width.
    #[cfg(test)]
    pub(crate) fn with_width(self, width: usize) -> Self {
        Output { width: Some(width), ..self }
    }

    /// The width that tables must fit, if any.
    pub(crate) fn width(&self) -> Option<usize> {
        self.width
    }

    /// Whether standard output has colors.
    pub(crate) fn has_colors(&self) -> bool {
        self.stdout_colors
    }

    /// Whether `--json` was given.
    pub(crate) fn json(&self) -> bool {
        self.json
    }

    /// A line of text, wrapped at words if it must fit a width.
    pub(crate) fn wrapped(&self, line: &str) -> String {
        let pieces = self.width.map_or_else(|| vec![line.to_owned()], |width| table::wrap(line, width));
        pieces.join("\n") + "\n"
    }

    /// Prints text unchanged.
    pub(crate) fn text(&self, text: &str) -> io::Result<()> {
        self.bytes(text.as_bytes())
    }

    /// Prints a server's response: with `--json` its body unchanged, otherwise `text`.
    pub(crate) fn response(&self, body: &str, text: impl FnOnce() -> String) -> io::Result<Exit> {
        self.text(&if self.json { format!("{}\n", body.trim_end()) } else { text() })?;
        Ok(Exit::Ok)
    }

    /// Prints the result of a command: `json` with `--json`, otherwise `text`.
    pub(crate) fn result(
        &self,
        json: impl FnOnce() -> Value,
        text: impl FnOnce() -> String,
    ) -> io::Result<Exit> {
        self.text(&if self.json { format!("{:#}\n", json()) } else { text() })?;
        Ok(Exit::Ok)
    }

    /// Prints bytes unchanged. A closed pipe is not an error.
    pub(crate) fn bytes(&self, bytes: &[u8]) -> io::Result<()> {
        match self.write(bytes) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            result => result,
        }
    }

    /// Prints a secret that cannot be shown again. Here a closed pipe is an error.
    pub(crate) fn secret(&self, text: &str) -> io::Result<()> {
        self.write(text.as_bytes())
    }

    #[allow(clippy::unused_self, reason = "only the holder of an output may print")]
    fn write(&self, bytes: &[u8]) -> io::Result<()> {
        let mut stdout = io::stdout().lock();
        stdout.write_all(bytes).and_then(|()| stdout.flush())
    }

    /// Prints a note to standard error.
    pub(crate) fn note(&self, text: &str) {
        let mut stderr = io::stderr().lock();
        let _ = writeln!(stderr, "{}", paint(self.stderr_colors, Style::Faint, &escape_lines(text)));
    }

    /// Prints a warning to standard error.
    pub(crate) fn warning(&self, text: &str) {
        self.message(Style::Warning, "warning:", text);
    }

    /// Prints the warnings of a server's response to standard error; with `--json` they are in the response.
    pub(crate) fn warnings(&self, body: &Value) {
        let warnings = body["warnings"].as_array().filter(|_| !self.json);
        for warning in warnings.into_iter().flatten().filter_map(Value::as_str) {
            self.warning(warning);
        }
    }

    /// Prints an error to standard error.
    pub(crate) fn error(&self, text: &str) {
        self.message(Style::Bad, "error:", text);
    }

    /// A failed write to standard error is ignored: the exit code still reports the outcome.
    fn message(&self, style: Style, label: &str, text: &str) {
        let label = paint(self.stderr_colors, style, label);
        let _ = writeln!(io::stderr().lock(), "{label} {}", escape_lines(text));
    }

    /// The text in the color of its style, if standard output has colors.
    pub(crate) fn paint(&self, style: Style, text: &str) -> String {
        paint(self.stdout_colors, style, text)
    }
}

/// `COLUMNS`, or the width of the terminal that standard output is.
fn line_width() -> Option<usize> {
    let given = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    let of_terminal = || Some(usize::from(terminal_size::terminal_size_of(io::stdout())?.0.0));
    given.or_else(of_terminal).filter(|width| *width > 0)
}

fn paint(colors: bool, style: Style, text: &str) -> String {
    let code = match style {
        Style::Plain => return text.to_owned(),
        Style::Good => "32",
        Style::Bad => "31",
        Style::Warning => "33",
        Style::Heading => "1",
        Style::Faint => "2",
    };
    if colors && !text.is_empty() { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
}

/// Whether a terminal would interpret the character instead of showing it.
pub(crate) fn is_unprintable(c: char) -> bool {
    c.is_control() || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The text with unprintable characters escaped.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if is_unprintable(c) { escaped.extend(c.escape_default()) } else { escaped.push(c) }
    }
    escaped
}

fn escape_lines(text: &str) -> String {
    text.lines().map(escape).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminal_control_characters_are_escaped() {
        assert_eq!(escape("a\x1b[31mb\r\n\u{202e}é"), "a\\u{1b}[31mb\\r\\n\\u{202e}é");
    }

    #[test]
    fn text_without_colors_is_unchanged() {
        assert_eq!(paint(false, Style::Bad, "refused"), "refused");
        assert_eq!(paint(true, Style::Bad, "refused"), "\x1b[31mrefused\x1b[0m");
    }
}

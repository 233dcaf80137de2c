//! Everything the command prints leaves through here.
//!
//! Whoever reads us may stop at any time (`tollgate rules list f | head -1`): a closed pipe means that enough was
//! read, which is no error. Texts may come from clients or from a server, so what could steer a terminal is escaped
//! before it is printed.

use std::io::{self, IsTerminal, Write};

use serde::Serialize;

use crate::args::Color;
use crate::exit::Exit;
use crate::failure::Failure;

/// How a piece of text is meant.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    /// As the rest.
    Plain,
    /// Admitted, passed.
    Good,
    /// Refused, failed.
    Bad,
    /// Worth a look.
    Warning,
    /// A heading.
    Heading,
    /// Less important.
    Faint,
}

/// Where and how to print.
pub(crate) struct Output {
    json: bool,
    colors: bool,
    colors_on_error: bool,
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
            colors: colors(io::stdout().is_terminal()),
            colors_on_error: colors(io::stderr().is_terminal()),
        }
    }

    /// Whether JSON is wanted in place of text.
    pub(crate) fn json(&self) -> bool {
        self.json
    }

    /// Prints a text as it is.
    pub(crate) fn text(&self, text: &str) -> Result<(), Failure> {
        self.bytes(text.as_bytes())
    }

    /// Prints a value as JSON.
    pub(crate) fn value(&self, value: &impl Serialize) -> Result<(), Failure> {
        let mut text = serde_json::to_string_pretty(value).map_err(|error| Failure::Write(error.into()))?;
        text.push('\n');
        self.text(&text)
    }

    /// Prints bytes as they are. A reader that has gone is no error.
    #[allow(clippy::unused_self, reason = "an output is what entitles a command to print")]
    pub(crate) fn bytes(&self, bytes: &[u8]) -> Result<(), Failure> {
        let mut stdout = io::stdout().lock();
        match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::Write(error)),
            _ => Ok(()),
        }
    }

    /// Prints what is told once and never again: a reader that has gone is an error here.
    #[allow(clippy::unused_self, reason = "an output is what entitles a command to print")]
    pub(crate) fn once(&self, text: &str) -> io::Result<()> {
        let mut stdout = io::stdout().lock();
        stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush())
    }

    /// Says something beside the answer, on the error stream.
    pub(crate) fn note(&self, text: &str) {
        let mut stderr = io::stderr().lock();
        let _ = writeln!(stderr, "{}", paint(self.colors_on_error, Style::Faint, &escape_lines(text)));
    }

    /// Says what somebody should think about, on the error stream.
    pub(crate) fn warning(&self, text: &str) {
        let label = paint(self.colors_on_error, Style::Warning, "warning:");
        let _ = writeln!(io::stderr().lock(), "{label} {}", escape_lines(text));
    }

    /// Says what went wrong: in words for people, and where JSON is wanted also as JSON for the program that reads.
    pub(crate) fn failure(&self, failure: &Failure) -> Exit {
        let label = paint(self.colors_on_error, Style::Bad, "error:");
        let mut stderr = io::stderr().lock();
        // With nobody left to read the complaint, the exit code still tells.
        let _ = writeln!(stderr, "{label} {}", escape_lines(&failure.to_string()));
        if self.json {
            let _ = self.text(&failure.to_json());
        }
        Exit::Error
    }

    /// The text in the colours of its style, if colours are wanted.
    pub(crate) fn paint(&self, style: Style, text: &str) -> String {
        paint(self.colors, style, text)
    }
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

/// Whether a terminal would act upon it.
pub(crate) fn steers(c: char) -> bool {
    c.is_control() || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The text with everything escaped that a terminal would act upon.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if steers(c) { escaped.extend(c.escape_default()) } else { escaped.push(c) }
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
    fn what_steers_a_terminal_is_escaped() {
        assert_eq!(escape("a\x1b[31mb\r\n\u{202e}é"), "a\\u{1b}[31mb\\r\\n\\u{202e}é");
    }

    #[test]
    fn without_colours_a_painted_text_is_the_text() {
        assert_eq!(paint(false, Style::Bad, "refused"), "refused");
        assert_eq!(paint(true, Style::Bad, "refused"), "\x1b[31mrefused\x1b[0m");
    }
}

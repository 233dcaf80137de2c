//! How far a long command is: a bar on a terminal, a line per step otherwise, nothing with `--json`.

use std::io::{self, IsTerminal as _};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::{Output, escape};

/// Progress on standard error.
pub(crate) struct Progress<'a> {
    output: &'a Output,
    /// None if standard error is not a terminal.
    bar: Option<ProgressBar>,
}

impl<'a> Progress<'a> {
    pub(crate) fn new(output: &'a Output) -> Self {
        let is_shown = io::stderr().is_terminal() && !output.json();
        Progress {
            output,
            bar: is_shown.then(|| ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr())),
        }
    }

    /// Shows how much of a step is done.
    pub(crate) fn advance(&mut self, text: &str, done: u64, of: u64) {
        if let Some(bar) = &self.bar {
            bar.set_style(style("[{bar:30}] {percent:>3}% {wide_msg}"));
            bar.set_length(of);
            bar.set_position(done.min(of));
            bar.set_message(escape(text));
        }
    }

    /// Shows a step whose end is not known.
    pub(crate) fn count(&mut self, text: &str) {
        if let Some(bar) = &self.bar {
            bar.set_style(style("{wide_msg}"));
            bar.set_message(escape(text));
            bar.tick();
        }
    }

    /// Prints a step that is done.
    pub(crate) fn line(&mut self, text: &str) {
        if !self.output.json() {
            self.suspend(|| self.output.note(text));
        }
    }

    /// Prints something else in between.
    pub(crate) fn suspend(&self, print: impl FnOnce()) {
        match &self.bar {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }
}

impl Drop for Progress<'_> {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

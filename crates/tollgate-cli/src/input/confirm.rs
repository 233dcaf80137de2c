//! Confirmation before something is deleted.

use std::io::{self, BufRead, IsTerminal, Write};

use clap::Args;

use crate::CliError;
use crate::output::escape;

/// The flag that skips the question.
#[derive(Args)]
pub(crate) struct ConfirmArgs {
    /// Do not ask for confirmation
    #[arg(long, short)]
    yes: bool,
}

impl ConfirmArgs {
    /// Asks the user. Without a terminal there is nobody to ask, which is an error.
    pub(crate) fn confirmed(&self, action: &str) -> Result<bool, CliError> {
        if self.yes {
            return Ok(true);
        }
        if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
            return Err(CliError::Unconfirmed { action: action.to_owned() });
        }
        Ok(ask(action, &mut io::stdin().lock(), &mut io::stderr().lock())?)
    }
}

/// Asks on standard error, so that standard output holds only the result.
fn ask(action: &str, answers: &mut impl BufRead, questions: &mut impl Write) -> io::Result<bool> {
    write!(questions, "{}? [y/N] ", escape(action))?;
    questions.flush()?;
    let mut line = String::new();
    answers.read_line(&mut line)?;
    let confirmed = matches!(line.trim().to_ascii_lowercase().as_str(), "y" | "yes");
    if !confirmed {
        writeln!(questions, "nothing was changed")?;
    }
    Ok(confirmed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_yes_confirms() {
        let asked = |answer: &str| {
            let mut shown = Vec::new();
            (
                ask("delete rule a", &mut answer.as_bytes(), &mut shown).unwrap(),
                String::from_utf8(shown).unwrap(),
            )
        };
        for answer in ["y\n", "Y\n", "yes\n", " YES \r\n"] {
            assert_eq!(asked(answer), (true, "delete rule a? [y/N] ".to_owned()), "{answer:?}");
        }
        for answer in ["", "\n", "n\n", "yess\n", "delete\n"] {
            assert!(!asked(answer).0, "{answer:?}");
            assert!(asked(answer).1.ends_with("nothing was changed\n"));
        }
    }
}

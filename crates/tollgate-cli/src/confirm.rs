//! Asks before something is destroyed.

use std::io::{self, BufRead, IsTerminal, Write};

use clap::Args;

use crate::failure::Failure;
use crate::output::escape;

/// Whether to ask.
#[derive(Args)]
pub(crate) struct Confirm {
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
}

impl Confirm {
    /// Whether the person at the terminal agrees. Without a terminal there is nobody to ask, and silence is no consent.
    pub(crate) fn agreed(&self, act: &str) -> Result<bool, Failure> {
        if self.yes {
            return Ok(true);
        }
        if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
            return Err(Failure::Unconfirmed { act: act.to_owned() });
        }
        ask(act, &mut io::stdin().lock(), &mut io::stderr().lock()).map_err(Failure::Write)
    }
}

/// Asks on the error stream, so that the answer on standard output stays the answer.
fn ask(act: &str, answers: &mut impl BufRead, questions: &mut impl Write) -> io::Result<bool> {
    write!(questions, "{}? [y/N] ", escape(act))?;
    questions.flush()?;
    let mut line = String::new();
    answers.read_line(&mut line)?;
    let agreed = matches!(line.trim().to_ascii_lowercase().as_str(), "y" | "yes");
    if !agreed {
        writeln!(questions, "nothing was changed")?;
    }
    Ok(agreed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_plain_yes_is_consent() {
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

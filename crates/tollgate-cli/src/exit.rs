//! What the process answers to whoever started it.

use std::process::ExitCode;

/// How a command ended.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Admitted, passed, done.
    Ok,
    /// Refused or blocked, or a test did not pass: an answer, not a mistake.
    Refused,
    /// Something is wrong: the arguments, a file, the server or the way to it.
    Error,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(match exit {
            Exit::Ok => 0,
            Exit::Refused => 1,
            Exit::Error => 2,
        })
    }
}

//! Exit codes.

use std::process::ExitCode;

/// How a command ended.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Admitted, passed or done.
    Ok,
    /// Refused, blocked, a failed test, or a declined confirmation.
    Refused,
    /// The arguments, a file, the server or the connection are at fault.
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

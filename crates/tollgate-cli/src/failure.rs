//! Why a command could not do what it was asked: always exit code 2.

use std::io;

use serde_json::json;
use tollgate::config::{Origin, Problem, Problems};
use tollgate_server::config::settings::SettingsError;
use tollgate_server::runtime::serve::ServeError;
use tollgate_stores::sql::DatabaseError;

use crate::client::ClientError;

/// What went wrong.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// A file could not be read: look at its name and permissions.
    #[error("{path}: {source}")]
    Read {
        /// The file.
        path: String,
        /// What the system says.
        source: io::Error,
    },
    /// A file was read and has mistakes: correct them.
    #[error("{path} has {}\n{}", counted(problems.0.len(), "mistake"), Mistakes { path, problems })]
    Mistakes {
        /// The file.
        path: String,
        /// All that is wrong with it.
        problems: Problems,
    },
    /// The answer could not be written: a full disk, say.
    #[error("cannot write: {0}")]
    Write(#[source] io::Error),
    /// A file could not be written: look at its folder and its permissions.
    #[error("cannot write {path}: {source}")]
    WriteFile {
        /// The file or folder.
        path: String,
        /// What the system says.
        source: io::Error,
    },
    /// The settings have mistakes, or their file could not be read.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The service could not run.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// The database could not be reached, or its schema not be changed.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// The system gives no threads or no event queue.
    #[error("cannot start: {0}")]
    Runtime(#[source] io::Error),
    /// Nobody could be asked whether to go on: say so with `--yes`.
    #[error("to {act}, somebody must agree, and there is no terminal to ask on: pass --yes")]
    Unconfirmed {
        /// What would be done.
        act: String,
    },
    /// A file with a key that others may read, or a file that leads to a key and that others may write.
    #[error(
        "{path} has a key in it or leads to one, and others have access to it (mode {mode:03o}): run `chmod 600 {path}`"
    )]
    OpenToOthers {
        /// The file.
        path: String,
        /// Its permissions.
        mode: u32,
    },
    /// A key was made, and nobody was there to read it.
    #[error("key {id} was made and could not be printed ({source}): revoke it, and make another")]
    Unread {
        /// Which key.
        id: String,
        /// Why not.
        source: io::Error,
    },
    /// Arguments that are each fine and make no sense together or with what they name.
    #[error("{0}")]
    Arguments(String),
    /// Somebody else changed the configuration between our plan and our writing.
    #[error(
        "the configuration was changed by somebody else since the plan was made: nothing was done, run it again"
    )]
    Overtaken,
    /// The server could not be asked, or answered with an error.
    #[error(transparent)]
    Client(#[from] ClientError),
}

impl Failure {
    /// The same as JSON: the server's own envelope if there is one, else an envelope like it.
    pub(crate) fn to_json(&self) -> String {
        if let Failure::Client(ClientError::Api(error)) = self {
            return format!("{}\n", error.text.trim_end());
        }
        let code = match self {
            Failure::Read { .. }
            | Failure::Mistakes { .. }
            | Failure::WriteFile { .. }
            | Failure::Settings(_)
            | Failure::Unconfirmed { .. }
            | Failure::OpenToOthers { .. }
            | Failure::Client(ClientError::Tls(_))
            | Failure::Arguments(_) => "INVALID_INPUT",
            Failure::Overtaken => "PRECONDITION_FAILED",
            Failure::Write(_) | Failure::Unread { .. } | Failure::Serve(_) | Failure::Runtime(_) => {
                "INTERNAL_ERROR"
            }
            Failure::Client(_) | Failure::Database(_) => "SERVICE_UNAVAILABLE",
        };
        let mut error = json!({ "code": code, "message": self.to_string() });
        if let Failure::Mistakes { problems, .. } = self {
            error["problems"] = problems.0.iter().map(problem_json).collect();
        }
        format!("{:#}\n", json!({ "error": error }))
    }
}

/// `1 mistake`, `2 mistakes`.
pub(crate) fn counted(count: usize, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

/// One mistake as JSON.
pub(crate) fn problem_json(problem: &Problem) -> serde_json::Value {
    let line = match problem.origin {
        Origin::Line(line) => Some(line),
        Origin::Named(_) => None,
    };
    json!({ "line": line, "key": problem.key, "reason": problem.reason })
}

/// Mistakes as editors and compilers write them: `file:line: key: reason`, one to a line.
pub(crate) struct Mistakes<'a> {
    pub(crate) path: &'a str,
    pub(crate) problems: &'a Problems,
}

impl std::fmt::Display for Mistakes<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (number, Problem { origin, key, reason }) in self.problems.0.iter().enumerate() {
            let end = if number == 0 { "" } else { "\n" };
            // One mistake, one line: a parser's message may have several.
            let reason = reason.replace('\n', "; ");
            let gap = if key.is_empty() { "" } else { ": " };
            match origin {
                Origin::Line(line) => write!(f, "{end}{}:{line}: {key}{gap}{reason}", self.path)?,
                Origin::Named(name) => write!(f, "{end}{}: {name}: {key}{gap}{reason}", self.path)?,
            }
        }
        Ok(())
    }
}

//! Why a command failed. The exit code is always 2.

use std::io;

use serde_json::json;
use tollgate::config::{Origin, Problem, Problems};
use tollgate_server::config::settings::SettingsError;
use tollgate_server::runtime::backup::BackupError;
use tollgate_server::runtime::serve::ServeError;
use tollgate_stores::archive::ArchiveError;
use tollgate_stores::sql::DatabaseError;

use crate::client::ClientError;
use crate::output::format::plural;
use crate::{Exit, Output};

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CliError {
    /// A file cannot be read: check its name and permissions.
    #[error("{path}: {source}")]
    Read { path: String, source: io::Error },
    /// A file has errors: correct them.
    #[error("{path} has {}\n{}", plural(problems.0.len(), "error"), ProblemLines { path, problems })]
    Invalid { path: String, problems: Problems },
    /// Standard output cannot be written.
    #[error("cannot write output: {0}")]
    Write(#[from] io::Error),
    /// A file cannot be written: check its folder and permissions.
    #[error("cannot write {path}: {source}")]
    WriteFile { path: String, source: io::Error },
    /// The settings have errors, or their file cannot be read.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The service cannot run.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// The database is unreachable, or its schema cannot be changed.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// The archive is unreachable, damaged, or in use by another process.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// A backup cannot be made or restored.
    #[error(transparent)]
    Backup(#[from] BackupError),
    /// The async runtime cannot start.
    #[error("cannot start the runtime: {0}")]
    Runtime(#[source] io::Error),
    /// The command needs a confirmation and there is no terminal: pass `--yes`.
    #[error("confirmation required to {action}, but stdin or stderr is not a terminal: pass --yes")]
    Unconfirmed { action: String },
    /// A file with a key can be read by others, or a file that names one can be written by others.
    #[error(
        "{path} contains or names a key and is accessible by other users (mode {mode:03o}): run `chmod 600 {path}`"
    )]
    InsecurePermissions { path: String, mode: u32 },
    /// A key was created and could not be printed.
    #[error("key {id} was created but could not be printed ({source}): revoke it and create another")]
    KeyNotPrinted { id: String, source: io::Error },
    /// Arguments that are valid one by one, but not together.
    #[error("{0}")]
    Arguments(String),
    /// Another change was written between plan and apply.
    #[error("the configuration changed after the plan was made: nothing was applied, run the command again")]
    Conflict,
    /// The server is unreachable, or returned an error.
    #[error(transparent)]
    Client(#[from] ClientError),
}

impl CliError {
    /// Prints the error to standard error, and with `--json` also to standard output.
    pub(crate) fn report(&self, output: &Output) -> Exit {
        output.error(&self.to_string());
        if output.json() {
            let _ = output.text(&self.to_json());
        }
        Exit::Error
    }

    /// The server's own error envelope, or one of the same shape.
    fn to_json(&self) -> String {
        if let CliError::Client(ClientError::Api(error)) = self {
            return format!("{}\n", error.text.trim_end());
        }
        let mut error = json!({ "code": self.code(), "message": self.to_string() });
        if let CliError::Invalid { problems, .. } = self {
            error["problems"] = problems.0.iter().map(problem_json).collect();
        }
        format!("{:#}\n", json!({ "error": error }))
    }

    fn code(&self) -> &'static str {
        match self {
            CliError::Read { .. }
            | CliError::Invalid { .. }
            | CliError::WriteFile { .. }
            | CliError::Settings(_)
            | CliError::Unconfirmed { .. }
            | CliError::InsecurePermissions { .. }
            | CliError::Client(ClientError::Tls(_))
            | CliError::Backup(_)
            | CliError::Arguments(_) => "INVALID_INPUT",
            CliError::Conflict => "PRECONDITION_FAILED",
            CliError::Write(_)
            | CliError::KeyNotPrinted { .. }
            | CliError::Serve(_)
            | CliError::Runtime(_) => "INTERNAL_ERROR",
            CliError::Client(_) | CliError::Database(_) | CliError::Archive(_) => "SERVICE_UNAVAILABLE",
        }
    }
}

/// One error of a file as JSON.
pub(crate) fn problem_json(problem: &Problem) -> serde_json::Value {
    let line = match problem.origin {
        Origin::Line(line) => Some(line),
        Origin::Named(_) => None,
    };
    json!({ "line": line, "key": problem.key, "reason": problem.reason })
}

/// The errors of a file as compilers print them: `file:line: key: reason`.
pub(crate) struct ProblemLines<'a> {
    pub(crate) path: &'a str,
    pub(crate) problems: &'a Problems,
}

impl std::fmt::Display for ProblemLines<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (number, Problem { origin, key, reason }) in self.problems.0.iter().enumerate() {
            let end = if number == 0 { "" } else { "\n" };
            // A parser's message may have several lines.
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

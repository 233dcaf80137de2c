//! Errors of settings. All of them are reported at once.

use std::fmt;
use std::io;
use std::path::PathBuf;

use tollgate::config::{Origin, Problem, Problems};

/// Why settings are invalid. [`fmt::Display`] prints one problem per line.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// The file cannot be read, is too large, is not UTF-8, or became empty. Check its name, permissions and content.
    #[error("cannot read {path}: {source}", path = path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// Settings are invalid. Correct every listed problem.
    #[error("{}", Located { file: file.as_ref(), problems })]
    Invalid {
        /// The file, if any.
        file: Option<PathBuf>,
        /// All problems.
        problems: Problems,
    },
}

impl SettingsError {
    /// One line per problem.
    pub fn lines(&self) -> Vec<String> {
        self.to_string().lines().map(str::to_owned).collect()
    }
}

/// Prints problems like a compiler: `tollgate.toml:12: key: reason`.
struct Located<'a> {
    file: Option<&'a PathBuf>,
    problems: &'a Problems,
}

impl fmt::Display for Located<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, problem) in self.problems.0.iter().enumerate() {
            f.write_str(if number == 0 { "" } else { "\n" })?;
            self.write_problem(problem, f)?;
        }
        Ok(())
    }
}

impl Located<'_> {
    fn write_problem(&self, problem: &Problem, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.file, &problem.origin) {
            (Some(file), Origin::Line(line)) => write!(f, "{}:{line}: ", file.display())?,
            (_, origin) => write!(f, "{origin}: ")?,
        }
        if !problem.key.is_empty() {
            write!(f, "{}: ", problem.key)?;
        }
        // A message of the TOML parser may have several lines.
        f.write_str(&problem.reason.replace('\n', "; "))
    }
}

//! Why settings cannot be used, in the words of an operator who wants to fix them in one go.

use std::fmt;
use std::io;
use std::path::PathBuf;

use tollgate::config::{Origin, Problem, Problems};

/// Why settings cannot be used. [`fmt::Display`] gives every problem, one a line.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// The file cannot be read: its name or its permissions are wrong.
    #[error("cannot read {path}: {source}", path = path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file is larger than any settings file.
    #[error("{path}: larger than {bytes_max} bytes", path = path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The largest that is read.
        bytes_max: u64,
    },
    /// The file is not UTF-8.
    #[error("{path}: not UTF-8 text", path = path.display())]
    NotText {
        /// The file.
        path: PathBuf,
    },
    /// The file that settings were read from has become empty.
    #[error("{path}: the file is empty", path = path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// What was written is wrong; each problem with its place.
    #[error("{}", Located { file: file.as_ref(), problems })]
    Invalid {
        /// The file, if there is one.
        file: Option<PathBuf>,
        /// Everything that is wrong.
        problems: Problems,
    },
}

impl SettingsError {
    /// Every problem as a line of its own.
    pub fn lines(&self) -> Vec<String> {
        self.to_string().lines().map(str::to_owned).collect()
    }
}

/// Problems as compilers print them, `tollgate.toml:12: key: reason`, so that editors jump to the place.
struct Located<'a> {
    file: Option<&'a PathBuf>,
    problems: &'a Problems,
}

impl fmt::Display for Located<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, problem) in self.problems.0.iter().enumerate() {
            f.write_str(if number == 0 { "" } else { "\n" })?;
            self.one(problem, f)?;
        }
        Ok(())
    }
}

impl Located<'_> {
    fn one(&self, problem: &Problem, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.file, &problem.origin) {
            (Some(file), Origin::Line(line)) => write!(f, "{}:{line}: ", file.display())?,
            (_, origin) => write!(f, "{origin}: ")?,
        }
        if !problem.key.is_empty() {
            write!(f, "{}: ", problem.key)?;
        }
        // One problem, one line: a parser's message may have several.
        f.write_str(&problem.reason.replace('\n', "; "))
    }
}

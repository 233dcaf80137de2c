//! The scripts of deploy/backup.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::commands::tool;

/// A copy of the scripts, which the user of a database server can read wherever the repository is.
pub(crate) struct Scripts(TempDir);

impl Scripts {
    pub(crate) fn install() -> Self {
        let folder = TempDir::new().unwrap();
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        for script in all() {
            fs::copy(&script, folder.path().join(script.file_name().unwrap())).unwrap();
        }
        Scripts(folder)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

fn all() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/backup");
    let files = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|end| end == "sh")).collect()
}

/// `PATH` with rclone.
pub(crate) fn search_path() -> String {
    let tools = tool("rclone");
    format!("{}:{}", tools.parent().unwrap().display(), std::env::var("PATH").unwrap())
}

/// Runs a script that must succeed; returns its output without the line end.
#[track_caller]
pub(crate) fn succeed(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
    assert!(output.status.success(), "{command:?}: {} {}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

/// Runs a script that must fail; returns its error.
#[track_caller]
pub(crate) fn fail(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(!output.status.success(), "{command:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn scripts_are_valid_and_executable() {
    assert!(all().len() >= 10);
    for script in all() {
        succeed(Command::new("bash").arg("-n").arg(&script));
        let mode = fs::metadata(&script).unwrap().permissions().mode();
        assert_eq!(mode & 0o111, 0o111, "{} is not executable", script.display());
        let text = fs::read_to_string(&script).unwrap();
        assert!(text.contains("set -euo pipefail\n"), "{}", script.display());
    }
}

//! Runs the binary, with temporary files and a mock server.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, reason = "each test file uses a part of it")]

pub mod mock_server;

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// The binary in an environment without settings for it.
pub fn tollgate() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    for name in ["TOLLGATE_URL", "TOLLGATE_KEY", "NO_COLOR", "COLUMNS", "XDG_CONFIG_HOME", "HOME"] {
        command.env_remove(name);
    }
    for name in
        ["TOLLGATE_CA_FILE", "TOLLGATE_CERT_FILE", "TOLLGATE_CERT_KEY_FILE", "SSL_CERT_FILE", "SSL_CERT_DIR"]
    {
        command.env_remove(name);
    }
    command.stdin(Stdio::null());
    command
}

/// The output and exit code of a command.
pub struct CommandOutput {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl CommandOutput {
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {}", self.stdout))
    }
}

pub fn finished(output: Output) -> CommandOutput {
    CommandOutput {
        code: output.status.code().unwrap(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

pub fn run(args: &[&str]) -> CommandOutput {
    finished(tollgate().args(args).output().unwrap())
}

/// A temporary directory with files.
pub struct Files(tempfile::TempDir);

impl Files {
    pub fn new(files: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        Files(folder)
    }

    pub fn path(&self, name: &str) -> String {
        self.file(name).to_str().unwrap().to_owned()
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

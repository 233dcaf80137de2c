//! Runs `tollgate backup` and `tollgate restore`.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tollgate_testkit::ObjectStoreServer;

use crate::harness::Service;

/// The outcome of a command.
pub(crate) struct Done {
    pub(crate) code: i32,
    pub(crate) json: Value,
    pub(crate) messages: String,
}

/// A program of the tools in `target/`.
pub(crate) fn tool(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/python/bin").join(name);
    assert!(path.exists(), "{name} is missing: run scripts/install-tools test");
    path
}

pub(crate) fn run(args: &[&str], environment: &[(&str, &str)]) -> Done {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    let output = command.args(args).arg("--json").envs(environment.iter().copied()).output().unwrap();
    Done {
        code: output.status.code().unwrap(),
        json: serde_json::from_slice(&output.stdout).unwrap_or(Value::Null),
        messages: String::from_utf8(output.stderr).unwrap(),
    }
}

/// The arguments that back up a node.
pub(crate) fn backup_args(service: &Service, to: &str) -> Vec<String> {
    let (config, data_dir) = (service.config_file(), service.data_dir());
    ["backup", "--to", to, "--config", config.to_str().unwrap(), "--data-dir", data_dir.to_str().unwrap()]
        .map(str::to_owned)
        .into()
}

/// Backs up a node and returns the place of the backup.
pub(crate) fn backup(
    service: &Service,
    to: &str,
    more: &[&str],
    environment: &[(&str, &str)],
) -> (String, Done) {
    let args = backup_args(service, to);
    let args: Vec<&str> = args.iter().map(String::as_str).chain(more.iter().copied()).collect();
    let done = run(&args, environment);
    assert_eq!(done.code, 0, "{}", done.messages);
    (done.json["backup"].as_str().unwrap().to_owned(), done)
}

/// The names of the complete backups.
pub(crate) fn list(place: &str) -> Vec<String> {
    let done = run(&["backup", "--list", "--to", place], &[]);
    assert_eq!(done.code, 0, "{}", done.messages);
    let backups = done.json["backups"].as_array().unwrap().iter();
    backups.map(|backup| backup["name"].as_str().unwrap().to_owned()).collect()
}

/// Restores into a folder, as the data directory and settings file of a service in it.
pub(crate) fn restore(backup: &str, folder: &Path, more: &[&str], environment: &[(&str, &str)]) -> Done {
    let (data_dir, config) = (folder.join("data"), folder.join("tollgate.toml"));
    let mut args = vec!["restore", backup, "--data-dir", data_dir.to_str().unwrap()];
    args.extend(["--config-out", config.to_str().unwrap()]);
    args.extend(more);
    run(&args, environment)
}

/// The environment of programs that use a bucket.
pub(crate) fn bucket_environment<'a>(endpoint: &'a str, secret: &'a str) -> [(&'static str, &'a str); 5] {
    [
        ("AWS_ACCESS_KEY_ID", ObjectStoreServer::ACCESS_KEY_ID),
        ("AWS_SECRET_ACCESS_KEY", secret),
        ("AWS_ENDPOINT_URL", endpoint),
        ("AWS_REGION", "us-east-1"),
        ("AWS_ALLOW_HTTP", "true"),
    ]
}

//! Runs commands with the URL and key of a service in the environment.

use crate::harness::{Service, wait_for};
use crate::support::{CommandOutput, finished, tollgate};

pub(crate) struct CliRunner<'a> {
    pub(crate) service: &'a Service,
    key: String,
}

impl<'a> CliRunner<'a> {
    /// Uses the admin key.
    pub(crate) fn of(service: &'a Service) -> Self {
        CliRunner { service, key: service.admin_key() }
    }

    /// Uses another key.
    pub(crate) fn with_key(service: &'a Service, key: &str) -> Self {
        CliRunner { service, key: key.to_owned() }
    }

    pub(crate) fn run(&self, args: &[&str]) -> CommandOutput {
        let mut command = tollgate();
        command.args(args).env("TOLLGATE_URL", format!("http://{}", self.service.address));
        finished(command.env("TOLLGATE_KEY", &self.key).output().unwrap())
    }

    /// Runs a command as if on a terminal with this many columns.
    pub(crate) fn run_in_columns(&self, args: &[&str], columns: usize) -> CommandOutput {
        let mut command = tollgate();
        command.args(args).env("TOLLGATE_URL", format!("http://{}", self.service.address));
        finished(command.env("TOLLGATE_KEY", &self.key).env("COLUMNS", columns.to_string()).output().unwrap())
    }

    /// The output of a command that must succeed.
    pub(crate) fn done(&self, args: &[&str]) -> String {
        let ran = self.run(args);
        assert_eq!(ran.code, 0, "{args:?}: {}{}", ran.stdout, ran.stderr);
        ran.stdout
    }

    /// The JSON output of a command that must succeed.
    pub(crate) fn json(&self, args: &[&str]) -> serde_json::Value {
        serde_json::from_str(&self.done(&[args, &["--json"]].concat())).unwrap()
    }

    /// Waits until a limit is in force for a user: config sync takes a moment.
    pub(crate) fn in_force(&self, user: &str, limit: u64) {
        let explain = ["explain", "--user", user, "--endpoint", "/a"];
        wait_for(&format!("a limit of {limit} for {user}"), || {
            (self.json(&explain)["limit"].as_u64() == Some(limit)).then_some(())
        });
    }

    /// Waits until a command exits with a code; returns its output.
    pub(crate) fn until(&self, code: i32, args: &[&str]) -> String {
        wait_for(&format!("{args:?} to end with {code}"), || {
            let ran = self.run(args);
            (ran.code == code).then_some(ran.stdout)
        })
    }

    /// The error message of a command that must fail.
    pub(crate) fn error(&self, args: &[&str]) -> String {
        let ran = self.run(args);
        assert_eq!(ran.code, 2, "{args:?}: {}{}", ran.stdout, ran.stderr);
        ran.stderr
    }
}

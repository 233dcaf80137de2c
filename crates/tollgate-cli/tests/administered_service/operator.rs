//! Somebody at a shell, with the address and the key of a service in the environment.

use crate::common::{Ran, ran, tollgate};
use crate::harness::{Service, wait_for};

pub(crate) struct Operator<'a> {
    pub(crate) service: &'a Service,
    key: String,
}

impl<'a> Operator<'a> {
    /// With the administrator's key.
    pub(crate) fn of(service: &'a Service) -> Self {
        Operator { service, key: service.admin_key() }
    }

    /// With another key.
    pub(crate) fn with_key(service: &'a Service, key: &str) -> Self {
        Operator { service, key: key.to_owned() }
    }

    pub(crate) fn run(&self, args: &[&str]) -> Ran {
        let mut command = tollgate();
        command.args(args).env("TOLLGATE_URL", format!("http://{}", self.service.address));
        ran(command.env("TOLLGATE_KEY", &self.key).output().unwrap())
    }

    /// What a command that must succeed prints.
    pub(crate) fn done(&self, args: &[&str]) -> String {
        let ran = self.run(args);
        assert_eq!(ran.code, 0, "{args:?}: {}{}", ran.stdout, ran.stderr);
        ran.stdout
    }

    /// The same as JSON.
    pub(crate) fn json(&self, args: &[&str]) -> serde_json::Value {
        serde_json::from_str(&self.done(&[args, &["--json"]].concat())).unwrap()
    }

    /// Waits until a rule with that limit decides for a user: a node has some time to follow what was written.
    pub(crate) fn in_force(&self, user: &str, limit: u64) {
        let explain = ["explain", "--user", user, "--endpoint", "/a"];
        wait_for(&format!("a limit of {limit} for {user}"), || {
            (self.json(&explain)["limit"].as_u64() == Some(limit)).then_some(())
        });
    }

    /// Waits until a command ends with a code; what it prints then.
    pub(crate) fn until(&self, code: i32, args: &[&str]) -> String {
        wait_for(&format!("{args:?} to end with {code}"), || {
            let ran = self.run(args);
            (ran.code == code).then_some(ran.stdout)
        })
    }

    /// What a command that must fail says.
    pub(crate) fn error(&self, args: &[&str]) -> String {
        let ran = self.run(args);
        assert_eq!(ran.code, 2, "{args:?}: {}{}", ran.stdout, ran.stderr);
        ran.stderr
    }
}

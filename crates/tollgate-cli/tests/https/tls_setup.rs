//! A service behind nginx, with a certificate of a private CA.

use std::path::Path;
use std::process::Command;

use tempfile::TempDir;
use tollgate_testkit::{Certificates, TlsProxy};

use crate::harness::Service;
use crate::support::{CommandOutput, finished, tollgate};

pub(crate) const CHECK: [&str; 5] = ["check", "--user", "alice", "--endpoint", "/a"];

pub(crate) struct TlsSetup {
    pub(crate) proxy: TlsProxy,
    pub(crate) service: Service,
    pub(crate) certificates: Certificates,
    _folder: TempDir,
}

impl TlsSetup {
    pub(crate) fn start() -> Self {
        Self::with(Certificates::clone, TlsProxy::in_front_of)
    }

    /// Uses another server certificate, or another nginx configuration.
    pub(crate) fn with(
        choose: impl Fn(&Certificates) -> Certificates,
        start: impl Fn(std::net::SocketAddr, &Certificates) -> TlsProxy,
    ) -> Self {
        let folder = TempDir::new().unwrap();
        let certificates = choose(&Certificates::create_in(folder.path()));
        // A long window, so that usage does not expire on a slow machine.
        let service = Service::with_config("default_limit = 10\ndefault_window = \"1d\"");
        let proxy = start(service.address, &certificates);
        TlsSetup { proxy, service, certificates, _folder: folder }
    }

    /// A command for the server behind nginx with the admin key, trusting only the system's CAs.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = tollgate();
        command.args(args).env("TOLLGATE_URL", self.proxy.url());
        command.env("TOLLGATE_KEY", self.service.admin_key());
        command
    }

    /// The same, trusting the private CA too.
    pub(crate) fn trusting(&self, args: &[&str]) -> Command {
        let mut command = self.command(args);
        command.env("TOLLGATE_CA_FILE", &self.certificates.authority);
        command
    }
}

pub(crate) fn run(command: &mut Command) -> CommandOutput {
    finished(command.output().unwrap())
}

/// The output of a command that must succeed.
pub(crate) fn done(command: &mut Command) -> String {
    let ran = run(command);
    assert_eq!(ran.code, 0, "{command:?}: {}{}", ran.stdout, ran.stderr);
    assert!(!ran.stderr.contains("warning"), "{}", ran.stderr);
    ran.stdout
}

/// The error message of a command that must fail.
pub(crate) fn error(command: &mut Command) -> String {
    let ran = run(command);
    assert_eq!((ran.code, &*ran.stdout), (2, ""), "{command:?}: {}", ran.stderr);
    assert!(ran.stderr.starts_with("error: "), "{}", ran.stderr);
    ran.stderr
}

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

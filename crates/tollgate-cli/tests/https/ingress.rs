//! A service, nginx in front of it, and an authority that signed for nginx.

use std::path::Path;
use std::process::Command;

use tempfile::TempDir;
use tollgate_testkit::{Certificates, TlsProxy};

use crate::common::{Ran, ran, tollgate};
use crate::harness::Service;

pub(crate) const CHECK: [&str; 5] = ["check", "--user", "alice", "--endpoint", "/a"];

pub(crate) struct Ingress {
    pub(crate) proxy: TlsProxy,
    pub(crate) service: Service,
    pub(crate) certificates: Certificates,
    _folder: TempDir,
}

impl Ingress {
    pub(crate) fn start() -> Self {
        Self::with(Certificates::clone, TlsProxy::in_front_of)
    }

    /// With another certificate for the server than the good one, or another way to start nginx.
    pub(crate) fn with(
        choose: impl Fn(&Certificates) -> Certificates,
        start: impl Fn(std::net::SocketAddr, &Certificates) -> TlsProxy,
    ) -> Self {
        let folder = TempDir::new().unwrap();
        let certificates = choose(&Certificates::create_in(folder.path()));
        // What is used is still used when a slow machine looks.
        let service = Service::with_config("default_limit = 10\ndefault_window = \"1d\"");
        let proxy = start(service.address, &certificates);
        Ingress { proxy, service, certificates, _folder: folder }
    }

    /// A command for the server behind nginx, with the administrator's key, that trusts the system's authorities.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = tollgate();
        command.args(args).env("TOLLGATE_URL", self.proxy.url());
        command.env("TOLLGATE_KEY", self.service.admin_key());
        command
    }

    /// The same, trusting the authority that signed for nginx.
    pub(crate) fn trusting(&self, args: &[&str]) -> Command {
        let mut command = self.command(args);
        command.env("TOLLGATE_CA_FILE", &self.certificates.authority);
        command
    }
}

pub(crate) fn run(command: &mut Command) -> Ran {
    ran(command.output().unwrap())
}

/// What a command that must succeed prints.
pub(crate) fn done(command: &mut Command) -> String {
    let ran = run(command);
    assert_eq!(ran.code, 0, "{command:?}: {}{}", ran.stdout, ran.stderr);
    assert!(!ran.stderr.contains("warning"), "{}", ran.stderr);
    ran.stdout
}

/// What a command that must fail says; never the key.
pub(crate) fn error(command: &mut Command) -> String {
    let ran = run(command);
    assert_eq!((ran.code, &*ran.stdout), (2, ""), "{command:?}: {}", ran.stderr);
    assert!(ran.stderr.starts_with("error: "), "{}", ran.stderr);
    ran.stderr
}

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

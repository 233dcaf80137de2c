//! A service whose listener speaks TLS.

use std::fs;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;
use tollgate_testkit::{Certificates, Leaf};

use crate::harness::Service;
use crate::support::tollgate;

pub(crate) struct TlsService {
    pub(crate) service: Service,
    pub(crate) certificates: Certificates,
    _folder: TempDir,
}

impl TlsService {
    /// With more keys of `[server.tls]`, and sections after it.
    pub(crate) fn start(more: impl Fn(&Certificates) -> String) -> Self {
        let folder = TempDir::new().unwrap();
        let certificates = Certificates::create_in(folder.path());
        let Certificates { server, server_key, .. } = &certificates;
        let config = format!(
            "default_limit = 100000\n[server.tls]\ncertificate_file = {server:?}\nkey_file = {server_key:?}\n{}",
            more(&certificates)
        );
        let service = Service::with_config(&config);
        TlsService { service, certificates, _folder: folder }
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = tollgate();
        command.args(args).env("TOLLGATE_URL", format!("https://localhost:{}", self.service.address.port()));
        command.env("TOLLGATE_CA_FILE", &self.certificates.authority);
        command
    }

    /// With a client certificate and without a key.
    pub(crate) fn with_certificate(&self, args: &[&str]) -> Command {
        let mut command = self.command(args);
        let Certificates { client, client_key, .. } = &self.certificates;
        command.env("TOLLGATE_CERT_FILE", client).env("TOLLGATE_CERT_KEY_FILE", client_key);
        command
    }

    /// With a new client certificate.
    pub(crate) fn as_owner_of(&self, subject: &str, names: &str, args: &[&str]) -> Command {
        let leaf = Leaf { subject, names, usage: "clientAuth", ..Leaf::default() };
        let (certificate, key) = self.certificates.issue("owner", &leaf);
        let mut command = self.command(args);
        command.env("TOLLGATE_CERT_FILE", certificate).env("TOLLGATE_CERT_KEY_FILE", key);
        command
    }

    pub(crate) fn get(&self, path: &str) -> String {
        let url = format!("https://localhost:{}{path}", self.service.address.port());
        let mut curl = Command::new("curl");
        let got = curl.args(["-sS", &url, "--cacert"]).arg(&self.certificates.authority).output().unwrap();
        String::from_utf8(got.stdout).unwrap()
    }

    pub(crate) fn readiness(&self) -> Value {
        serde_json::from_str(&self.get("/readyz")).unwrap()
    }

    /// Gives the server a new certificate of the same authority.
    pub(crate) fn renew(&self, name: &str) {
        self.replace(&Leaf { subject: name, ..Leaf::default() });
    }

    pub(crate) fn replace(&self, leaf: &Leaf<'_>) {
        let (certificate, key) = self.certificates.issue("renewed", leaf);
        fs::rename(key, &self.certificates.server_key).unwrap();
        fs::rename(certificate, &self.certificates.server).unwrap();
    }

    pub(crate) fn shows(&self, name: &str) -> bool {
        let address = format!("localhost:{}", self.service.address.port());
        let shown = Command::new("openssl").args(["s_client", "-connect", &address]).output().unwrap();
        String::from_utf8_lossy(&shown.stdout).contains(name)
    }
}

pub(crate) fn with_caller(certificates: &Certificates) -> String {
    format!(
        "client_ca_file = {:?}\nclient_certificates = \"optional\"\n[auth]\nopen_checks = false\n\
         [[auth.callers]]\nname = \"billing\"\ncertificate = {{ dns = \"client.test\" }}\nscopes = [\"check\"]\n",
        certificates.authority
    )
}

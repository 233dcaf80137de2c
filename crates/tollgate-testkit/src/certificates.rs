//! A certificate authority for one test, made by the `openssl` command.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

// The machine's own openssl.cnf would make every certificate one of an authority.
const CONFIG: &str = "\
[req]
distinguished_name = name
prompt = no
[name]
CN = tollgate test
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[server]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth
subjectAltName = DNS:localhost, IP:127.0.0.1, IP:::1
[self_signed]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth
subjectAltName = DNS:localhost
[self_signed_ca]
basicConstraints = critical, CA:TRUE
subjectAltName = DNS:localhost
[other_host]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth
subjectAltName = DNS:other.test
[client]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = clientAuth
subjectAltName = DNS:client.test
[ca]
default_ca = register
[register]
database = register.txt
new_certs_dir = .
rand_serial = yes
default_md = sha256
policy = any_name
[any_name]
commonName = supplied
";
const BY_THE_AUTHORITY: [&str; 4] = ["-CA", "authority.pem", "-CAkey", "authority.key"];

/// PEM files of an authority and of what it signed: a server (`localhost`, `127.0.0.1`, `::1`) and a client.
///
/// Keys are P-256 in PKCS#8. Two calls make two authorities, neither of which trusts the other.
#[derive(Clone, Debug)]
pub struct Certificates {
    /// The authority's certificate.
    pub authority: PathBuf,
    /// The server's certificate.
    pub server: PathBuf,
    /// The server's private key.
    pub server_key: PathBuf,
    /// The client's certificate.
    pub client: PathBuf,
    /// The client's private key.
    pub client_key: PathBuf,
}

impl Certificates {
    /// Makes them in an existing folder.
    pub fn create_in(folder: &Path) -> Self {
        fs::write(folder.join("openssl.cnf"), CONFIG).expect("the folder can be written to");
        sign(folder, "authority", &[]);
        for name in ["server", "client"] {
            sign(folder, name, &BY_THE_AUTHORITY);
        }
        let file = |name: &str| folder.join(name);
        Self {
            authority: file("authority.pem"),
            server: file("server.pem"),
            server_key: file("server.key"),
            client: file("client.pem"),
            client_key: file("client.key"),
        }
    }

    /// The same authority and client with a server that is called `other.test`.
    #[must_use]
    pub fn for_other_host(&self) -> Self {
        sign(self.folder(), "other_host", &BY_THE_AUTHORITY);
        self.with_server("other_host")
    }

    /// The same with a server that signed for itself, and that has to be trusted in place of the authority.
    #[must_use]
    pub fn self_signed(&self) -> Self {
        self.signed_by_itself("self_signed")
    }

    /// The same, but its certificate may sign others, as `openssl req -x509` makes them if nobody says otherwise.
    #[must_use]
    pub fn self_signed_ca(&self) -> Self {
        self.signed_by_itself("self_signed_ca")
    }

    fn signed_by_itself(&self, name: &str) -> Self {
        sign(self.folder(), name, &[]);
        let alone = self.with_server(name);
        Self { authority: alone.server.clone(), ..alone }
    }

    /// The same with a server whose certificate was good on the first of January 2020 only.
    #[must_use]
    pub fn expired(&self) -> Self {
        let folder = self.folder();
        fs::write(folder.join("register.txt"), "").expect("the folder can be written to");
        let named = ["-subj", "/CN=tollgate test expired"];
        let request = ["req", "-new", "-key", "server.key", "-config", "openssl.cnf", "-out", "expired.csr"];
        openssl(folder, &[&request[..], &named].concat());
        let sign = ["ca", "-batch", "-notext", "-config", "openssl.cnf", "-extensions", "server"];
        let by = ["-cert", "authority.pem", "-keyfile", "authority.key"];
        let dates = ["-startdate", "20200101000000Z", "-enddate", "20200102000000Z"];
        let files = ["-in", "expired.csr", "-out", "expired.pem"];
        openssl(folder, &[&sign[..], &by, &dates, &files].concat());
        fs::copy(&self.server_key, folder.join("expired.key")).expect("the folder can be written to");
        self.with_server("expired")
    }

    fn with_server(&self, name: &str) -> Self {
        let file = |end: &str| self.folder().join(format!("{name}.{end}"));
        Self { server: file("pem"), server_key: file("key"), ..self.clone() }
    }

    fn folder(&self) -> &Path {
        self.authority.parent().expect("it was made in a folder")
    }
}

fn sign(folder: &Path, name: &str, authority: &[&str]) {
    let subject = format!("/CN=tollgate test {name}");
    let (key, certificate) = (format!("{name}.key"), format!("{name}.pem"));
    let new = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
    let kind = ["-config", "openssl.cnf", "-extensions", name, "-days", "2", "-subj", &subject];
    let files = ["-keyout", &key, "-out", &certificate];
    openssl(folder, &[&new[..], &kind, &files, authority].concat());
}

fn openssl(folder: &Path, args: &[&str]) {
    let output = Command::new("openssl").args(args).current_dir(folder).output();
    let output = output.expect("openssl is installed");
    assert!(output.status.success(), "openssl: {}", String::from_utf8_lossy(&output.stderr));
}

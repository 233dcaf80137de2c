//! A certificate authority for one test, created with the `openssl` command.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

// The system's openssl.cnf would make every certificate a CA certificate.
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
crl_extensions = revocation
[revocation]
authorityKeyIdentifier = keyid
[any_name]
commonName = supplied
[any]
commonName = optional
organizationName = optional
";
const SIGNED_BY_CA: [&str; 4] = ["-CA", "authority.pem", "-CAkey", "authority.key"];

/// A certificate to issue.
#[derive(Clone, Debug)]
pub struct Leaf<'a> {
    /// The subject, as `openssl -subj` takes it: `/O=Acme/CN=billing`.
    pub subject: &'a str,
    /// The subject alternative names: `DNS:a.test, URI:spiffe://test/a`.
    pub names: &'a str,
    /// The extended key usage: `serverAuth` or `clientAuth`.
    pub usage: &'a str,
    /// The first and the last moment of its validity: `20200101000000Z`. By default now and in two days.
    pub validity: Option<(&'a str, &'a str)>,
}

impl Default for Leaf<'_> {
    fn default() -> Self {
        Leaf { subject: "/CN=tollgate test", names: "DNS:localhost", usage: "serverAuth", validity: None }
    }
}

/// PEM files of a CA, a server certificate (`localhost`, `127.0.0.1`, `::1`) and a client certificate.
///
/// Keys are P-256 in PKCS#8. Each call creates a CA of its own.
#[derive(Clone, Debug)]
pub struct Certificates {
    /// The CA certificate.
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
    /// Creates all files in an existing folder.
    pub fn create_in(folder: &Path) -> Self {
        fs::write(folder.join("openssl.cnf"), CONFIG).expect("the folder is writable");
        sign(folder, "authority", &[]);
        for name in ["server", "client"] {
            sign(folder, name, &SIGNED_BY_CA);
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

    /// A server certificate for the host name `other.test`.
    #[must_use]
    pub fn for_other_host(&self) -> Self {
        sign(self.folder(), "other_host", &SIGNED_BY_CA);
        self.with_server("other_host")
    }

    /// A self-signed server certificate; clients must trust it in place of the CA.
    #[must_use]
    pub fn self_signed(&self) -> Self {
        self.self_signed_as("self_signed")
    }

    /// A self-signed server certificate that is also a CA, as `openssl req -x509` creates by default.
    #[must_use]
    pub fn self_signed_ca(&self) -> Self {
        self.self_signed_as("self_signed_ca")
    }

    fn self_signed_as(&self, name: &str) -> Self {
        sign(self.folder(), name, &[]);
        let certificates = self.with_server(name);
        Self { authority: certificates.server.clone(), ..certificates }
    }

    /// A server certificate that expired in January 2020.
    #[must_use]
    pub fn expired(&self) -> Self {
        let folder = self.folder();
        fs::write(folder.join("register.txt"), "").expect("the folder is writable");
        let named = ["-subj", "/CN=tollgate test expired"];
        let request = ["req", "-new", "-key", "server.key", "-config", "openssl.cnf", "-out", "expired.csr"];
        openssl(folder, &[&request[..], &named].concat());
        let sign = ["ca", "-batch", "-notext", "-config", "openssl.cnf", "-extensions", "server"];
        let by = ["-cert", "authority.pem", "-keyfile", "authority.key"];
        let dates = ["-startdate", "20200101000000Z", "-enddate", "20200102000000Z"];
        let files = ["-in", "expired.csr", "-out", "expired.pem"];
        openssl(folder, &[&sign[..], &by, &dates, &files].concat());
        fs::copy(&self.server_key, folder.join("expired.key")).expect("the folder is writable");
        self.with_server("expired")
    }

    /// Issues a certificate; returns its file and that of its key. An existing one of this name is replaced.
    pub fn issue(&self, name: &str, leaf: &Leaf<'_>) -> (PathBuf, PathBuf) {
        let folder = self.folder();
        let file = |end: &str| format!("{name}.{end}");
        let extensions = format!(
            "[leaf]\nbasicConstraints = critical, CA:FALSE\nkeyUsage = critical, digitalSignature\n\
             extendedKeyUsage = {}\nsubjectAltName = {}\n",
            leaf.usage, leaf.names
        );
        fs::write(folder.join(file("ext")), extensions).expect("the folder is writable");
        fs::write(folder.join("register.txt"), "").expect("the folder is writable");
        let new = ["req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
        let request = ["-config", "openssl.cnf", "-subj", leaf.subject];
        openssl(folder, &[&new[..], &request, &["-keyout", &file("key"), "-out", &file("csr")]].concat());
        let sign = ["ca", "-batch", "-notext", "-preserveDN", "-config", "openssl.cnf", "-policy", "any"];
        let by = ["-cert", "authority.pem", "-keyfile", "authority.key", "-extfile", &file("ext")];
        let dates = match leaf.validity {
            Some((from, until)) => vec!["-startdate", from, "-enddate", until],
            None => vec!["-days", "2"],
        };
        let files = ["-extensions", "leaf", "-in", &file("csr"), "-out", &file("pem")];
        openssl(folder, &[&sign[..], &by, &dates, &files].concat());
        (folder.join(file("pem")), folder.join(file("key")))
    }

    /// Writes a list of exactly these revoked certificates; returns its file, which is always the same.
    pub fn revoke(&self, certificates: &[&Path]) -> PathBuf {
        let folder = self.folder();
        fs::write(folder.join("register.txt"), "").expect("the folder is writable");
        let by = ["ca", "-config", "openssl.cnf", "-cert", "authority.pem", "-keyfile", "authority.key"];
        for certificate in certificates {
            let certificate = certificate.to_str().expect("the path is UTF-8");
            openssl(folder, &[&by[..], &["-revoke", certificate]].concat());
        }
        openssl(folder, &[&by[..], &["-gencrl", "-crldays", "2", "-out", "revoked.new"]].concat());
        let list = folder.join("revoked.pem");
        fs::rename(folder.join("revoked.new"), &list).expect("the folder is writable");
        list
    }

    fn with_server(&self, name: &str) -> Self {
        let file = |end: &str| self.folder().join(format!("{name}.{end}"));
        Self { server: file("pem"), server_key: file("key"), ..self.clone() }
    }

    fn folder(&self) -> &Path {
        self.authority.parent().expect("the files are in a folder")
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

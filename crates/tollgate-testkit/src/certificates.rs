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
[client]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = clientAuth
subjectAltName = DNS:client.test
";

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
            sign(folder, name, &["-CA", "authority.pem", "-CAkey", "authority.key"]);
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
}

fn sign(folder: &Path, name: &str, authority: &[&str]) {
    let output = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"])
        .args([
            "-config",
            "openssl.cnf",
            "-extensions",
            name,
            "-days",
            "2",
            "-subj",
            &format!("/CN=tollgate test {name}"),
        ])
        .args(["-keyout", &format!("{name}.key"), "-out", &format!("{name}.pem")])
        .args(authority)
        .current_dir(folder)
        .output()
        .expect("openssl is installed");
    assert!(output.status.success(), "openssl: {}", String::from_utf8_lossy(&output.stderr));
}

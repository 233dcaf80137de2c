//! nginx that terminates TLS in front of an HTTP server, like an ingress.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use crate::certificates::Certificates;
use crate::port::{free_port, start_on_free_port};
use crate::process::Process;

const START_DEADLINE: Duration = Duration::from_secs(30);

/// A running `nginx` on a loopback port, killed on drop.
///
/// | request path | path sent to the server |
/// |---|---|
/// | `/ratelimit/…` | unchanged, without the prefix `/ratelimit` |
/// | `/decoded/…` | decoded and normalized, without the prefix, as `proxy_pass` with a path does |
/// | any other | unchanged |
pub struct TlsProxy {
    port: u16,
    redirecting_port: u16,
    _process: Process,
    _folder: TempDir, // last: removed after the process has stopped
}

impl TlsProxy {
    /// Starts nginx with the server certificate; returns when it listens.
    pub fn in_front_of(server: SocketAddr, certificates: &Certificates) -> Self {
        Self::start(server, certificates, "")
    }

    /// Starts nginx that requires a client certificate signed by the CA.
    pub fn with_client_auth(server: SocketAddr, certificates: &Certificates) -> Self {
        let authority = certificates.authority.display();
        Self::start(
            server,
            certificates,
            &format!("ssl_verify_client on; ssl_client_certificate {authority};"),
        )
    }

    /// The loopback port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// A loopback port for plain HTTP that redirects every request to `https://`.
    pub fn redirecting_port(&self) -> u16 {
        self.redirecting_port
    }

    /// `https://localhost:PORT`.
    pub fn url(&self) -> String {
        format!("https://localhost:{}", self.port)
    }

    fn start(server: SocketAddr, certificates: &Certificates, more: &str) -> Self {
        start_on_free_port("nginx", || {
            let folder = TempDir::new().expect("a temporary folder can be created");
            let ports @ [port, redirecting_port] = [free_port(), free_port()];
            let text = configuration(server, certificates, ports, more);
            fs::write(folder.path().join("nginx.conf"), text).expect("the folder is writable");
            Ok(Self { port, redirecting_port, _process: run_nginx(folder.path())?, _folder: folder })
        })
    }
}

pub(crate) fn nginx() -> Command {
    // Debian installs it where only root's PATH finds it.
    Command::new(["/usr/sbin/nginx"].into_iter().find(|path| Path::new(path).exists()).unwrap_or("nginx"))
}

/// Starts nginx with the configuration in `folder`. Fails with its log.
pub(crate) fn run_nginx(folder: &Path) -> Result<Process, String> {
    let log = folder.join("error.log");
    let mut command = nginx();
    command.arg("-p").arg(folder).arg("-c").arg(folder.join("nginx.conf")).arg("-e").arg(&log);
    let process = Process::spawn(Process::log_to(&mut command, &folder.join("output")));
    // nginx writes its process id once it listens.
    let listens = |_| fs::read_to_string(folder.join("pid")).is_ok_and(|pid| pid.ends_with('\n'));
    let process = process.when_ready(START_DEADLINE, listens);
    process.ok_or_else(|| fs::read_to_string(&log).unwrap_or_default())
}

// A single process in the foreground, so that killing it stops everything.
fn configuration(server: SocketAddr, certificates: &Certificates, ports: [u16; 2], more: &str) -> String {
    let [port, redirecting_port] = ports;
    let (certificate, key) = (certificates.server.display(), certificates.server_key.display());
    format!(
        "daemon off; master_process off; pid pid;
events {{ worker_connections 64; }}
http {{
    access_log off;
    client_body_temp_path body; proxy_temp_path proxy;
    fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;
    client_max_body_size 16m;
    proxy_http_version 1.1;
    map $request_uri $tail {{ ~^/ratelimit(?<rest>/.*)$ $rest; }}
    server {{ listen 127.0.0.1:{redirecting_port}; return 308 https://$host:{port}$request_uri; }}
    server {{
        listen 127.0.0.1:{port} ssl;
        ssl_certificate {certificate}; ssl_certificate_key {key};
        {more}
        location / {{ proxy_pass http://{server}; }}
        location /decoded/ {{ proxy_pass http://{server}/; }}
        location /ratelimit/ {{ proxy_pass http://{server}$tail; }}
    }}
}}
"
    )
}

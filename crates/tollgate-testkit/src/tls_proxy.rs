//! One real `nginx` that speaks TLS in front of a server that speaks plain HTTP, as an ingress does.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use crate::certificates::Certificates;
use crate::poll::eventually;
use crate::port::free_port;
use crate::process::Process;

const START_DEADLINE: Duration = Duration::from_secs(30);
const PORT_ATTEMPTS: usize = 20;

/// A running `nginx` on a loopback port, killed on drop.
///
/// What is asked goes to the server behind it as it came, and `/ratelimit/…` without the `/ratelimit`, byte for byte. From
/// `/decoded/…` the path goes there decoded and normalised, as it does wherever `proxy_pass` has a path of its own.
pub struct TlsProxy {
    port: u16,
    redirecting_port: u16,
    _process: Process,
    _folder: TempDir, // last, so that it is removed when nobody writes to it any more
}

impl TlsProxy {
    /// Shows the server's certificate; returns when connections are taken.
    ///
    /// # Panics
    ///
    /// With nginx's log, if it does not start.
    pub fn in_front_of(server: SocketAddr, certificates: &Certificates) -> Self {
        Self::start(server, certificates, "")
    }

    /// The same, for clients alone that show a certificate of the authority.
    ///
    /// # Panics
    ///
    /// With nginx's log, if it does not start.
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

    /// A loopback port for plain HTTP where everybody is sent on to `https://`.
    pub fn redirecting_port(&self) -> u16 {
        self.redirecting_port
    }

    /// `https://localhost:PORT`.
    pub fn url(&self) -> String {
        format!("https://localhost:{}", self.port)
    }

    fn start(server: SocketAddr, certificates: &Certificates, more: &str) -> Self {
        for _ in 0..PORT_ATTEMPTS {
            let folder = TempDir::new().expect("a temporary folder can be made");
            let ports @ [port, redirecting_port] = [free_port(), free_port()];
            let text = configuration(server, certificates, ports, more);
            fs::write(folder.path().join("nginx.conf"), text).expect("the folder can be written to");
            match run(folder.path()) {
                Ok(process) => return Self { port, redirecting_port, _process: process, _folder: folder },
                Err(log) if log.contains("Address already in use") => {}
                Err(log) => panic!("nginx does not start:\n{log}"),
            }
        }
        panic!("{PORT_ATTEMPTS} ports in a row were taken between choosing and binding them");
    }
}

/// Starts nginx in a folder with its configuration. Its log, if it ends or finds its port taken.
fn run(folder: &Path) -> Result<Process, String> {
    let log = folder.join("error.log");
    // Where Debian has it is on the path of root alone.
    let program = ["/usr/sbin/nginx"].into_iter().find(|path| Path::new(path).exists()).unwrap_or("nginx");
    let mut command = Command::new(program);
    command.arg("-p").arg(folder).arg("-c").arg(folder.join("nginx.conf")).arg("-e").arg(&log);
    let output = fs::File::create(folder.join("output")).expect("the folder can be written to");
    let mut process = Process::spawn(command.stderr(output));
    let told = || fs::read_to_string(&log).unwrap_or_default();
    let outcome = eventually(START_DEADLINE, || {
        // It writes its number once it listens.
        if fs::read_to_string(folder.join("pid")).is_ok_and(|pid| pid.ends_with('\n')) {
            return Some(Ok(()));
        }
        (process.has_ended() || told().contains("Address already in use")).then(|| Err(told()))
    });
    outcome.unwrap_or_else(|| Err(format!("it does not listen: {}", told()))).map(|()| process)
}

// One process, in the foreground: nothing outlives the one we kill.
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

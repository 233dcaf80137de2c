//! Web servers as upstreams of a proxy: nginx and Python's `http.server`. Their access logs are the record of what reached them.

use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tempfile::TempDir;

use crate::certificates::Certificates;
use crate::port::{free_port, start_on_free_port};
use crate::process::{Process, StopSignal};

const START_DEADLINE: Duration = Duration::from_secs(30);

/// A running web server on a loopback port, stopped on drop. It answers every request for `/`, and nginx any other, with 200.
pub struct WebServer {
    port: u16,
    program: Program,
    process: Mutex<Option<Process>>,
    folder: TempDir, // last: removed after the process has stopped
}

#[derive(Clone, Copy)]
enum Program {
    Nginx,
    Python,
}

impl WebServer {
    /// nginx that speaks HTTP/1.1.
    pub fn nginx() -> Self {
        Self::start_nginx("", "")
    }

    /// nginx that speaks HTTP/1.1 and HTTP/2 over TLS.
    pub fn nginx_with_tls(certificates: &Certificates) -> Self {
        Self::start_nginx("ssl http2", &tls(certificates))
    }

    /// The same, for clients with a certificate of the CA only.
    pub fn nginx_with_client_auth(certificates: &Certificates) -> Self {
        let authority = certificates.authority.display();
        let more = format!("ssl_verify_client on; ssl_client_certificate {authority};");
        Self::start_nginx("ssl http2", &(tls(certificates) + &more))
    }

    fn start_nginx(listen: &str, server: &str) -> Self {
        Self::start(Program::Nginx, |port, folder| {
            fs::write(folder.join("nginx.conf"), configuration(port, listen, server))
        })
    }

    /// Python's server, which speaks HTTP/1.0.
    pub fn python() -> Self {
        Self::start(Program::Python, |_, folder| fs::create_dir(folder.join("files")))
    }

    fn start(program: Program, prepare: impl Fn(u16, &Path) -> std::io::Result<()>) -> Self {
        start_on_free_port("web server", || {
            let folder = TempDir::new().expect("a temporary folder can be created");
            let port = free_port();
            prepare(port, folder.path()).expect("the folder is writable");
            let process = program.run(port, folder.path())?;
            Ok(WebServer { port, program, process: Mutex::new(Some(process)), folder })
        })
    }

    /// Its address.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    /// The requests that it answered, one line each: `GET /items HTTP/1.1`.
    pub fn requests(&self) -> Vec<String> {
        let log = self.folder.path().join(self.program.access_log());
        let text = fs::read_to_string(log).unwrap_or_default();
        text.lines().filter_map(|line| line.split('"').nth(1)).map(str::to_owned).collect()
    }

    /// Lets it finish the requests in flight and starts it again on the same port.
    pub fn restart(&self) {
        let mut process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        drop(process.take());
        let started = self.program.run(self.port, self.folder.path());
        *process = Some(started.unwrap_or_else(|log| panic!("the web server does not restart: {log}")));
    }
}

impl Program {
    fn access_log(self) -> &'static str {
        match self {
            Program::Nginx => "access.log",
            Program::Python => "output",
        }
    }

    /// Starts it; returns when it listens. Fails with its log.
    fn run(self, port: u16, folder: &Path) -> Result<Process, String> {
        let output = folder.join("output");
        let mut command = match self {
            Program::Nginx => nginx(folder),
            Program::Python => {
                let mut command = Command::new("python3");
                command.args(["-u", "-m", "http.server", &port.to_string(), "--bind", "127.0.0.1"]);
                command.arg("--directory").arg(folder.join("files"));
                command
            }
        };
        let stop = match self {
            Program::Nginx => StopSignal::Quit,
            Program::Python => StopSignal::Kill,
        };
        let process = Process::spawn_with(Process::log_to(&mut command, &output), stop, None);
        // Written once it listens. A connection could reach another server.
        let (file, end) = match self {
            Program::Nginx => (folder.join("pid"), "\n"),
            Program::Python => (output.clone(), ") ...\n"),
        };
        let listens = |_| fs::read_to_string(&file).is_ok_and(|text| text.ends_with(end));
        process.when_ready(START_DEADLINE, listens).ok_or_else(|| {
            [output, folder.join("error.log")].iter().fold(String::new(), |mut log, file| {
                let _ = write!(log, "{}", fs::read_to_string(file).unwrap_or_default());
                log
            })
        })
    }
}

fn nginx(folder: &Path) -> Command {
    let mut command = crate::tls_proxy::nginx();
    command.arg("-p").arg(folder).arg("-c").arg(folder.join("nginx.conf"));
    command.arg("-e").arg(folder.join("error.log"));
    command
}

fn tls(certificates: &Certificates) -> String {
    let Certificates { server, server_key, .. } = certificates;
    format!("ssl_certificate {}; ssl_certificate_key {};", server.display(), server_key.display())
}

// A worker of its own, because nginx without a master does not finish requests when it stops.
fn configuration(port: u16, listen: &str, server: &str) -> String {
    format!(
        "daemon off; pid pid; worker_processes 1; worker_shutdown_timeout 2s;
events {{ worker_connections 512; }}
http {{
    log_format request '\"$request\"'; access_log access.log request;
    client_body_temp_path body; proxy_temp_path proxy;
    fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;
    server {{ listen 127.0.0.1:{port} {listen}; {server} location / {{ return 200 hello; }} }}
}}
"
    )
}

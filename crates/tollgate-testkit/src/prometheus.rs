//! A Prometheus server that scrapes a service.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use crate::port::{free_port, start_on_free_port};
use crate::process::Process;

const START_DEADLINE: Duration = Duration::from_mins(1);

/// A running `prometheus` with native histograms, killed on drop. It scrapes `/metrics` of one service every second.
pub struct PrometheusServer {
    port: u16,
    _process: Process,
    _folder: TempDir, // last: removed after the process has stopped
}

impl PrometheusServer {
    /// Starts Prometheus; returns when it is ready.
    pub fn scraping(service: SocketAddr) -> Self {
        start_on_free_port("prometheus", || {
            let folder = TempDir::new().expect("a temporary folder can be created");
            let (port, config, log) =
                (free_port(), folder.path().join("config.yml"), folder.path().join("log"));
            let text = format!(
                "global: {{ scrape_interval: 1s }}\nscrape_configs:\n- job_name: tollgate\n  \
                 static_configs: [{{ targets: ['{service}'] }}]\n"
            );
            fs::write(&config, text).expect("the folder is writable");
            let mut command = Command::new("prometheus");
            command
                .arg(format!("--config.file={}", config.display()))
                .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
                .arg(format!("--web.listen-address=127.0.0.1:{port}"))
                .arg("--enable-feature=native-histograms");
            let process = Process::spawn(Process::log_to(&mut command, &log));
            let is_ready = |_| get(port, "/-/ready").is_ok_and(|answer| answer.starts_with("HTTP/1.0 200"));
            match process.when_ready(START_DEADLINE, is_ready) {
                Some(process) => Ok(Self { port, _process: process, _folder: folder }),
                None => Err(fs::read_to_string(&log).unwrap_or_default()),
            }
        })
    }

    /// The JSON of an API path, such as `query?query=up`; empty if there is no response.
    pub fn api(&self, path: &str) -> String {
        let answer = get(self.port, &format!("/api/v1/{path}")).unwrap_or_default();
        answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default()
    }
}

/// HTTP/1.0, so that the body ends with the connection.
fn get(port: u16, path: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

//! Gateways in front of an application, configured as in docs/gateways.md.

use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use crate::port::{free_port, start_on_free_port};
use crate::process::Process;
use crate::tls_proxy::run_nginx;

const START_DEADLINE: Duration = Duration::from_secs(30);

/// A running gateway on loopback ports, killed on drop.
pub struct Gateway {
    port: u16,
    http2_port: u16,
    _process: Process,
    _folder: TempDir, // last: removed after the process has stopped
}

impl Gateway {
    /// Starts nginx with the content of a `http` block. `listen 80;` is replaced by two ports, one of them for HTTP/2.
    pub fn nginx(site: &str) -> Self {
        start_on_free_port("nginx", || {
            let (folder, [port, http2_port]) = (folder(), [free_port(), free_port()]);
            let listen = format!("listen 127.0.0.1:{port}; listen 127.0.0.1:{http2_port} http2;");
            assert!(site.contains("listen 80;"), "the port can be replaced");
            let text = format!(
                "daemon off; master_process off; pid pid;
events {{ worker_connections 512; }}
http {{
    access_log off;
    client_body_temp_path body; proxy_temp_path proxy;
    fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;
{}
}}
",
                site.replace("listen 80;", &listen)
            );
            fs::write(folder.path().join("nginx.conf"), text).expect("the folder is writable");
            Ok(Gateway { port, http2_port, _process: run_nginx(folder.path())?, _folder: folder })
        })
    }

    /// Starts Caddy with a site. `:80` is replaced by a port for HTTP/1.1 and HTTP/2 without TLS.
    pub fn caddy(program: &Path, site: &str) -> Self {
        start_on_free_port("caddy", || {
            let (folder, port) = (folder(), free_port());
            assert!(site.contains(":80 {"), "the port can be replaced");
            let options = "{\n\tadmin off\n\tauto_https off\n\tdefault_bind 127.0.0.1\n\tservers {\n\t\tprotocols h1 h2c\n\t}\n}\n";
            let text = format!("{options}{}", site.replace(":80 {", &format!(":{port} {{")));
            let (file, log) = (folder.path().join("Caddyfile"), folder.path().join("output"));
            fs::write(&file, text).expect("the folder is writable");
            let mut command = Command::new(program);
            command.args(["run", "--adapter", "caddyfile", "--config"]).arg(&file);
            command
                .env("HOME", folder.path())
                .env("XDG_DATA_HOME", folder.path())
                .env("XDG_CONFIG_HOME", folder.path());
            let process = Process::spawn(Process::log_to(&mut command, &log));
            let process =
                process.when_ready(START_DEADLINE, |_| TcpStream::connect(("127.0.0.1", port)).is_ok());
            let process = process.ok_or_else(|| fs::read_to_string(&log).unwrap_or_default())?;
            Ok(Gateway { port, http2_port: port, _process: process, _folder: folder })
        })
    }

    /// The port for HTTP/1.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The port for HTTP/2 without TLS.
    pub fn http2_port(&self) -> u16 {
        self.http2_port
    }
}

fn folder() -> TempDir {
    TempDir::new().expect("a temporary folder can be created")
}

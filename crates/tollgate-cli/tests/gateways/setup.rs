//! A gateway between a client and a recording application, with tollgate beside it.

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tollgate_testkit::{Gateway, RecordingUpstream};

use crate::harness::{Answer, Service, read_answer};

pub(crate) struct Setup {
    pub(crate) gateway: Gateway,
    pub(crate) service: Service,
    pub(crate) upstream: RecordingUpstream,
}

/// Settings with a limit that restores nothing during a test.
pub(crate) fn settings(limit: u32, more: &str) -> String {
    format!(
        "default_limit = {limit}\ndefault_window = \"1d\"\n[identity]\ntrusted_proxies = [\"127.0.0.1\"]\n{more}"
    )
}

/// The configuration of a gateway in docs/gateways.md.
fn snippet(language: &str) -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/gateways.md");
    let page = std::fs::read_to_string(page).unwrap();
    let block = page.split(&format!("```{language} no-run\n")).nth(1).unwrap();
    block.split("```").next().unwrap().to_owned()
}

/// As `scripts/install-tools test` installs it.
fn caddy() -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/python/bin/caddy");
    assert!(path.exists(), "caddy is missing: run scripts/install-tools test");
    path
}

impl Setup {
    pub(crate) fn nginx(settings: &str) -> Self {
        Self::nginx_with(settings, |site| site)
    }

    /// With changes of the configuration that the page describes.
    pub(crate) fn nginx_with(settings: &str, change: impl Fn(String) -> String) -> Self {
        Self::start(settings, "nginx", |site| Gateway::nginx(&change(site)))
    }

    pub(crate) fn caddy(settings: &str) -> Self {
        Self::start(settings, "caddyfile", |site| Gateway::caddy(&caddy(), &site))
    }

    fn start(settings: &str, language: &str, start: impl Fn(String) -> Gateway) -> Self {
        let (service, upstream) = (Service::with_config(settings), RecordingUpstream::start());
        let site = snippet(language)
            .replace("127.0.0.1:8080", &service.address.to_string())
            .replace("127.0.0.1:9000", &upstream.address().to_string());
        Setup { gateway: start(site), service, upstream }
    }

    pub(crate) fn get(&self, target: &str, headers: &[(&str, &str)]) -> Answer {
        self.send("GET", target, headers)
    }

    pub(crate) fn send(&self, method: &str, target: &str, headers: &[(&str, &str)]) -> Answer {
        let mut request = format!("{method} {target} HTTP/1.1\r\nhost: api.example\r\nconnection: close\r\n");
        for (name, value) in headers {
            let _ = write!(request, "{name}: {value}\r\n");
        }
        let mut stream = TcpStream::connect(("127.0.0.1", self.gateway.port())).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(15))).unwrap();
        stream.write_all(format!("{request}\r\n").as_bytes()).unwrap();
        read_answer(&mut stream)
    }

    /// The status of a request over HTTP/2, sent by curl.
    pub(crate) fn http2_status(&self, path: &str) -> String {
        let url = format!("http://127.0.0.1:{}{path}", self.gateway.http2_port());
        let flags =
            ["--http2-prior-knowledge", "-s", "-o", "/dev/null", "-w", "%{http_version} %{http_code}"];
        let output = Command::new("curl").args(flags).arg(url).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    /// How many requests reached the application.
    pub(crate) fn served(&self) -> usize {
        self.upstream.requests().len()
    }

    /// Sends requests from several threads; returns how many got each of two statuses.
    pub(crate) fn flood(&self, requests: usize, statuses: [u16; 2]) -> [usize; 2] {
        const THREADS: usize = 4;
        let client =
            || (0..requests / THREADS).map(|_| self.get("/api/items", &[]).status).collect::<Vec<_>>();
        let all: Vec<u16> = std::thread::scope(|scope| {
            let clients: Vec<_> = (0..THREADS).map(|_| scope.spawn(client)).collect();
            clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
        });
        statuses.map(|status| all.iter().filter(|got| **got == status).count())
    }

    /// All forms of one path share a counter, and the application gets what was counted.
    pub(crate) fn spellings_share_one_counter(&self, limit: usize) {
        let paths = [
            "/api/items",
            "/api//items",
            "//api/items",
            "/api/./items",
            "/api/x/../items",
            "/%61pi/items",
            "/api/items/",
            "/api/items?page=2",
            "/api/items;v=1",
            "/api/%69tems",
            "/API/../api/items",
            "/api/items/.",
        ];
        let statuses: Vec<u16> = paths.iter().map(|path| self.get(path, &[]).status).collect();
        let admitted = statuses.iter().filter(|status| **status == 200).count();
        assert_eq!((admitted, self.served()), (limit, limit), "{statuses:?}");
        for request in self.upstream.requests() {
            let path = tollgate::Endpoint::parse(&request.target).unwrap();
            assert_eq!(path.as_str(), "/api/items", "{}", request.target);
        }
    }

    /// Headers that a client can send name neither another client nor another path.
    pub(crate) fn forged_headers_change_nothing(&self, limit: usize) {
        let forged: [&[(&str, &str)]; 10] = [
            &[("x-forwarded-for", "203.0.113.1")],
            &[("x-forwarded-for", "203.0.113.2"), ("x-forwarded-for", "203.0.113.3")],
            &[("x-real-ip", "203.0.113.4"), ("forwarded", "for=203.0.113.5")],
            &[("x-forwarded-uri", "/free"), ("x-forwarded-method", "GET")],
            &[("x-original-uri", "/free"), ("x-original-method", "GET")],
            &[("x-original-url", "http://api.example/free")],
            &[("x-api-key", "guess-1")],
            &[("x-api-key", "guess-2"), ("x-api-key", "guess-3")],
            &[("x-ratelimit-status", "200"), ("x-ratelimit-remaining", "99"), ("x-tenant", "acme")],
            &[("connection", "x-forwarded-for, x-original-uri, x-forwarded-uri"), ("x-user-id", "root")],
        ];
        for _ in 0..3 {
            for headers in forged {
                self.get("/api/items", headers);
            }
        }
        assert_eq!(self.served(), limit);
        assert_eq!(self.get("/api/items", &[]).status, 429, "all were counted by the address");
    }
}

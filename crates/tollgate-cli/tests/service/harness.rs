//! Starts the binary on a free port with its own data directory, sends requests, and stops it.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

#[path = "openapi_validator.rs"]
pub(crate) mod openapi_validator;

const LOOPBACK: &str = "127.0.0.1:0";

/// A service under test; killed on drop.
pub(crate) struct Service {
    child: Child,
    pub(crate) address: SocketAddr,
    pub(crate) folder: TempDir,
    pub(crate) banner: String,
}

/// A parsed response.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) text: String,
}

impl Service {
    /// Without any configuration.
    pub(crate) fn unconfigured() -> Self {
        Self::start(TempDir::new().unwrap(), None, &[])
    }

    /// With this settings file.
    pub(crate) fn with_config(config: &str) -> Self {
        let folder = TempDir::new().unwrap();
        let file = folder.path().join("tollgate.toml");
        fs::write(&file, config).unwrap();
        Self::start(folder, Some(&file), &[])
    }

    /// With this settings file and a descriptor limit set by `ulimit` (`-n 64`).
    pub(crate) fn with_descriptors(ulimit: &str, config: &str) -> Self {
        let folder = TempDir::new().unwrap();
        let file = folder.path().join("tollgate.toml");
        fs::write(&file, config).unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", &format!("ulimit {ulimit}; exec \"$0\" \"$@\"")]);
        command.arg(env!("CARGO_BIN_EXE_tollgate"));
        Self::run(command, LOOPBACK, folder, Some(&file), &[])
    }

    /// Listening on an address that is not loopback.
    pub(crate) fn on_every_address(config: &str) -> Self {
        let folder = TempDir::new().unwrap();
        let file = folder.path().join("tollgate.toml");
        fs::write(&file, config).unwrap();
        let command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        Self::run(command, "0.0.0.0:0", folder, Some(&file), &[])
    }

    /// In a folder that may have been used before.
    pub(crate) fn start(folder: TempDir, config: Option<&Path>, environment: &[(&str, &str)]) -> Self {
        Self::run(Command::new(env!("CARGO_BIN_EXE_tollgate")), LOOPBACK, folder, config, environment)
    }

    fn run(
        mut command: Command,
        listen: &str,
        folder: TempDir,
        config: Option<&Path>,
        environment: &[(&str, &str)],
    ) -> Self {
        command.args(["serve", "--listen", listen, "--data-dir"]).arg(folder.path().join("data"));
        if let Some(file) = config {
            command.arg("--config").arg(file);
        }
        let log = fs::File::create(folder.path().join("log")).unwrap();
        command.envs(environment.iter().copied()).stdout(Stdio::piped()).stderr(log).stdin(Stdio::null());
        let mut child = command.spawn().unwrap();
        let (address, banner) = read_banner(&mut child, folder.path());
        Service { child, address, folder, banner }
    }

    pub(crate) fn config_file(&self) -> PathBuf {
        self.folder.path().join("tollgate.toml")
    }

    pub(crate) fn data_dir(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    pub(crate) fn admin_key(&self) -> String {
        fs::read_to_string(self.data_dir().join("admin.key")).unwrap().trim().to_owned()
    }

    /// Sends JSON by POST.
    pub(crate) fn post(&self, path: &str, body: &str) -> Answer {
        self.send("POST", path, &[("content-type", "application/json")], body)
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[], "")
    }

    /// Sends a request with the admin key.
    pub(crate) fn admin(&self, method: &str, path: &str, body: &str) -> Answer {
        self.with_key(&self.admin_key(), method, path, body)
    }

    pub(crate) fn with_key(&self, key: &str, method: &str, path: &str, body: &str) -> Answer {
        let bearer = format!("Bearer {key}");
        self.send(method, path, &[("content-type", "application/json"), ("authorization", &bearer)], body)
    }

    /// Sends one request on a new connection. The response must match `/openapi.json`.
    pub(crate) fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let mut request = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n");
        for (name, value) in headers {
            let _ = write!(request, "{name}: {value}\r\n");
        }
        let _ = write!(request, "content-length: {}\r\n\r\n{body}", body.len());
        let answer = self.raw(request.as_bytes());
        let exchange = openapi_validator::Exchange { method, target: path, headers, body, answer: &answer };
        if let Err(complaint) = openapi_validator::check(description(), &exchange) {
            panic!("{method} {path} does not match the description: {complaint}\n{body}\n{answer:#?}");
        }
        answer
    }

    /// Sends raw bytes.
    pub(crate) fn raw(&self, bytes: &[u8]) -> Answer {
        let mut stream = self.connect();
        // The server may respond and close before everything is written.
        let _ = stream.write_all(bytes);
        read_answer(&mut stream)
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(15))).unwrap();
        stream
    }

    pub(crate) fn check(&self, user: &str, endpoint: &str) -> Answer {
        self.post("/v1/rate-limit/check", &format!(r#"{{"user_id":"{user}","endpoint":"{endpoint}"}}"#))
    }

    pub(crate) fn signal(&self, signal: &str) {
        let sent = Command::new("kill").arg(signal).arg(self.child.id().to_string()).status().unwrap();
        assert!(sent.success());
    }

    /// Sends a signal several times in quick succession; the kernel merges pending ones.
    pub(crate) fn signal_in_a_burst(&self, signal: &str) {
        let burst = format!("for _ in 1 2 3 4 5 6 7 8 9 10; do kill {signal} {}; done", self.child.id());
        assert!(Command::new("sh").args(["-c", &burst]).status().unwrap().success());
    }

    /// Resident memory in KiB.
    pub(crate) fn resident_kib(&self) -> u64 {
        self.memory_kib("VmRSS:")
    }

    /// Resident memory without the pages of the program file, in KiB.
    pub(crate) fn heap_kib(&self) -> u64 {
        self.memory_kib("RssAnon:")
    }

    /// The most resident memory so far, in KiB.
    pub(crate) fn peak_resident_kib(&self) -> u64 {
        self.memory_kib("VmHWM:")
    }

    fn memory_kib(&self, name: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    /// CPU time used so far.
    pub(crate) fn processor_time(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
        Duration::from_millis(ticks * 10)
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Waits for the process to exit and returns its folder for the next one.
    pub(crate) fn ended(mut self) -> (ExitStatus, TempDir) {
        let status = wait_for("the process to end", || self.child.try_wait().unwrap());
        let folder = std::mem::replace(&mut self.folder, TempDir::new().unwrap());
        (status, folder)
    }

    pub(crate) fn metric(&self, line: &str) -> Option<f64> {
        let text = self.get("/metrics").text;
        let value = text.lines().find_map(|each| each.strip_prefix(line)?.strip_prefix(' '));
        value.map(|value| value.parse().unwrap())
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| &**value)
    }

    /// Status, code and field of an error.
    pub(crate) fn error(&self) -> (u16, String, String) {
        let json = self.json();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        (self.status, text(&json["error"]["code"]), text(&json["error"]["details"]["field"]))
    }
}

/// The OpenAPI description, fetched from a service started only for that.
pub(crate) fn description() -> &'static Value {
    static DESCRIPTION: OnceLock<Value> = OnceLock::new();
    DESCRIPTION.get_or_init(|| {
        let request = b"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
        Service::unconfigured().raw(request).json()
    })
}

/// Polls until there is a result, for at most half a minute.
pub(crate) fn wait_for<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(started.elapsed() < Duration::from_secs(30), "timed out waiting for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Raises the descriptor limit of this process and its children to the maximum, which must allow so many sockets.
pub(crate) fn allow_descriptors(sockets: usize) {
    let own = std::process::id().to_string();
    let limit = Command::new("sh").args(["-c", "ulimit -Hn"]).output().unwrap();
    let hard = String::from_utf8(limit.stdout).unwrap().trim().to_owned();
    let raised = Command::new("prlimit").args(["--pid", &own, &format!("--nofile={hard}:{hard}")]).status();
    assert!(raised.unwrap().success(), "the hard descriptor limit is only {hard}");
    let enough = hard == "unlimited" || hard.parse::<usize>().unwrap() > sockets + 200;
    assert!(enough, "{sockets} sockets need a higher hard limit of descriptors than {hard}");
}

/// The address, and the banner up to the examples.
fn read_banner(child: &mut Child, folder: &Path) -> (SocketAddr, String) {
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut banner = String::new();
    while !banner.contains("Try it:") {
        let read = lines.read_line(&mut banner).unwrap();
        let log = || fs::read_to_string(folder.join("log")).unwrap_or_default();
        assert!(read > 0, "it ended instead of serving: {banner}{}", log());
    }
    let address = banner.split("://").nth(1).unwrap();
    let end = address.find(|c: char| !(c.is_ascii_hexdigit() || ".:[]".contains(c))).unwrap();
    let address = address[..end].parse().unwrap();
    // Drain the rest, so that the process never blocks on a full pipe.
    std::thread::spawn(move || std::io::copy(&mut lines, &mut std::io::sink()));
    (address, banner)
}

pub(crate) fn read_answer(stream: &mut impl Read) -> Answer {
    let mut bytes = Vec::new();
    let mut chunk = [0; 16 << 10];
    loop {
        if let Some(answer) = parse_answer(&bytes) {
            return answer;
        }
        match read_some(stream, &mut chunk) {
            Ok(0) | Err(_) => break,
            Ok(count) => bytes.extend_from_slice(&chunk[..count]),
        }
    }
    Answer { status: 0, headers: Vec::new(), text: String::from_utf8_lossy(&bytes).into_owned() }
}

/// Reads what has arrived, waiting for the first byte. A process that is stopped and continued (for example by a live
/// migration) gets EINTR from a read with a timeout.
pub(crate) fn read_some(stream: &mut impl Read, chunk: &mut [u8]) -> std::io::Result<usize> {
    loop {
        match stream.read(chunk) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            read => return read,
        }
    }
}

fn parse_answer(bytes: &[u8]) -> Option<Answer> {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let mut lines = head.split("\r\n");
    let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(n, v)| (n.to_lowercase(), v.to_owned()))
        .collect();
    let header = |wanted: &str| headers.iter().find(|(name, _)| name == wanted).map(|(_, value)| &**value);
    let body = &bytes[end + 4..];
    if header("transfer-encoding") == Some("chunked") {
        let text = String::from_utf8_lossy(&parse_chunks(body)?).into_owned();
        return Some(Answer { status, headers, text });
    }
    let length = header("content-length").unwrap_or("0");
    let length: usize = length.parse().ok()?;
    let text = (body.len() >= length).then(|| String::from_utf8_lossy(&body[..length]).into_owned())?;
    Some(Answer { status, headers, text })
}

/// The body of a chunked response, once it is complete.
fn parse_chunks(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let end = rest.windows(2).position(|window| window == b"\r\n")?;
        let length = usize::from_str_radix(std::str::from_utf8(&rest[..end]).ok()?, 16).ok()?;
        let chunk = rest.get(end + 2..end + 2 + length + 2)?;
        if length == 0 {
            return Some(body);
        }
        body.extend_from_slice(&chunk[..length]);
        rest = &rest[end + 2 + length + 2..];
    }
}

use std::path::Path;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;

use super::*;
use crate::config::settings::Flags;

struct Running {
    ready: Ready,
    end: oneshot::Sender<()>,
    task: JoinHandle<Result<(), ServeError>>,
}

fn settings(dir: &Path, config: Option<&str>) -> Settings {
    let file = config.map(|text| {
        let file = dir.join("tollgate.toml");
        std::fs::write(&file, text).unwrap();
        file
    });
    let listen = Some("127.0.0.1:0".parse().unwrap());
    let flags = Flags { config: file, listen, data_dir: Some(dir.join("data")), ..Flags::default() };
    Settings::load(&flags, std::iter::empty()).unwrap()
}

async fn start(settings: Settings) -> Running {
    let (end, ended) = oneshot::channel::<()>();
    let (sender, receiver) = oneshot::channel();
    let task = tokio::spawn(async move {
        let ready = |ready| drop(sender.send(ready));
        serve_until(settings, ready, async { ended.await.unwrap_or(()) }).await
    });
    Running { ready: receiver.await.unwrap(), end, task }
}

impl Running {
    async fn send(&self, request: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(self.ready.address).await.unwrap();
        let length = body.len();
        let head = "host: localhost\r\nconnection: close\r\ncontent-type: application/json";
        let text = format!("{request} HTTP/1.1\r\n{head}\r\ncontent-length: {length}\r\n\r\n{body}");
        stream.write_all(text.as_bytes()).await.unwrap();
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer).await;
        answer
    }

    async fn check(&self) -> String {
        self.send("POST /v1/rate-limit/check", r#"{"user_id":"alice","endpoint":"/x"}"#).await
    }

    async fn stop(self) {
        self.end.send(()).unwrap();
        self.task.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn serves_prints_its_address_and_stops() {
    let dir = tempfile::tempdir().unwrap();
    let running = start(settings(dir.path(), None)).await;
    assert_ne!(running.ready.address.port(), 0);
    assert!(running.send("GET /healthz", "").await.starts_with("HTTP/1.1 200"));
    running.stop().await;
    assert!(dir.path().join("data/counters.snap").exists());
}

#[tokio::test]
async fn restart_keeps_consumption() {
    let dir = tempfile::tempdir().unwrap();
    let config = "default_limit = 1\ndefault_window = \"1h\"";
    let running = start(settings(dir.path(), Some(config))).await;
    assert!(running.check().await.starts_with("HTTP/1.1 200"));
    running.stop().await;
    let running = start(settings(dir.path(), Some(config))).await;
    assert!(running.check().await.starts_with("HTTP/1.1 429"));
    running.stop().await;
}

#[tokio::test]
async fn changed_file_is_applied_without_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let running = start(settings(dir.path(), Some("default_limit = 1"))).await;
    assert!(running.check().await.starts_with("HTTP/1.1 200"));
    assert!(running.check().await.starts_with("HTTP/1.1 429"));
    std::fs::write(dir.path().join("tollgate.toml"), "default_limit = 500").unwrap();
    let started = std::time::Instant::now();
    while !running.check().await.contains("\"limit\":500") {
        assert!(started.elapsed() < Duration::from_secs(30), "{}", running.check().await);
        tokio::time::sleep(FILE_POLL_EVERY / 10).await;
    }
    running.stop().await;
}

#[tokio::test]
async fn address_in_use_is_named_in_the_error() {
    let dir = tempfile::tempdir().unwrap();
    let taken = listener::listen(([127, 0, 0, 1], 0).into()).unwrap();
    let mut settings = settings(dir.path(), None);
    settings.listen = taken.local_addr().unwrap();
    let error = serve_until(settings, |_| {}, async {}).await.unwrap_err();
    assert!(error.to_string().starts_with(&format!("cannot listen on {}", taken.local_addr().unwrap())));
}

#[tokio::test]
async fn banner_shows_addresses_and_a_new_key_once() {
    let dir = tempfile::tempdir().unwrap();
    let running = start(settings(dir.path(), None)).await;
    let key = std::fs::read_to_string(dir.path().join("data/admin.key")).unwrap();
    let text = banner(&running.ready);
    let address = running.ready.address;
    for part in [
        &format!("http://{address}/healthz"),
        &format!("http://{address}/docs"),
        &format!("http://{address}/metrics"),
        &format!("curl -i http://{address}/v1/rate-limit/check"),
        "data/admin.key",
        "\"default\": 100 requests per 1m, per client",
        key.trim(),
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    assert!(!format!("{:?}", running.ready).contains(key.trim()), "Debug shows the key");
    running.stop().await;
    let running = start(settings(dir.path(), None)).await;
    assert!(!banner(&running.ready).contains(key.trim()));
    running.stop().await;
}

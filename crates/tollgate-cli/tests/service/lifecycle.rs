//! Start, reload, drain and stop.

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use tempfile::TempDir;

use crate::harness::{Service, read_answer, wait_for};

fn serve(arguments: &[&str]) -> Output {
    let folder = TempDir::new().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--data-dir"]).arg(folder.path()).args(arguments);
    command.output().unwrap()
}

#[test]
fn banner_shows_the_next_steps() {
    let service = Service::unconfigured();
    assert!(service.banner.contains(&format!("http://{}", service.address)), "{}", service.banner);
}

#[test]
fn invalid_settings_prevent_the_start() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("broken.toml");
    fs::write(&file, "default_limit = -1\n[server]\nlisten = \"nowhere\"\nlisen = 1\n[[rules]]\nname = \"a\"\nper = [\"planet\"]\n")
        .unwrap();
    let output = serve(&["--config", file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    let message = String::from_utf8_lossy(&output.stderr);
    for part in [
        "broken.toml:1: default_limit: ",
        ":3: server.listen: ",
        ":4: server.lisen: ",
        ":7: rules[0].per[0]: ",
    ] {
        assert!(message.contains(part), "{part} is not in: {message}");
    }
    assert!(message.contains("did you mean listen?"), "{message}");
    let missing = serve(&["--config", "/nowhere/tollgate.toml"]);
    assert_eq!(missing.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&missing.stderr).contains("/nowhere/tollgate.toml"));
}

#[test]
fn environment_overrides_the_file() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("tollgate.toml");
    fs::write(&file, "default_limit = 5").unwrap();
    let service = Service::start(folder, Some(&file), &[("TOLLGATE_DEFAULT_LIMIT", "7")]);
    assert_eq!(service.check("a", "/x").json()["limit"], 7);
    let wrong = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(["serve", "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(service.folder.path().join("other"))
        .env("TOLLGATE_SERVER__CONNECTIONS_MAX", "many")
        .output()
        .unwrap();
    assert_eq!(wrong.status.code(), Some(2));
    let message = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert!(message.contains("TOLLGATE_SERVER__CONNECTIONS_MAX"), "{message}");
}

#[test]
fn weak_admin_key_prevents_the_start() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("admin.key");
    fs::write(&file, "short\n").unwrap();
    let refused = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(["serve", "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(folder.path())
        .output()
        .unwrap();
    assert_eq!(refused.status.code(), Some(2));
    let message = String::from_utf8_lossy(&refused.stderr).into_owned();
    for part in [file.to_str().unwrap(), "too short", "at least 22", "remove the file"] {
        assert!(message.contains(part), "{part} is not in: {message}");
    }
}

#[test]
fn open_checks_on_a_network_address_warn() {
    let warning = "checks need no key and this address is not loopback: set auth.open_checks = false";
    let open = Service::on_every_address("");
    assert!(open.banner.contains(warning), "{}", open.banner);
    assert!(open.banner.contains("serving on 0.0.0.0:"), "{}", open.banner);
    let warned =
        |service: &Service| service.log().lines().any(|line| line.contains("WARN") && line.contains(warning));
    assert!(warned(&open), "{}", open.log());
    let closed = Service::on_every_address("[auth]\nopen_checks = false");
    assert!(!closed.banner.contains(warning) && !warned(&closed), "{}{}", closed.banner, closed.log());
    fs::write(closed.config_file(), "[auth]\nopen_checks = true").unwrap();
    assert_eq!(closed.admin("POST", "/v1/admin/reload", "").status, 200);
    assert!(warned(&closed), "a reload has opened it: {}", closed.log());
    let local = Service::unconfigured();
    assert!(!local.banner.contains(warning) && !warned(&local), "{}{}", local.banner, local.log());
}

#[test]
fn two_processes_cannot_share_a_data_directory() {
    let service = Service::unconfigured();
    let second = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(["serve", "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(service.data_dir())
        .output()
        .unwrap();
    assert_eq!(second.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&second.stderr).contains("data"));
}

#[test]
fn changed_file_is_reloaded_by_every_trigger() {
    let service = Service::with_config("default_limit = 10");
    let limit = || service.check("a", "/x").json()["limit"].as_u64().unwrap();
    assert_eq!(limit(), 10);
    fs::write(service.config_file(), "default_limit = 11").unwrap();
    wait_for("the changed file to be loaded", || (limit() == 11).then_some(()));
    fs::write(service.config_file(), "default_limit = 12").unwrap();
    service.signal("-HUP");
    wait_for("the reload by signal", || (limit() == 12).then_some(()));
    fs::write(service.config_file(), "default_limit = 13").unwrap();
    assert_eq!(service.admin("POST", "/v1/admin/reload", "").status, 200);
    assert_eq!(limit(), 13);
    let remaining = service.check("a", "/x").json()["remaining"].as_u64().unwrap();
    assert!(remaining < 12, "usage must carry over: {remaining}");
}

#[test]
fn invalid_file_keeps_the_old_rules_and_is_reported() {
    let service = Service::with_config("default_limit = 10");
    fs::write(service.config_file(), "default_limit = \"ten\"").unwrap();
    let refused = service.admin("POST", "/v1/admin/reload", "");
    assert_eq!((refused.status, refused.error().1), (400, "INVALID_INPUT".to_owned()));
    assert!(refused.text.contains("default_limit"), "{}", refused.text);
    assert_eq!(service.check("a", "/x").json()["limit"], 10);
    let ready = service.get("/readyz");
    assert_eq!((ready.status, &ready.json()["status"]), (200, &serde_json::json!("degraded")));
    assert!(ready.text.contains("default_limit"));
    assert_eq!(service.metric("tollgate_config_last_reload_success"), Some(0.0));
    assert!(service.log().contains("default_limit"), "{}", service.log());
    fs::write(service.config_file(), "default_limit = 20").unwrap();
    assert_eq!(service.admin("POST", "/v1/admin/reload", "").status, 200);
    assert_eq!(service.get("/readyz").json()["status"], "ready");
    assert_eq!(service.metric("tollgate_config_last_reload_success"), Some(1.0));
}

#[test]
fn each_decision_uses_one_configuration() {
    let service = Service::with_config("default_limit = 1000000");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let checker = scope.spawn(|| {
            let mut seen = 0;
            while !done.load(Ordering::Relaxed) {
                let answer = service.check("a", "/x");
                let limit = answer.json()["limit"].as_u64().unwrap();
                assert!(answer.status == 200 && [1_000_000, 2_000_000].contains(&limit), "{}", answer.text);
                seen += 1;
            }
            seen
        });
        for round in 0..60 {
            let text = match round % 3 {
                0 => "default_limit = 2000000",
                1 => "default_limit = 1000000",
                _ => "default_limit = [",
            };
            fs::write(service.config_file(), text).unwrap();
            service.admin("POST", "/v1/admin/reload", "");
        }
        done.store(true, Ordering::Relaxed);
        assert!(checker.join().unwrap() > 0);
    });
}

#[test]
fn restart_keeps_usage() {
    let service = Service::with_config("default_limit = 3\ndefault_window = 86400");
    for _ in 0..3 {
        service.check("a", "/x");
    }
    service.signal("-TERM");
    let (status, folder) = service.ended();
    assert_eq!(status.code(), Some(0));
    let file = folder.path().join("tollgate.toml");
    let again = Service::start(folder, Some(&file), &[]);
    assert_eq!(again.check("a", "/x").status, 429);
}

#[test]
fn damaged_snapshot_is_set_aside() {
    let service = Service::unconfigured();
    service.check("a", "/x");
    service.signal("-TERM");
    let (_, folder) = service.ended();
    let snapshot = folder.path().join("data/counters.snap");
    let mut bytes = fs::read(&snapshot).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0xff;
    fs::write(&snapshot, bytes).unwrap();
    let again = Service::start(folder, None, &[]);
    assert_eq!(again.check("a", "/x").json()["remaining"], 99);
    assert!(again.log().contains("snapshot"), "{}", again.log());
}

#[test]
fn sigterm_completes_requests_in_flight() {
    let service = Service::with_config("default_limit = 1000000");
    let request = "POST /v1/rate-limit/check HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 31\r\n\r\n{\"user_id\":\"a\",\"endpoint\":\"/x\"}";
    let address = service.address;
    let (sender, answers) = mpsc::channel();
    let clients: Vec<_> = (0..8)
        .map(|_| {
            let sender = sender.clone();
            std::thread::spawn(move || {
                let mut stream = TcpStream::connect(address).unwrap();
                stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
                let (mut sent, mut answered) = (0, 0);
                while stream.write_all(request.as_bytes()).is_ok() {
                    sent += 1;
                    let answer = read_answer(&mut stream);
                    if answer.status == 0 {
                        // Closed between two requests: the last one never reached the service.
                        sent -= usize::from(answer.text.is_empty());
                        break;
                    }
                    answered += 1;
                    if answered == 1 {
                        sender.send(()).unwrap();
                    }
                    if answer.header("connection") == Some("close") {
                        break;
                    }
                }
                (sent, answered)
            })
        })
        .collect();
    for _ in &clients {
        answers.recv_timeout(Duration::from_secs(30)).unwrap();
    }
    service.signal("-TERM");
    for client in clients {
        let (sent, answered) = client.join().unwrap();
        assert!(answered > 0 && sent == answered, "sent {sent}, answered {answered}");
    }
    let (status, _) = service.ended();
    assert_eq!(status.code(), Some(0));
}

//! Shutdown, and disks that cannot be written.

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::harness::{Service, wait_for};

/// A directory in place of the file prevents writing, even for root.
fn block_snapshot_path(folder: &TempDir) {
    fs::create_dir_all(folder.path().join("data/counters.snap.tmp/in-the-way")).unwrap();
}

/// A service that saves every second and fails to.
fn with_unwritable_disk() -> Service {
    let folder = TempDir::new().unwrap();
    block_snapshot_path(&folder);
    let file = folder.path().join("tollgate.toml");
    fs::write(&file, "[counters]\nsave_every = \"1s\"").unwrap();
    Service::start(folder, Some(&file), &[])
}

/// An incomplete request that delays the shutdown.
fn begun(service: &Service) -> TcpStream {
    let mut stream = service.connect();
    stream.write_all(b"POST /v1/rate-limit/check HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 31\r\n\r\n{").unwrap();
    // A response on another connection shows that the first was accepted.
    service.check("a", "/x");
    stream
}

#[test]
fn signal_burst_saves_counters_once() {
    let burst = || {
        let service = Service::with_config("[server]\ndrain_timeout = \"2s\"");
        let _held = begun(&service);
        let started = Instant::now();
        service.signal_in_a_burst("-TERM");
        // On a busy machine the signals may take half a second and are not a burst.
        (started.elapsed() < Duration::from_millis(300)).then(|| service.ended())
    };
    let (status, folder) = (0..20).find_map(|_| burst()).expect("a burst on this machine");
    assert_eq!(status.code(), Some(0), "{}", fs::read_to_string(folder.path().join("log")).unwrap());
    assert!(folder.path().join("data/counters.snap").exists());
}

#[test]
fn second_signal_exits_immediately() {
    let two_signals = || {
        let mut service = Service::with_config("[server]\ndrain_timeout = \"2m\"\nbody_timeout = \"2m\"");
        let _held = begun(&service);
        service.signal("-TERM");
        std::thread::sleep(Duration::from_millis(700));
        service.signal("-TERM");
        // A process that was paused between them sees only one signal.
        let at_once = (0..1_000).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            service.has_ended()
        });
        at_once.then(|| service.ended())
    };
    let (status, folder) =
        (0..5).find_map(|_| two_signals()).expect("an end long before the request is given up");
    assert_eq!(status.code(), Some(130), "{}", fs::read_to_string(folder.path().join("log")).unwrap());
}

#[test]
fn unwritable_disk_is_reported_and_checks_continue() {
    let service = with_unwritable_disk();
    let failures = || service.metric("tollgate_snapshot_failures_total").unwrap();
    wait_for("a failed save", || (failures() >= 1.0).then_some(()));
    assert_eq!(service.check("a", "/x").status, 200);
    let ready = service.get("/readyz");
    assert_eq!((ready.status, &ready.json()["status"]), (200, &serde_json::json!("degraded")));
    let message = ready.json()["data_dir_error"].as_str().unwrap().to_owned();
    assert!(message.contains("cannot save the counters"), "{message}");
    fs::remove_dir_all(service.data_dir().join("counters.snap.tmp")).unwrap();
    wait_for("a save that succeeds", || service.data_dir().join("counters.snap").exists().then_some(()));
    wait_for("readiness to recover", || (service.get("/readyz").json()["status"] == "ready").then_some(()));
}

#[test]
fn shutdown_that_loses_counters_fails() {
    let service = with_unwritable_disk();
    service.check("a", "/x");
    service.signal("-TERM");
    let (status, folder) = service.ended();
    assert_eq!(status.code(), Some(2));
    let log = fs::read_to_string(folder.path().join("log")).unwrap();
    let message = log.lines().find(|line| line.contains("ERROR")).unwrap_or_else(|| panic!("{log}"));
    for part in ["counters.snap", "all counters are lost"] {
        assert!(message.contains(part), "{part} is not in: {message}");
    }
}

#[test]
fn shutdown_with_an_older_snapshot_reports_it() {
    let folder = TempDir::new().unwrap();
    let service = Service::start(folder, None, &[]);
    service.check("a", "/x");
    service.signal("-TERM");
    let (_, folder) = service.ended();
    block_snapshot_path(&folder);
    let again = Service::start(folder, None, &[]);
    again.signal("-TERM");
    let (status, folder) = again.ended();
    assert_eq!(status.code(), Some(2));
    let log = fs::read_to_string(folder.path().join("log")).unwrap();
    assert!(log.contains("charges since the last save are lost"), "{log}");
}

//! Clients that send requests and do not take the responses.

use std::fmt::Write as _;
use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::harness::{Service, wait_for};
use crate::http2_floods::{END_HEADERS, END_STREAM, HEADERS, PREFACE, SETTINGS, frame, headers};

const CONNECTIONS: usize = 500;
/// As many as the server allows.
const STREAMS: u32 = 100;
/// How far the process may grow.
const GROWTH_KIB_MAX: u64 = 64 * 1024;
/// Longer than the write timeout under pressure, so that the attack continues on new connections.
const ATTACK_TIME: Duration = Duration::from_secs(4);

/// Opens a connection without a receive window and sends as many requests as the server allows.
fn attack(service: &Service, method: &str, path: &str) -> TcpStream {
    let mut stream = service.connect();
    stream.set_write_timeout(Some(Duration::from_secs(5))).unwrap();
    let no_window = frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]);
    let request = |turn: u32| frame(HEADERS, END_HEADERS | END_STREAM, 2 * turn + 1, &headers(method, path));
    let requests: Vec<u8> = (0..STREAMS).flat_map(request).collect();
    // The server may close the connection before everything is written.
    let _ = stream.write_all(&[PREFACE, &no_window, &requests].concat());
    stream
}

/// Attacks with 500 connections at a time, each replaced by a new one over and over; returns the growth in KiB at its peak and
/// some seconds after the attack.
fn growth_under_attack(service: &Service, path: &str) -> (u64, u64) {
    assert_eq!(service.check("healthy", "/x").status, 200);
    assert_eq!(service.get("/metrics").status, 200);
    let before = service.resident_kib();
    let started = Instant::now();
    let mut held: Vec<TcpStream> = Vec::new();
    let mut answered = 0;
    while held.len() < CONNECTIONS || started.elapsed() < ATTACK_TIME {
        if held.len() >= CONNECTIONS {
            held.drain(..100);
        }
        held.extend((0..50).map(|_| attack(service, "GET", path)));
        assert_eq!(service.check("healthy", "/x").status, 200, "check {answered} under attack");
        answered += 1;
    }
    let peak = service.peak_resident_kib();
    drop(held);
    let after = wait_for("memory to be returned", || {
        std::thread::sleep(Duration::from_millis(200));
        let now = service.resident_kib();
        (now < before + GROWTH_KIB_MAX / 2).then_some(now)
    });
    println!("{path}: {before} KiB before, {peak} at the peak, {after} after; {answered} checks answered");
    (peak.saturating_sub(before), after.saturating_sub(before))
}

#[test]
fn unread_metrics_on_500_connections_are_bounded() {
    let service = Service::with_config("default_limit = 100000000");
    let (growth, _) = growth_under_attack(&service, "/metrics");
    assert!(growth <= GROWTH_KIB_MAX, "grew by {growth} KiB");
}

#[test]
fn unread_large_metrics_are_bounded() {
    let mut config = "default_limit = 100000000\n".to_owned();
    for rule in 0..2_000 {
        let _ = writeln!(
            config,
            "[[rules]]\nname = \"rule-{rule}\"\nwhen = {{ users = [\"u{rule}\"] }}\nper = [\"user\"]\n\
             limits = [{{ requests = 5, window = \"1h\" }}]"
        );
    }
    let service = Service::with_config(&config);
    let (growth, _) = growth_under_attack(&service, "/metrics");
    assert!(growth <= GROWTH_KIB_MAX, "grew by {growth} KiB");
}

#[test]
fn unread_small_responses_are_bounded() {
    let service = Service::with_config("default_limit = 100000000");
    let (growth, _) = growth_under_attack(&service, "/healthz");
    assert!(growth <= GROWTH_KIB_MAX, "grew by {growth} KiB");
}

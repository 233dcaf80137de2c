//! The end of the process.

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use crate::harness::Service;

/// A request that has begun and does not go on: as long as it may, the end waits for it.
fn begun(service: &Service) -> TcpStream {
    let mut stream = service.connect();
    stream.write_all(b"POST /v1/rate-limit/check HTTP/1.1\r\nhost: t\r\ncontent-type: application/json\r\ncontent-length: 31\r\n\r\n{").unwrap();
    // An answer on another connection: the first has been accepted.
    service.check("a", "/x");
    stream
}

#[test]
fn t59_signals_in_a_burst_are_one_and_the_counters_are_saved() {
    let service = Service::with_config("[server]\ndrain_timeout = \"2s\"");
    let _held = begun(&service);
    service.signal_in_a_burst("-TERM");
    let (status, folder) = service.ended();
    assert_eq!(status.code(), Some(0), "{}", fs::read_to_string(folder.path().join("log")).unwrap());
    assert!(folder.path().join("data/counters.snap").exists());
}

#[test]
fn a_second_signal_after_a_while_ends_it_at_once() {
    let service = Service::with_config("[server]\ndrain_timeout = \"30s\"\nbody_timeout = \"30s\"");
    let _held = begun(&service);
    service.signal("-TERM");
    std::thread::sleep(Duration::from_millis(700));
    service.signal("-TERM");
    let (status, folder) = service.ended();
    assert_eq!(status.code(), Some(130), "{}", fs::read_to_string(folder.path().join("log")).unwrap());
}

//! Memory of connections that wait for their next request.

use std::io::Write;
use std::net::TcpStream;

use tempfile::TempDir;
use tollgate_testkit::Certificates;

use crate::harness::{Service, allow_descriptors, read_answer};
use crate::tls::proxy_tls;
use crate::tls_client::{TlsClient, TlsConnection};
use crate::upstream::{Upstream, connect, proxy_of};

/// 10,000 connections may take 150 MB. Futures of a build without optimization are larger.
const BYTES_PER_CONNECTION: u64 = if cfg!(debug_assertions) { 24_000 } else { 15_000 };

const SETTINGS: &str = "enabled = false\n[server]\nconnections_max = 12000\nconnections_per_ip_max = 12000\n\
                        idle_timeout = \"10m\"\n";

/// The number of connections, 10,000 with `LONG_TESTS`.
fn count(otherwise: u32) -> u32 {
    if std::env::var_os("LONG_TESTS").is_some() { 10_000 } else { otherwise }
}

/// Opens connections and uses each once; returns the memory that they take, in KiB.
fn memory_of<C>(service: &Service, count: u32, open_and_use: impl Fn() -> C) -> (u64, Vec<C>) {
    // What the first requests allocate once is not the cost of a connection.
    let _first: Vec<C> = (0..100).map(|_| open_and_use()).collect();
    let before = service.resident_kib();
    let connections: Vec<C> = (0..count).map(|_| open_and_use()).collect();
    let open = service.metric("tollgate_proxy_connections").unwrap();
    assert!(open >= f64::from(count), "{open} open");
    (service.resident_kib().saturating_sub(before), connections)
}

fn get(connection: &mut TcpStream) -> u16 {
    connection.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
    read_answer(connection).status
}

#[test]
fn idle_connections_cost_little_memory() {
    let count = count(2_000);
    allow_descriptors(count as usize + 100);
    let upstream = Upstream::start();
    let service = Service::with_config(&Upstream::proxied(&[&upstream], "", SETTINGS));
    let proxy = proxy_of(&service);
    let (grown, mut connections) = memory_of(&service, count, || {
        let mut connection = connect(proxy);
        assert_eq!(get(&mut connection), 200);
        connection
    });
    println!("{count} connections take {grown} KiB");
    assert!(grown * 1_024 <= u64::from(count) * BYTES_PER_CONNECTION, "{count} connections take {grown} KiB");
    for connection in [0, connections.len() - 1] {
        assert_eq!(get(&mut connections[connection]), 200, "still usable");
    }
}

/// The memory is reported; there is no bound for it.
#[test]
fn idle_tls_connections_stay_usable() {
    let count = count(300);
    let folder = TempDir::new().unwrap();
    let certificates = Certificates::create_in(folder.path());
    allow_descriptors(count as usize + 100);
    let upstream = Upstream::start();
    let config = Upstream::proxied(&[&upstream], "", SETTINGS) + &proxy_tls(&certificates);
    let service = Service::with_config(&config);
    let client = TlsClient::new(proxy_of(&service), &certificates.authority);
    let (grown, mut connections) = memory_of(&service, count, || -> TlsConnection {
        let mut connection = client.connect();
        connection.get().unwrap();
        connection
    });
    println!("{count} TLS connections take {grown} KiB");
    for connection in [0, connections.len() - 1] {
        connections[connection].get().unwrap();
    }
}

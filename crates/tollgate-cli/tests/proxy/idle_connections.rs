//! Memory of connections that wait for their next request.

use std::io::Write;
use std::net::TcpStream;

use crate::harness::{Service, read_answer};
use crate::upstream::{Upstream, connect, proxy_of};

/// 10,000 connections may take 150 MB. Futures of a build without optimization are larger.
const KIB_PER_CONNECTION: u64 = if cfg!(debug_assertions) { 24 } else { 15 };

#[test]
fn idle_connections_cost_little_memory() {
    let count: u32 = if std::env::var_os("TOLLGATE_LONG_TESTS").is_some() { 10_000 } else { 2_000 };
    let upstream = Upstream::start();
    let top = "enabled = false\n[server]\nconnections_max = 12000\nconnections_per_ip_max = 12000\n\
               idle_timeout = \"10m\"\n";
    let service = Service::with_config(&Upstream::proxied(&[&upstream], "", top));
    let proxy = proxy_of(&service);
    let open_and_use = |count: u32| {
        let mut connections: Vec<TcpStream> = (0..count).map(|_| connect(proxy)).collect();
        for connection in &mut connections {
            connection.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
            assert_eq!(read_answer(connection).status, 200);
        }
        connections
    };
    // What the first requests allocate once is not the cost of a connection.
    let _first = open_and_use(100);
    let before = service.resident_kib();
    let mut connections = open_and_use(count);
    let open = service.metric("tollgate_proxy_connections").unwrap();
    assert!(open >= f64::from(count), "{open} open");
    let grown = service.resident_kib().saturating_sub(before);
    println!("{count} connections take {grown} KiB");
    assert!(grown <= u64::from(count) * KIB_PER_CONNECTION, "{count} connections take {grown} KiB");
    let (first, last) = connections.split_at_mut(1);
    for connection in [first.first_mut(), last.last_mut()].into_iter().flatten() {
        connection.write_all(b"GET /again HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
        assert_eq!(read_answer(connection).status, 200, "still usable");
    }
}

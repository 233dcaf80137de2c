//! Ports that other programs are unlikely to take.
//!
//! Binding port 0 gives a port of the ephemeral range, which outgoing connections use too: another test could take it
//! before the server binds it, or while a killed server restarts. These ports lie below that range.

use std::hash::{BuildHasher, RandomState};
use std::net::TcpListener;
use std::process;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

const LOWEST: u64 = 10_000;
const COUNT: u64 = 22_000; // the ephemeral range of Linux starts at 32768
const ATTEMPTS: usize = 20;
const STRIDE: u64 = 7919; // coprime to COUNT: visits every port before repeating one

/// Returns a loopback port that is currently free and that this process has not received before.
///
/// Parallel test processes may receive the same port: if a server cannot bind it, try another.
pub fn free_port() -> u16 {
    (0..COUNT).map(|_| next_candidate()).find(|port| is_free(*port)).expect("no free port below 32000")
}

/// Listens on a loopback port that [`free_port`] does not return again in this process.
pub fn listen() -> TcpListener {
    (0..COUNT)
        .find_map(|_| TcpListener::bind(("127.0.0.1", free_port())).ok())
        .expect("a free port can be listened on")
}

/// Starts a server on new ports until it can bind them. `start` fails with the server's log.
pub(crate) fn start_on_free_port<T>(name: &str, mut start: impl FnMut() -> Result<T, String>) -> T {
    for _ in 0..ATTEMPTS {
        match start() {
            Ok(server) => return server,
            Err(log) if log.contains("Address already in use") => {}
            Err(log) => panic!("{name} does not start:\n{log}"),
        }
    }
    panic!("{ATTEMPTS} ports in a row were taken between choosing and binding them");
}

fn next_candidate() -> u16 {
    static SEED: OnceLock<u64> = OnceLock::new();
    static USED: AtomicU64 = AtomicU64::new(0);
    // Random start, so that parallel processes do not try the same ports in the same order.
    let seed = *SEED.get_or_init(|| RandomState::new().hash_one(process::id()) % COUNT);
    let offset = (seed + USED.fetch_add(1, Ordering::Relaxed) * STRIDE) % COUNT;
    u16::try_from(LOWEST + offset).expect("the range ends below 65536")
}

fn is_free(port: u16) -> bool {
    TcpListener::bind(("127.0.0.1", port)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn ports_are_unique_and_not_ephemeral() {
        let ports: HashSet<u16> = (0..500).map(|_| free_port()).collect();
        assert_eq!(ports.len(), 500);
        assert!(ports.iter().all(|port| (10_000..32_000).contains(port)));
    }

    #[test]
    fn port_in_use_is_not_free() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(!is_free(listener.local_addr().unwrap().port()));
    }
}

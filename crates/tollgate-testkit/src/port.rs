//! Ports nobody else is likely to take.
//!
//! Asking the kernel for port 0 gives a port of the ephemeral range. Every outgoing connection of every test is
//! given one from there too, so such a port may be gone before the server binds it, or while a killed server is
//! to come back. Ours lie below that range.

use std::hash::{BuildHasher, RandomState};
use std::net::TcpListener;
use std::process;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

const LOWEST: u64 = 10_000;
const COUNT: u64 = 22_000; // Linux hands out 32768 and up
const STRIDE: u64 = 7919; // prime to COUNT: visits every port before any comes back

/// A loopback port that was free a moment ago and that this process has not been given before.
///
/// Test processes run side by side and may still be given the same port: whoever starts a server has to notice
/// that the port was taken, and try another.
///
/// # Panics
///
/// If no port is free at all.
pub fn free_port() -> u16 {
    (0..COUNT).map(|_| next_candidate()).find(|port| is_free(*port)).expect("no free port below 32000")
}

/// Listens on a port of its own on loopback; nobody in this process is given that port afterwards.
///
/// # Panics
///
/// If no port is free at all.
pub fn listen() -> TcpListener {
    (0..COUNT)
        .find_map(|_| TcpListener::bind(("127.0.0.1", free_port())).ok())
        .expect("a free port can be listened on")
}

fn next_candidate() -> u16 {
    static SEED: OnceLock<u64> = OnceLock::new();
    static GIVEN: AtomicU64 = AtomicU64::new(0);
    // Test processes start at random places, so that they do not try the same ports in the same order.
    let seed = *SEED.get_or_init(|| RandomState::new().hash_one(process::id()) % COUNT);
    let offset = (seed + GIVEN.fetch_add(1, Ordering::Relaxed) * STRIDE) % COUNT;
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
    fn no_port_is_given_twice_and_none_is_ephemeral() {
        let ports: HashSet<u16> = (0..500).map(|_| free_port()).collect();
        assert_eq!(ports.len(), 500);
        assert!(ports.iter().all(|port| (10_000..32_000).contains(port)));
    }

    #[test]
    fn a_port_in_use_is_not_free() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(!is_free(listener.local_addr().unwrap().port()));
    }
}

//! Limits open connections, in total and per address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tollgate::identity::{IpPrefixes, counted_ip};

use crate::config::settings::ServerSettings;

/// Open connections by address. Locked when a connection opens and closes, not while it is served.
#[derive(Debug)]
pub(super) struct ConnectionLimits {
    total_max: usize,
    per_ip_max: usize,
    open: Mutex<OpenConnections>,
}

#[derive(Debug, Default)]
struct OpenConnections {
    total: usize,
    per_ip: HashMap<IpAddr, usize>,
}

/// Permission for one connection; dropping it frees the slot.
#[derive(Debug)]
pub(super) struct ConnectionPermit {
    limits: Arc<ConnectionLimits>,
    ip: IpAddr,
}

impl ConnectionLimits {
    pub(super) fn new(settings: &ServerSettings) -> Self {
        let ServerSettings { connections_max, connections_per_ip_max, .. } = *settings;
        ConnectionLimits {
            total_max: connections_max,
            per_ip_max: connections_per_ip_max,
            open: Mutex::default(),
        }
    }

    /// A permit for a connection from this address, unless a limit is reached. IPv6 is counted by /64.
    pub(super) fn acquire(self: &Arc<Self>, ip: IpAddr) -> Option<ConnectionPermit> {
        let ip = counted_ip(ip, IpPrefixes::DEFAULT);
        let mut open = self.open.lock();
        let of_ip = open.per_ip.get(&ip).copied().unwrap_or(0);
        if open.total >= self.total_max || of_ip >= self.per_ip_max {
            return None;
        }
        open.total += 1;
        open.per_ip.insert(ip, of_ip + 1);
        Some(ConnectionPermit { limits: Arc::clone(self), ip })
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut open = self.limits.open.lock();
        open.total -= 1;
        match open.per_ip.get_mut(&self.ip) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(open.per_ip.remove(&self.ip)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(connections_max: usize, connections_per_ip_max: usize) -> Arc<ConnectionLimits> {
        let settings =
            ServerSettings { connections_max, connections_per_ip_max, ..ServerSettings::default() };
        Arc::new(ConnectionLimits::new(&settings))
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn one_address_cannot_use_every_connection() {
        let limits = limits(3, 2);
        let held = [limits.acquire(ip("192.0.2.1")), limits.acquire(ip("192.0.2.1"))];
        assert!(held.iter().all(Option::is_some));
        assert!(limits.acquire(ip("192.0.2.1")).is_none());
        assert!(limits.acquire(ip("::ffff:192.0.2.1")).is_none(), "the same address");
        let _third = limits.acquire(ip("192.0.2.2")).unwrap();
        assert!(limits.acquire(ip("192.0.2.3")).is_none(), "the total");
    }

    #[test]
    fn closed_connection_frees_its_slot() {
        let limits = limits(1, 1);
        for _ in 0..3 {
            let permit = limits.acquire(ip("192.0.2.1"));
            assert!(permit.is_some());
        }
        assert!(limits.open.lock().per_ip.is_empty(), "nothing is kept for closed connections");
    }

    #[test]
    fn ipv6_addresses_of_one_prefix_share_a_limit() {
        let limits = limits(10, 1);
        let _held = limits.acquire(ip("2001:db8::1")).unwrap();
        assert!(limits.acquire(ip("2001:db8::2")).is_none());
        assert!(limits.acquire(ip("2001:db8:0:1::1")).is_some());
    }
}

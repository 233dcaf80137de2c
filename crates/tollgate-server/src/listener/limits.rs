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
    /// The address that it counts for, if any.
    ip: Option<IpAddr>,
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

    /// A permit for a connection, unless a limit is reached. Without an address only the total is limited.
    pub(super) fn acquire(self: &Arc<Self>, ip: Option<IpAddr>) -> Option<ConnectionPermit> {
        let mut open = self.open.lock();
        if open.total >= self.total_max {
            return None;
        }
        let ip = ip.map(counted);
        if ip.is_some_and(|ip| !open.count(ip, self.per_ip_max)) {
            return None;
        }
        open.total += 1;
        Some(ConnectionPermit { limits: Arc::clone(self), ip })
    }
}

/// IPv6 is counted by /64.
fn counted(ip: IpAddr) -> IpAddr {
    counted_ip(ip, IpPrefixes::DEFAULT)
}

impl OpenConnections {
    /// Counts a connection of this address, unless it has as many already.
    fn count(&mut self, ip: IpAddr, max: usize) -> bool {
        let of_ip = self.per_ip.get(&ip).copied().unwrap_or(0);
        let is_admitted = of_ip < max;
        if is_admitted {
            self.per_ip.insert(ip, of_ip + 1);
        }
        is_admitted
    }
}

impl ConnectionPermit {
    /// Counts the connection for the client that its proxy named. Returns false if that client has too many.
    pub(super) fn count_for(&mut self, ip: IpAddr) -> bool {
        let ip = counted(ip);
        let is_admitted = self.limits.open.lock().count(ip, self.limits.per_ip_max);
        if is_admitted {
            self.ip = Some(ip);
        }
        is_admitted
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut open = self.limits.open.lock();
        open.total -= 1;
        let Some(ip) = self.ip else { return };
        match open.per_ip.get_mut(&ip) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(open.per_ip.remove(&ip)),
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

    impl ConnectionLimits {
        fn acquire_for(self: &Arc<Self>, ip: IpAddr) -> Option<ConnectionPermit> {
            self.acquire(Some(ip))
        }
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn one_address_cannot_use_every_connection() {
        let limits = limits(3, 2);
        let held = [limits.acquire_for(ip("192.0.2.1")), limits.acquire_for(ip("192.0.2.1"))];
        assert!(held.iter().all(Option::is_some));
        assert!(limits.acquire_for(ip("192.0.2.1")).is_none());
        assert!(limits.acquire_for(ip("::ffff:192.0.2.1")).is_none(), "the same address");
        let _third = limits.acquire_for(ip("192.0.2.2")).unwrap();
        assert!(limits.acquire_for(ip("192.0.2.3")).is_none(), "the total");
    }

    #[test]
    fn closed_connection_frees_its_slot() {
        let limits = limits(1, 1);
        for _ in 0..3 {
            let permit = limits.acquire_for(ip("192.0.2.1"));
            assert!(permit.is_some());
        }
        assert!(limits.open.lock().per_ip.is_empty(), "nothing is kept for closed connections");
    }

    #[test]
    fn ipv6_addresses_of_one_prefix_share_a_limit() {
        let limits = limits(10, 1);
        let _held = limits.acquire_for(ip("2001:db8::1")).unwrap();
        assert!(limits.acquire_for(ip("2001:db8::2")).is_none());
        assert!(limits.acquire_for(ip("2001:db8:0:1::1")).is_some());
    }

    #[test]
    fn connections_of_a_proxy_count_for_the_named_client() {
        let limits = limits(10, 1);
        let mut held: Vec<_> = (0..3).map(|_| limits.acquire(None).unwrap()).collect();
        let client = ip("192.0.2.1");
        assert!(held[0].count_for(client));
        assert!(!held[1].count_for(client));
        held.remove(0);
        assert!(held[0].count_for(client), "a slot was freed");
        held.clear();
        let open = limits.open.lock();
        assert!(open.per_ip.is_empty() && open.total == 0);
    }
}

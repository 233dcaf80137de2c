//! How many connections may be open, in total and from one address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tollgate::identity::counted_ip;
use tollgate::rules::IPV6_PREFIX_DEFAULT;

use crate::config::settings::ServerSettings;

/// The places there are, and who has them. Locked when a connection opens and closes, never while it is served.
#[derive(Debug)]
pub(super) struct Caps {
    total_max: usize,
    per_ip_max: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    total: usize,
    per_ip: HashMap<IpAddr, usize>,
}

/// A connection's place, given back when dropped.
#[derive(Debug)]
pub(super) struct Place {
    caps: Arc<Caps>,
    ip: IpAddr,
}

impl Caps {
    pub(super) fn new(settings: &ServerSettings) -> Self {
        let ServerSettings { connections_max, connections_per_ip_max, .. } = *settings;
        Caps { total_max: connections_max, per_ip_max: connections_per_ip_max, taken: Mutex::default() }
    }

    /// A place for a connection from this address, if there is one.
    pub(super) fn take(self: &Arc<Self>, ip: IpAddr) -> Option<Place> {
        // Whoever has one IPv6 address has its whole /64.
        let ip = counted_ip(ip, IPV6_PREFIX_DEFAULT);
        let mut taken = self.taken.lock();
        let of_ip = taken.per_ip.get(&ip).copied().unwrap_or(0);
        if taken.total >= self.total_max || of_ip >= self.per_ip_max {
            return None;
        }
        taken.total += 1;
        taken.per_ip.insert(ip, of_ip + 1);
        Some(Place { caps: Arc::clone(self), ip })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.caps.taken.lock();
        taken.total -= 1;
        match taken.per_ip.get_mut(&self.ip) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(taken.per_ip.remove(&self.ip)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caps(connections_max: usize, connections_per_ip_max: usize) -> Arc<Caps> {
        let settings =
            ServerSettings { connections_max, connections_per_ip_max, ..ServerSettings::default() };
        Arc::new(Caps::new(&settings))
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn one_address_cannot_take_every_place() {
        let caps = caps(3, 2);
        let held = [caps.take(ip("192.0.2.1")), caps.take(ip("192.0.2.1"))];
        assert!(held.iter().all(Option::is_some));
        assert!(caps.take(ip("192.0.2.1")).is_none());
        assert!(caps.take(ip("::ffff:192.0.2.1")).is_none(), "the same address in other clothes");
        let _third = caps.take(ip("192.0.2.2")).unwrap();
        assert!(caps.take(ip("192.0.2.3")).is_none(), "the total");
    }

    #[test]
    fn a_place_is_free_again_when_the_connection_ends() {
        let caps = caps(1, 1);
        for _ in 0..3 {
            let place = caps.take(ip("192.0.2.1"));
            assert!(place.is_some());
        }
        assert!(caps.taken.lock().per_ip.is_empty(), "nothing is kept about clients that are gone");
    }

    #[test]
    fn t40_addresses_of_one_64_share_their_places() {
        let caps = caps(10, 1);
        let _held = caps.take(ip("2001:db8::1")).unwrap();
        assert!(caps.take(ip("2001:db8::2")).is_none());
        assert!(caps.take(ip("2001:db8:0:1::1")).is_some());
    }
}

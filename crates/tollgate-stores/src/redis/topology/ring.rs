//! Independent servers: consistent hashing or modulo.
//!
//! When a server fails, its share of the clients is counted by each node's fallback until it recovers. Moving them to other
//! servers would give each client a fresh quota, twice.

use std::num::NonZeroUsize;
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

use crate::redis::connection::server::Server;

/// Independent servers.
pub(super) struct Ring {
    servers: Vec<Arc<Server>>,
    /// Points on the ring in ascending order with their server; empty for modulo.
    points: Vec<(u64, u32)>,
}

impl Ring {
    /// Consistent hashing by address: an added server takes over only its own share.
    pub(super) fn consistent(servers: Vec<Arc<Server>>, virtual_nodes: NonZeroUsize) -> Self {
        let names: Vec<&str> = servers.iter().map(|server| server.name()).collect();
        let points = points(&names, virtual_nodes);
        Ring { servers, points }
    }

    /// Hash modulo the number of servers, in the configured order.
    pub(super) fn modulo(servers: Vec<Arc<Server>>) -> Self {
        Ring { servers, points: Vec::new() }
    }

    pub(super) fn shard(&self, tag: &[u8]) -> u32 {
        let hash = xxh3_64(tag);
        match owner(&self.points, hash) {
            Some(owner) => owner,
            None => u32::try_from(hash % self.servers.len().max(1) as u64).unwrap_or(0),
        }
    }

    pub(super) fn server(&self, shard: u32) -> &Arc<Server> {
        &self.servers[shard as usize]
    }

    pub(super) fn servers(&self) -> &[Arc<Server>] {
        &self.servers
    }
}

fn points(names: &[&str], virtual_nodes: NonZeroUsize) -> Vec<(u64, u32)> {
    let mut points: Vec<(u64, u32)> = (0_u32..)
        .zip(names)
        .flat_map(|(server, name)| {
            (0..virtual_nodes.get()).map(move |turn| (xxh3_64(format!("{name}#{turn}").as_bytes()), server))
        })
        .collect();
    points.sort_unstable();
    points
}

/// The server of the first point at or after `hash`, wrapping around.
fn owner(points: &[(u64, u32)], hash: u64) -> Option<u32> {
    let position = points.partition_point(|(point, _)| *point < hash);
    points.get(position).or(points.first()).map(|(_, server)| *server)
}

#[cfg(test)]
mod tests {
    use super::*;

    const VIRTUAL_NODES: NonZeroUsize = NonZeroUsize::new(100).unwrap();

    fn owners(names: &[&str]) -> Vec<u32> {
        let points = points(names, VIRTUAL_NODES);
        (0..10_000_u32).filter_map(|key| owner(&points, xxh3_64(&key.to_le_bytes()))).collect()
    }

    #[test]
    fn added_server_takes_only_its_share() {
        let before = owners(&["a:1", "b:1", "c:1"]);
        let after = owners(&["a:1", "b:1", "c:1", "d:1"]);
        let moved = before.iter().zip(&after).filter(|(before, after)| before != after);
        assert!(moved.clone().all(|(_, after)| *after == 3));
        assert!((1_500..3_500).contains(&moved.count()), "about a quarter");
    }

    #[test]
    fn servers_get_about_equal_shares() {
        let owners = owners(&["a:1", "b:1", "c:1", "d:1"]);
        for server in 0..4 {
            let count = owners.iter().filter(|owner| **owner == server).count();
            assert!((1_500..3_500).contains(&count), "server {server} has {count}");
        }
    }

    #[test]
    fn configured_order_does_not_matter() {
        let (one, other) = (owners(&["a:1", "b:1"]), owners(&["b:1", "a:1"]));
        assert!(one.iter().zip(&other).all(|(one, other)| one != other));
    }
}

//! Every topology and connection form.

use std::net::SocketAddr;

use tollgate_testkit::{RedisCluster, RedisOptions, RedisServer, SentinelFleet};

use crate::harness::{Service, wait_for};
use crate::{admitted, check, service, sharing, wait_until_it_is};

/// A global and a per-user limit of nine: one decision on several shards.
const GLOBAL: &str =
    "[[rules]]\nname = \"all\"\nper = [\"global\"]\nlimits = [{ requests = 9, window = \"30d\" }]";

fn listed(addresses: &[SocketAddr]) -> String {
    let quoted: Vec<String> = addresses.iter().map(|address| format!("\"{address}\"")).collect();
    format!("nodes = [{}]", quoted.join(", "))
}

/// Two nodes together admit one limit, and no decision is degraded.
fn shares(counters: &str) {
    let counters = format!("{counters}\ntimeout = \"10s\"");
    let nodes: Vec<Service> = (0..2).map(|_| sharing(6, &counters, GLOBAL)).collect();
    assert_eq!(admitted(&nodes[0], "alice", 4), 4, "{counters}");
    assert_eq!(admitted(&nodes[1], "alice", 4), 2, "{counters}");
    assert_eq!(admitted(&nodes[1], "bob", 6), 3, "of the limit for all three are left: {counters}");
    assert_eq!(nodes[0].get("/readyz").json()["status"], "ready");
}

#[test]
fn unix_socket_and_tls_with_a_private_ca() {
    let options = RedisOptions {
        unix_socket: true,
        tls: true,
        args: ["--tls-auth-clients", "yes"].map(str::to_owned).to_vec(),
        ..RedisOptions::default()
    };
    let redis = RedisServer::start_with(&options);
    shares(&format!("url = \"redis+unix://{}\"", redis.socket_path().display()));
    redis.flush_all();
    let files = redis.certificates();
    let (ca, cert, key) = (files.authority.display(), files.client.display(), files.client_key.display());
    let tls = format!("tls = {{ ca_file = \"{ca}\", cert_file = \"{cert}\", key_file = \"{key}\" }}");
    shares(&format!("url = \"{}\"\n{tls}", redis.tls_url()));
}

#[test]
fn server_with_an_unknown_certificate_is_rejected() {
    let redis = RedisServer::start_with(&RedisOptions { tls: true, ..RedisOptions::default() });
    let trusting = service(5, &format!("url = \"{}\"\ntls = {{ insecure = true }}", redis.tls_url()), "");
    let careful = service(5, &format!("url = \"{}\"", redis.tls_url()), "");
    wait_for("a connection", || (check(&trusting, "alice") == (200, false)).then_some(()));
    // Nothing is admitted, as with a rejected login.
    wait_until_it_is(&careful, "misconfigured");
    assert_eq!(check(&careful, "alice").0, 503);
    wait_for("the reason", || careful.log().to_lowercase().contains("certificate").then_some(()));
    assert!(
        trusting.log().contains("certificate of the counter store is not verified"),
        "{}",
        trusting.log()
    );
}

#[test]
fn ring_of_independent_servers() {
    let servers: Vec<RedisServer> = (0..3).map(|_| RedisServer::start()).collect();
    let nodes = listed(&servers.iter().map(RedisServer::address).collect::<Vec<_>>());
    for topology in ["ring", "modulo"] {
        shares(&format!("topology = \"{topology}\"\n{nodes}"));
        servers.iter().for_each(RedisServer::flush_all);
    }
}

#[test]
fn cluster() {
    let cluster = RedisCluster::start();
    shares(&format!("topology = \"cluster\"\n{}", listed(&cluster.addresses()[..1])));
}

#[test]
fn sentinel_master() {
    let fleet = SentinelFleet::start();
    let master = fleet.master_name();
    shares(&format!(
        "topology = \"sentinel\"\nsentinel_master = \"{master}\"\n{}",
        listed(&fleet.sentinels())
    ));
}

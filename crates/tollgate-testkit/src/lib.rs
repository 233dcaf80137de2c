//! Real servers and broken networks for tollgate's tests.
//!
//! A fake Redis is as wrong as the idea its author has of Redis. This kit starts the installed servers themselves, on
//! free loopback ports and in temporary folders, and stops them on drop.
//!
//! - [`RedisServer`]: one server, to be asked, frozen, killed and restarted.
//! - [`SentinelFleet`]: a master, two replicas and three sentinels, for failovers.
//! - [`RedisCluster`]: three masters with a replica each, for redirections and moving slots.
//! - [`PostgresServer`], [`MariaDbServer`]: one server each, with as many empty databases as there are tests.
//! - [`TlsProxy`]: nginx that speaks TLS in front of a server that does not.
//! - [`FaultProxy`]: a TCP proxy whose fault can be switched while connections are open.
//! - [`free_port`], [`listen`], [`Certificates`], [`RespClient`]: what the above are made of.
//!
//! Everything blocks, nothing needs a runtime, and all methods take `&self`: a test may share a server between
//! threads. What goes wrong panics with the server's log, for a test has nothing better to do with an error.
//!
//! ```
//! use std::time::Duration;
//! use tollgate_testkit::{RespClient, Fault, FaultProxy, RedisServer};
//!
//! let redis = RedisServer::start();
//! assert_eq!(redis.cli(&["SET", "colour", "green"]), "OK");
//!
//! let proxy = FaultProxy::in_front_of(redis.address());
//! let mut client = RespClient::connect(proxy.address(), Duration::from_secs(5))?;
//! assert_eq!(client.command(&[b"GET", b"colour"])?.to_string(), "green");
//!
//! proxy.set(Fault::reply("-LOADING Redis is loading the dataset in memory"));
//! assert!(client.command(&[b"GET", b"colour"])?.is_error());
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! # What stays behind
//!
//! Nothing runs on: `Drop` kills and reaps, also when a test panics. Should the test process itself be killed,
//! or hold a server in a `static` (which is never dropped), a guard process notices and kills the server; of
//! Redis the temporary folder is left then.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::missing_panics_doc,
    reason = "test code: a panic is how a failure is told"
)]

mod certificates;
mod cluster;
mod mariadb;
mod poll;
mod port;
mod postgres;
mod process;
mod proxy;
mod redis;
mod resp;
mod sentinel;
mod sql_server;
mod tls_proxy;

pub use certificates::Certificates;
pub use cluster::{RedisCluster, SlotMigration, key_slot};
pub use mariadb::MariaDbServer;
pub use poll::{eventually, wait_until};
pub use port::{free_port, listen};
pub use postgres::PostgresServer;
pub use proxy::{Fault, FaultProxy};
pub use redis::{RedisOptions, RedisServer};
pub use resp::{Reply, RespClient};
pub use sentinel::SentinelFleet;
pub use tls_proxy::TlsProxy;

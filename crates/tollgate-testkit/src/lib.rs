//! Real servers and network faults for tollgate's tests.
//!
//! A fake Redis would only repeat its author's assumptions. This crate runs the installed servers, on free loopback ports
//! and in temporary folders, and stops them on drop.
//!
//! - [`RedisServer`]: one server that a test can query, freeze, kill and restart.
//! - [`SentinelFleet`]: a master, two replicas and three sentinels.
//! - [`RedisCluster`]: three masters with one replica each.
//! - [`PostgresServer`], [`MariaDbServer`]: a server of one test; [`SharedPostgres`], [`SharedMariaDb`]: one for all tests,
//!   each with a database of its own.
//! - [`TlsProxy`]: nginx that terminates TLS in front of an HTTP server.
//! - [`Gateway`]: nginx or Caddy that asks tollgate about each request; [`RecordingUpstream`]: what is behind it.
//! - [`WebServer`]: nginx or Python's server as an upstream.
//! - [`ObjectStoreServer`]: an S3-compatible store.
//! - [`PrometheusServer`]: Prometheus that scrapes a service.
//! - [`FaultProxy`]: a TCP proxy whose fault can be changed while connections are open.
//! - [`free_port`], [`listen`], [`Certificates`], [`RespClient`]: building blocks.
//!
//! All calls block, none needs an async runtime, and all methods take `&self`, so threads can share a server. Failures
//! panic with the server's log: a server that does not start in time, a server that was killed, an option that it was
//! started without.
//!
//! ```
//! use std::time::Duration;
//! use tollgate_testkit::{Fault, FaultProxy, RedisServer, RespClient};
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
//! # Cleanup
//!
//! `Drop` kills and reaps each server, also when a test panics. If the test process is killed, or holds a server in a
//! `static`, a guard process kills the server. The temporary folder of a Redis server remains in that case.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::missing_errors_doc,
    clippy::missing_panics_doc,
    reason = "test code reports failures by panicking"
)]

mod certificates;
mod cluster;
mod gateway;
mod mariadb;
mod object_store;
mod poll;
mod port;
mod postgres;
mod process;
mod prometheus;
mod proxy;
mod recording_upstream;
mod redis;
mod resp;
mod sentinel;
mod shared_sql_server;
mod sql_server;
mod tls_proxy;
mod web_server;

pub use certificates::{Certificates, Leaf};
pub use cluster::{RedisCluster, SlotMigration, key_slot};
pub use gateway::Gateway;
pub use mariadb::{MariaDbServer, SharedMariaDb};
pub use object_store::ObjectStoreServer;
pub use poll::{eventually, wait_until};
pub use port::{free_port, listen};
pub use postgres::{PostgresServer, SharedPostgres};
pub use prometheus::PrometheusServer;
pub use proxy::{Fault, FaultProxy};
pub use recording_upstream::{RecordedRequest, RecordingUpstream};
pub use redis::{RedisOptions, RedisServer};
pub use resp::{Reply, RespClient};
pub use sentinel::SentinelFleet;
pub use sql_server::SqlInstance;
pub use tls_proxy::TlsProxy;
pub use web_server::WebServer;

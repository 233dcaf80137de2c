//! TLS, client certificates and the PROXY protocol over real sockets.

#![allow(clippy::unwrap_used)] // test helpers

mod client_certificates;
mod handshakes;
mod proxy_protocol;
mod server;

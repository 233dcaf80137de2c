//! TLS, client certificates and the PROXY protocol over real sockets.

#![allow(clippy::unwrap_used)] // test helpers
#![allow(clippy::unnecessary_debug_formatting)] // quotes paths for TOML

mod client_certificates;
mod handshakes;
mod proxy_protocol;
mod server;

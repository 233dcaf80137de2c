//! How new connections are accepted. A reload replaces it; open connections keep theirs.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use rustls::ServerConfig;
use tollgate::identity::{AddressSource, ClientAddressPolicy};

use crate::config::settings::Settings;

/// TLS and the PROXY protocol of new connections.
#[derive(Clone, Debug, Default)]
pub struct AcceptPolicy {
    /// Certificates and versions; without it the listener speaks plain HTTP.
    pub tls: Option<Arc<ServerConfig>>,
    /// Which peers are proxies, and whether they send PROXY headers.
    pub client_address: ClientAddressPolicy,
}

impl AcceptPolicy {
    /// The policy of these settings.
    pub fn new(settings: &Settings) -> Self {
        AcceptPolicy {
            tls: settings.server.tls.as_ref().map(|tls| Arc::clone(&tls.config)),
            client_address: settings.client_address.clone(),
        }
    }

    /// Whether connections of this peer begin with a PROXY header.
    pub(super) fn expects_proxy_header(&self, peer: SocketAddr) -> bool {
        self.client_address.source == AddressSource::ProxyProtocol && self.client_address.trusts(peer.ip())
    }

    /// The address whose connections are limited. None for trusted proxies, which carry those of many clients.
    pub(super) fn limited_address(&self, peer: SocketAddr) -> Option<IpAddr> {
        let is_proxy =
            self.client_address.source != AddressSource::Peer && self.client_address.trusts(peer.ip());
        (!is_proxy).then_some(peer.ip())
    }
}

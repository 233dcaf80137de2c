//! Settings of the Redis store: servers, credentials, TLS, timeouts.

use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use redis::io::tcp::TcpSettings;
use redis::{
    Client, ClientTlsConfig, ConnectionAddr, IntoConnectionInfo, RedisConnectionInfo, RedisResult,
    TlsCertificates,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// How long a decision waits for Redis, unless it is set.
pub const TIMEOUT_DEFAULT: Duration = Duration::from_millis(15);

/// Settings of the Redis store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisSettings {
    /// The servers.
    pub topology: Topology,
    /// User and password.
    pub login: Login,
    /// Database number; a cluster has only 0.
    pub database: u32,
    /// TLS; none for plain text.
    pub tls: Option<Tls>,
    /// Connections to each server.
    pub connections: NonZeroUsize,
    /// Timeout of a decision.
    pub timeout: Duration,
    /// Timeout of connecting.
    pub connect_timeout: Duration,
    /// Whether busy counters are leased.
    pub leases: bool,
    /// Limits with a smaller capacity are never leased: units leased to other nodes would be missed.
    pub lease_capacity_min: u32,
    /// Whether refusals are cached.
    pub refusal_cache: bool,
}

impl RedisSettings {
    /// Defaults: no password, no TLS.
    pub fn new(topology: Topology) -> Self {
        RedisSettings {
            topology,
            login: Login::default(),
            database: 0,
            tls: None,
            connections: NonZeroUsize::MIN,
            timeout: TIMEOUT_DEFAULT,
            connect_timeout: Duration::from_secs(1),
            leases: true,
            lease_capacity_min: LEASE_CAPACITY_MIN_DEFAULT,
            refusal_cache: true,
        }
    }

    /// A client for one of the servers.
    pub(super) fn client(&self, address: &Address) -> RedisResult<Client> {
        self.client_with(address, &self.login, self.database)
    }

    /// A client with another login, for sentinels.
    pub(super) fn client_with(&self, address: &Address, login: &Login, database: u32) -> RedisResult<Client> {
        let mut redis = RedisConnectionInfo::default().set_db(i64::from(database)).set_skip_set_lib_name();
        if let Some(user) = &login.user {
            redis = redis.set_username(user);
        }
        if let Some(password) = &login.password {
            redis = redis.set_password(&password.0);
        }
        let addr = match (address, &self.tls) {
            (Address::Unix(path), _) => ConnectionAddr::Unix(path.clone()),
            (Address::Tcp { host, port }, None) => ConnectionAddr::Tcp(host.clone(), *port),
            (Address::Tcp { host, port }, Some(tls)) => ConnectionAddr::TcpTls {
                host: host.clone(),
                port: *port,
                insecure: tls.insecure,
                tls_params: None,
            },
        };
        let info = addr
            .into_connection_info()?
            .set_tcp_settings(TcpSettings::default().set_nodelay(true))
            .set_redis_settings(redis);
        match &self.tls {
            Some(tls) => {
                // Fails harmlessly if the process has a provider already.
                let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
                Client::build_with_tls(info, tls.certificates())
            }
            None => Client::open(info),
        }
    }
}

/// How the servers form one store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Topology {
    /// One server.
    Single(Address),
    /// The master that Redis Sentinel names.
    Sentinel {
        /// The sentinels.
        sentinels: Vec<Address>,
        /// The name of the master.
        master: String,
        /// User and password of the sentinels.
        login: Login,
    },
    /// A Redis cluster; some of its servers.
    Cluster(Vec<Address>),
    /// Independent servers with consistent hashing.
    Ring {
        /// The servers.
        servers: Vec<Address>,
        /// Points of each server on the ring.
        virtual_nodes: NonZeroUsize,
    },
    /// Independent servers, by hash modulo their number.
    Modulo(Vec<Address>),
}

impl Topology {
    /// The configured servers; for sentinel, the sentinels.
    pub fn servers(&self) -> &[Address] {
        match self {
            Topology::Single(server) => std::slice::from_ref(server),
            Topology::Sentinel { sentinels: servers, .. }
            | Topology::Cluster(servers)
            | Topology::Ring { servers, .. }
            | Topology::Modulo(servers) => servers,
        }
    }
}

/// Default of [`RedisSettings::lease_capacity_min`].
const LEASE_CAPACITY_MIN_DEFAULT: u32 = 1_000;

/// Default number of points of a server on a ring.
pub const VIRTUAL_NODES_DEFAULT: NonZeroUsize = NonZeroUsize::new(100).unwrap();

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// A host and a port.
    Tcp {
        /// Host name or IP address.
        host: String,
        /// The port.
        port: u16,
    },
    /// A Unix socket.
    Unix(PathBuf),
}

impl Address {
    /// Parses `host:port`, `[v6]:port` or a path that begins with `/`.
    pub fn parse(text: &str) -> Option<Self> {
        if text.starts_with('/') {
            return Some(Address::Unix(text.into()));
        }
        let (host, port) = text.rsplit_once(':')?;
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let port = port.parse().ok().filter(|port| *port > 0)?;
        (!host.is_empty()).then(|| Address::Tcp { host: host.to_owned(), port })
    }

    /// Whether traffic stays on this machine. Host names other than `localhost` are not resolved.
    pub fn is_local(&self) -> bool {
        match self {
            Address::Unix(_) => true,
            Address::Tcp { host, .. } if host == "localhost" => true,
            Address::Tcp { host, .. } => host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback()),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Address::Tcp { host, port } => write!(f, "{host}:{port}"),
            Address::Unix(path) => path.display().fmt(f),
        }
    }
}

/// User and password.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Login {
    /// The ACL user; the default user if none.
    pub user: Option<String>,
    /// The password.
    pub password: Option<Secret>,
}

/// A secret that prints as `***`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// TLS settings. Certificates are in PEM.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Tls {
    /// Trusted authorities; the system's if none.
    pub authorities: Option<Vec<u8>>,
    /// Client certificate and key.
    pub client_certificate: Option<(Vec<u8>, Vec<u8>)>,
    /// Accepts any server certificate; for tests only.
    pub insecure: bool,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let has_certificate = self.client_certificate.is_some();
        write!(f, "Tls(client certificate: {has_certificate}, insecure: {})", self.insecure)
    }
}

impl Tls {
    /// Whether `pem` contains certificates, all of them valid.
    pub fn are_certificates(pem: &[u8]) -> bool {
        let mut found = CertificateDer::pem_slice_iter(pem).peekable();
        found.peek().is_some() && found.all(|certificate| certificate.is_ok())
    }

    /// Whether `pem` contains a private key.
    pub fn is_private_key(pem: &[u8]) -> bool {
        PrivateKeyDer::from_pem_slice(pem).is_ok()
    }

    fn certificates(&self) -> TlsCertificates {
        let certificate = self.client_certificate.as_ref();
        TlsCertificates {
            client_tls: certificate
                .map(|(cert, key)| ClientTlsConfig { client_cert: cert.clone(), client_key: key.clone() }),
            root_cert: self.authorities.clone(),
        }
    }
}

//! Which servers, how they are reached, and how long they may take.

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

use crate::redis::script::keys::SCHEMA;
use crate::redis::url::{ServerUrl, UrlError};

/// Where counters are kept and how they are reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisSettings {
    /// The servers.
    pub topology: Topology,
    /// Who we are to them.
    pub login: Login,
    /// Which database of a server; clusters have only 0.
    pub database: u32,
    /// How the server is protected; nothing for plain text.
    pub tls: Option<Tls>,
    /// Connections to each server.
    pub connections: NonZeroUsize,
    /// How long a decision waits for its answer.
    pub timeout: Duration,
    /// How long making a connection may take.
    pub connect_timeout: Duration,
    /// Whether busy counters are leased.
    pub leases: bool,
    /// Limits that hold less are never leased: of a hundred units, those that lie in slices elsewhere are missed.
    pub leased_from: u32,
    /// Whether refusals that are known to last are answered without asking.
    pub refusal_cache: bool,
    /// The version of the counters that this node knows. Only tests, which run two side by side, set another.
    pub schema: u8,
}

impl RedisSettings {
    /// One server without a password, on this machine.
    pub fn new(topology: Topology) -> Self {
        RedisSettings {
            topology,
            login: Login::default(),
            database: 0,
            tls: None,
            connections: NonZeroUsize::MIN,
            timeout: Duration::from_millis(15),
            connect_timeout: Duration::from_secs(1),
            leases: true,
            leased_from: LEASED_FROM_DEFAULT,
            refusal_cache: true,
            schema: SCHEMA,
        }
    }

    /// One server by its URL: `redis://user:password@host:port/database`, `rediss://` for TLS,
    /// `redis+unix:///path?db=0&user=…&pass=…` for a socket.
    ///
    /// # Errors
    /// When the text is no such URL, names several servers, or says more than that.
    pub fn from_url(url: &str) -> Result<Self, UrlError> {
        let ServerUrl { servers, login, database, encrypted, parameters } = ServerUrl::parse(url)?;
        let [server] = <[Address; 1]>::try_from(servers).map_err(|_| UrlError)?;
        if !parameters.is_empty() {
            return Err(UrlError);
        }
        let tls = encrypted.then(Tls::default);
        Ok(RedisSettings { login, database, tls, ..Self::new(Topology::Single(server)) })
    }

    /// A client for one of the servers.
    pub(crate) fn client(&self, address: &Address) -> RedisResult<Client> {
        self.client_with(address, &self.login, self.database)
    }

    /// A client with another login, as sentinels may have.
    pub(crate) fn client_with(&self, address: &Address, login: &Login, database: u32) -> RedisResult<Client> {
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
                // One provider of cryptography for the whole process; a second attempt to set it changes nothing.
                let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
                Client::build_with_tls(info, tls.certificates())
            }
            None => Client::open(info),
        }
    }
}

/// How servers belong together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Topology {
    /// One server.
    Single(Address),
    /// A master that sentinels choose.
    Sentinel {
        /// The sentinels.
        sentinels: Vec<Address>,
        /// What they call it.
        master: String,
        /// Who we are to the sentinels.
        login: Login,
    },
    /// A Redis cluster, known by some of its servers.
    Cluster(Vec<Address>),
    /// Independent servers; each counter has its place on a ring.
    Ring {
        /// The servers.
        servers: Vec<Address>,
        /// Places of each server on the ring.
        virtual_nodes: NonZeroUsize,
    },
    /// Independent servers in a fixed order.
    Modulo(Vec<Address>),
}

impl Topology {
    /// The servers that settings name: of a sentinel topology the sentinels, of a cluster some of its servers.
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

/// Limits are leased from this size on unless settings say otherwise.
const LEASED_FROM_DEFAULT: u32 = 1_000;

/// Places of a server on a ring unless settings say otherwise.
pub const VIRTUAL_NODES_DEFAULT: NonZeroUsize = NonZeroUsize::new(100).unwrap();

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// A host and a port.
    Tcp {
        /// A name or an address.
        host: String,
        /// The port.
        port: u16,
    },
    /// A socket of this machine.
    Unix(PathBuf),
}

impl Address {
    /// Reads `host:port`, `[v6]:port` or a path that begins with `/`.
    pub fn parse(text: &str) -> Option<Self> {
        if text.starts_with('/') {
            return Some(Address::Unix(text.into()));
        }
        let (host, port) = text.rsplit_once(':')?;
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let port = port.parse().ok().filter(|port| *port > 0)?;
        (!host.is_empty()).then(|| Address::Tcp { host: host.to_owned(), port })
    }
}

impl Address {
    /// Whether what is sent there stays on this machine. A name other than `localhost` may lead anywhere.
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

/// Who we are to a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Login {
    /// The user of its access list; the default user if none.
    pub user: Option<String>,
    /// Its password.
    pub password: Option<Secret>,
}

/// A text that is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// How a server is protected. Certificates are in PEM.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Tls {
    /// Whom to trust; the system's authorities if none.
    pub authorities: Option<Vec<u8>>,
    /// Our own certificate and its key, for servers that ask for one.
    pub own: Option<(Vec<u8>, Vec<u8>)>,
    /// Takes any certificate; for trials only.
    pub insecure: bool,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let own = if self.own.is_some() { "own certificate" } else { "no own certificate" };
        write!(f, "Tls({own}, insecure: {})", self.insecure)
    }
}

impl Tls {
    /// Whether a text is one or more certificates in PEM.
    pub fn are_certificates(pem: &[u8]) -> bool {
        let mut found = CertificateDer::pem_slice_iter(pem).peekable();
        found.peek().is_some() && found.all(|certificate| certificate.is_ok())
    }

    /// Whether a text has a private key in PEM in it.
    pub fn is_private_key(pem: &[u8]) -> bool {
        PrivateKeyDer::from_pem_slice(pem).is_ok()
    }

    fn certificates(&self) -> TlsCertificates {
        let own = self.own.as_ref();
        TlsCertificates {
            client_tls: own
                .map(|(cert, key)| ClientTlsConfig { client_cert: cert.clone(), client_key: key.clone() }),
            root_cert: self.authorities.clone(),
        }
    }
}

//! `[proxy]`: the reverse proxy, its routes and upstreams.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::Uri;
use http::uri::{Authority, Scheme};
use tollgate::config::values::{integer, text, word};
use tollgate::config::{TableReader, Value};
use tollgate::rules::pattern::Pattern;

use super::read::{address, duplicate, duration};
use super::{Flags, TlsSettings, UpstreamTlsSettings, hosts, tls};

const ROUTES_MAX: usize = 1_000;
const UPSTREAMS_MAX: usize = 1_000;
const DELAYED_MAX: usize = 1_000;

/// The reverse proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxySettings {
    /// The listen address.
    pub listen: SocketAddr,
    /// Timeouts of routes that set none.
    pub timeouts: UpstreamTimeouts,
    /// Requests that may wait for their delay at the same time.
    pub delayed_max: usize,
    /// The form of the access log.
    pub access_log: AccessLogFormat,
    /// Certificates; without them clients speak plain HTTP.
    pub tls: Option<TlsSettings>,
    /// TLS to upstreams of routes that set none.
    pub upstream_tls: Option<Arc<UpstreamTlsSettings>>,
    /// The routes, as written.
    pub routes: Vec<RouteSettings>,
}

/// One route: which requests it takes and where they go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteSettings {
    /// The paths.
    pub path: Pattern,
    /// The host names, in lower case; any if empty.
    pub hosts: Vec<Box<str>>,
    /// The servers.
    pub upstreams: Vec<UpstreamUrl>,
    /// How a server is chosen.
    pub balance: Balance,
    /// The `Host` that upstreams see.
    pub host: HostHeader,
    /// Active health checks, if any.
    pub health: Option<HealthCheckSettings>,
    /// Timeouts.
    pub timeouts: UpstreamTimeouts,
    /// TLS to the upstreams.
    pub upstream_tls: Option<Arc<UpstreamTlsSettings>>,
}

/// How long an upstream may take.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct UpstreamTimeouts {
    /// For a connection, including TLS.
    pub connect: Duration,
    /// For the head of a response.
    pub response: Duration,
    /// Between two parts of a request body, a response body or an upgraded connection.
    pub idle: Duration,
}

impl Default for UpstreamTimeouts {
    fn default() -> Self {
        UpstreamTimeouts {
            connect: Duration::from_secs(2),
            response: Duration::from_mins(1),
            idle: Duration::from_mins(1),
        }
    }
}

/// How the server of a request is chosen among those that are healthy.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Balance {
    /// Each in turn.
    #[default]
    RoundRobin,
    /// The one with the fewest requests in flight.
    LeastConnections,
}

impl Balance {
    const ALL: [Self; 2] = [Balance::RoundRobin, Balance::LeastConnections];

    /// Its name in the settings.
    pub const fn as_str(self) -> &'static str {
        match self {
            Balance::RoundRobin => "round_robin",
            Balance::LeastConnections => "least_connections",
        }
    }
}

/// The `Host` that upstreams see.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum HostHeader {
    /// That of the client.
    #[default]
    Preserve,
    /// The name in the URL of the upstream.
    Upstream,
}

impl HostHeader {
    const ALL: [Self; 2] = [HostHeader::Preserve, HostHeader::Upstream];

    /// Its name in the settings.
    pub const fn as_str(self) -> &'static str {
        match self {
            HostHeader::Preserve => "preserve",
            HostHeader::Upstream => "upstream",
        }
    }
}

/// The form of the access log.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum AccessLogFormat {
    /// No access log.
    #[default]
    Off,
    /// The combined log format of Apache and nginx.
    Combined,
    /// One JSON object per line.
    Json,
}

impl AccessLogFormat {
    const ALL: [Self; 3] = [AccessLogFormat::Off, AccessLogFormat::Combined, AccessLogFormat::Json];

    /// Its name in the settings.
    pub const fn as_str(self) -> &'static str {
        match self {
            AccessLogFormat::Off => "off",
            AccessLogFormat::Combined => "combined",
            AccessLogFormat::Json => "json",
        }
    }
}

/// An active health check: `GET` must be answered with a status below 400.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheckSettings {
    /// The path.
    pub path: Box<str>,
    /// The time between two checks.
    pub interval: Duration,
    /// The time for an answer.
    pub timeout: Duration,
}

/// The scheme and the address of an upstream.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct UpstreamUrl {
    /// How it is spoken to.
    pub protocol: UpstreamProtocol,
    /// Host and port.
    pub authority: Authority,
}

/// How an upstream is spoken to.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum UpstreamProtocol {
    /// `http://`: HTTP/1.1.
    Http,
    /// `https://`: HTTP/1.1 over TLS.
    Https,
    /// `h2://`: HTTP/2 over TLS.
    H2,
    /// `h2c://`: HTTP/2 without TLS, as gRPC servers speak it.
    H2c,
}

impl UpstreamProtocol {
    const ALL: [UpstreamProtocol; 4] =
        [UpstreamProtocol::Http, UpstreamProtocol::Https, UpstreamProtocol::H2, UpstreamProtocol::H2c];

    /// Its name in the URL of an upstream.
    pub const fn as_str(self) -> &'static str {
        match self {
            UpstreamProtocol::Http => "http",
            UpstreamProtocol::Https => "https",
            UpstreamProtocol::H2 => "h2",
            UpstreamProtocol::H2c => "h2c",
        }
    }

    /// The scheme in URLs of requests.
    pub fn scheme(self) -> Scheme {
        match self {
            UpstreamProtocol::Http | UpstreamProtocol::H2c => Scheme::HTTP,
            UpstreamProtocol::Https | UpstreamProtocol::H2 => Scheme::HTTPS,
        }
    }

    /// Whether requests are multiplexed over HTTP/2.
    pub const fn is_http2(self) -> bool {
        matches!(self, UpstreamProtocol::H2 | UpstreamProtocol::H2c)
    }
}

impl std::fmt::Display for UpstreamUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}://{}", self.protocol.as_str(), self.authority)
    }
}

impl UpstreamUrl {
    /// Parses `http://host:port`. A path would be ambiguous, because rules match the path of the client.
    ///
    /// # Errors
    /// When it is not such a URL.
    pub fn parse(text: &str) -> Result<Self, String> {
        let invalid = || {
            format!(
                "{text:?} is not a URL such as \"http://127.0.0.1:3000\", \"https://…\", \"h2c://…\" or \"h2://…\""
            )
        };
        let (scheme, rest) = text.split_once("://").ok_or_else(invalid)?;
        let protocol =
            UpstreamProtocol::ALL.into_iter().find(|one| scheme.eq_ignore_ascii_case(one.as_str()));
        let protocol = protocol.ok_or_else(invalid)?;
        let uri: Uri = format!("http://{rest}").parse().map_err(|_| invalid())?;
        let authority =
            uri.authority().filter(|authority| is_host_and_port(authority)).ok_or_else(invalid)?;
        if uri.path() != "/" || uri.query().is_some() {
            return Err(format!("{text:?} must have no path and no query: requests keep their own"));
        }
        Ok(UpstreamUrl { protocol, authority: authority.clone() })
    }
}

/// Whether it has no password, and a port that exists if it names one.
fn is_host_and_port(authority: &Authority) -> bool {
    let (text, host) = (authority.as_str(), authority.host());
    !text.contains('@') && (text == host || authority.port_u16().is_some())
}

/// The proxy of `tollgate gateway --upstream`: one route for everything.
pub(super) fn from_flags(flags: &Flags) -> Option<ProxySettings> {
    let route = route_to(&flags.upstreams, UpstreamTimeouts::default(), None)?;
    Some(ProxySettings {
        listen: flags.proxy_listen.unwrap_or_else(listen_default),
        timeouts: UpstreamTimeouts::default(),
        delayed_max: DELAYED_MAX,
        access_log: AccessLogFormat::default(),
        tls: None,
        upstream_tls: None,
        routes: vec![route],
    })
}

fn route_to(
    upstreams: &[UpstreamUrl],
    timeouts: UpstreamTimeouts,
    upstream_tls: Option<Arc<UpstreamTlsSettings>>,
) -> Option<RouteSettings> {
    let path = Pattern::parse("/*").ok().filter(|_| !upstreams.is_empty())?;
    let (balance, host) = (Balance::default(), HostHeader::default());
    Some(RouteSettings {
        path,
        hosts: Vec::new(),
        upstreams: upstreams.to_vec(),
        balance,
        host,
        health: None,
        timeouts,
        upstream_tls,
    })
}

/// Reachable from this machine only.
fn listen_default() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 8000))
}

/// Reads the section; flags override its listen address and its routes.
pub(super) fn read(fields: &mut TableReader<'_, '_>, flags: &Flags) -> ProxySettings {
    let listen = fields.read("listen", address);
    let timeouts = read_timeouts(fields, UpstreamTimeouts::default());
    let delayed_max = fields.read("delayed_max", integer(0..=1_000_000_usize)).unwrap_or(DELAYED_MAX);
    let formats = AccessLogFormat::ALL.map(|format| (format.as_str(), format));
    let access_log = fields.read("access_log", word(&formats)).unwrap_or_default();
    let tls = fields.table("tls", tls::read).flatten();
    let upstream_tls = fields.table("upstream_tls", tls::upstream::read).flatten();
    let mut routes =
        fields.list_of_tables("routes", |route| read_route(route, timeouts, upstream_tls.as_ref()));
    if let Some(route) = route_to(&flags.upstreams, timeouts, upstream_tls.clone()) {
        routes = vec![route];
    } else if !fields.has("routes") || fields.has_empty_list("routes") {
        let reason = "is missing: add [[proxy.routes]] with upstreams = [\"http://…\"]";
        fields.report("routes", reason.to_owned());
    }
    if routes.len() > ROUTES_MAX {
        fields.report("routes", format!("must have at most {ROUTES_MAX} entries"));
    }
    let same =
        |one: &RouteSettings, other: &RouteSettings| one.path == other.path && one.hosts == other.hosts;
    let mut earlier = routes.iter().enumerate();
    if let Some((_, again)) = earlier.find(|(at, route)| routes[..*at].iter().any(|one| same(one, route))) {
        fields.report(
            "routes",
            format!("two routes have match = {:?} and the same hosts", again.path.to_string()),
        );
    }
    let listen = flags.proxy_listen.or(listen).unwrap_or_else(listen_default);
    ProxySettings { listen, timeouts, delayed_max, access_log, tls, upstream_tls, routes }
}

fn read_route(
    fields: &mut TableReader<'_, '_>,
    timeouts: UpstreamTimeouts,
    upstream_tls: Option<&Arc<UpstreamTlsSettings>>,
) -> Option<RouteSettings> {
    let path = if fields.has("match") { fields.read("match", pattern) } else { Pattern::parse("/*").ok() };
    let hosts = hosts::read(fields);
    let upstreams = fields.items("upstreams", |value| UpstreamUrl::parse(&text(value)?)).unwrap_or_default();
    if !fields.has("upstreams") || fields.has_empty_list("upstreams") {
        fields.report(
            "upstreams",
            "is missing: list at least one URL such as \"http://127.0.0.1:3000\"".to_owned(),
        );
    }
    if upstreams.len() > UPSTREAMS_MAX {
        fields.report("upstreams", format!("must have at most {UPSTREAMS_MAX} entries"));
    }
    if let Some(url) = duplicate(&upstreams) {
        fields.report("upstreams", format!("\"{url}\" is listed twice"));
    }
    let balances = Balance::ALL.map(|balance| (balance.as_str(), balance));
    let balance = fields.read("balance", word(&balances)).unwrap_or_default();
    let host_headers = HostHeader::ALL.map(|host| (host.as_str(), host));
    let host = fields.read("host", word(&host_headers)).unwrap_or_default();
    let health = fields.table("health", read_health).flatten();
    let timeouts = read_timeouts(fields, timeouts);
    let is_encrypted = upstreams.iter().any(|url| url.protocol.scheme() == Scheme::HTTPS);
    if fields.has("upstream_tls") && !is_encrypted && !upstreams.is_empty() {
        let reason = "has no effect: no upstream of the route starts with https:// or h2://";
        fields.report("upstream_tls", reason.to_owned());
    }
    let of_route = fields.table("upstream_tls", tls::upstream::read).flatten();
    let upstream_tls = of_route.or_else(|| upstream_tls.cloned());
    Some(RouteSettings { path: path?, hosts, upstreams, balance, host, health, timeouts, upstream_tls })
}

/// The files named in a table that may be invalid, to watch them for changes.
pub(super) fn named_files(fields: &mut TableReader<'_, '_>) -> Vec<PathBuf> {
    let upstream_tls = |fields: &mut TableReader<'_, '_>| {
        fields.table("upstream_tls", |table| tls::upstream::named_files(table))
    };
    let mut files = fields.table("tls", tls::named_files).unwrap_or_default();
    files.extend(upstream_tls(fields).into_iter().flatten());
    files.extend(fields.list_of_tables("routes", |route| upstream_tls(route)).into_iter().flatten());
    files
}

fn read_timeouts(fields: &mut TableReader<'_, '_>, default: UpstreamTimeouts) -> UpstreamTimeouts {
    let timeout = duration(Duration::from_millis(1), Duration::from_hours(24));
    UpstreamTimeouts {
        connect: fields.read("connect_timeout", &timeout).unwrap_or(default.connect),
        response: fields.read("response_timeout", &timeout).unwrap_or(default.response),
        idle: fields.read("idle_timeout", &timeout).unwrap_or(default.idle),
    }
}

fn read_health(fields: &mut TableReader<'_, '_>) -> Option<HealthCheckSettings> {
    let time = duration(Duration::from_millis(10), Duration::from_hours(1));
    let path = fields.require("path", |value| {
        let path = text(value)?;
        let is_valid = path.starts_with('/') && path.parse::<Uri>().is_ok();
        if is_valid { Ok(path.into()) } else { Err(format!("{path:?} is not a path such as \"/healthz\"")) }
    });
    Some(HealthCheckSettings {
        interval: fields.read("interval", &time).unwrap_or(Duration::from_secs(5)),
        timeout: fields.read("timeout", &time).unwrap_or(Duration::from_secs(1)),
        path: path?,
    })
}

fn pattern(value: &Value) -> Result<Pattern, String> {
    Pattern::parse(&text(value)?).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::super::Settings;
    use super::*;

    fn read(text: &str) -> ProxySettings {
        Settings::from_toml(text).unwrap_or_else(|error| panic!("{error}\n{text}")).proxy.unwrap()
    }

    #[test]
    fn proxy_is_off_by_default() {
        assert!(Settings::from_toml("").unwrap().proxy.is_none());
    }

    #[test]
    fn route_takes_every_path_by_default() {
        let proxy =
            read("[proxy]\nlisten = '127.0.0.1:1'\n[[proxy.routes]]\nupstreams = ['http://127.0.0.1:3000']");
        let route = &proxy.routes[0];
        assert!(route.path.is_everything());
        assert_eq!(route.upstreams[0].to_string(), "http://127.0.0.1:3000");
        assert_eq!(route.timeouts, UpstreamTimeouts::default());
    }

    #[test]
    fn every_key_is_used() {
        let proxy = read(
            "[proxy]\nlisten = '127.0.0.1:1'\nconnect_timeout = '1s'\nidle_timeout = '9s'\ndelayed_max = 7\naccess_log = 'json'\n\
             [[proxy.routes]]\nmatch = '/api/*'\nhosts = ['api.example']\nupstreams = ['https://a:1', 'h2c://b']\n\
             balance = 'least_connections'\nhost = 'upstream'\nresponse_timeout = '3s'\n\
             health = { path = '/up', interval = '2s', timeout = '100ms' }",
        );
        let route = &proxy.routes[0];
        let timeouts = UpstreamTimeouts {
            connect: Duration::from_secs(1),
            response: Duration::from_secs(3),
            idle: Duration::from_secs(9),
        };
        assert_eq!((proxy.delayed_max, proxy.access_log), (7, AccessLogFormat::Json));
        assert_eq!((route.path.to_string().as_str(), &*route.hosts[0]), ("/api/*", "api.example"));
        assert_eq!((route.balance, route.host), (Balance::LeastConnections, HostHeader::Upstream));
        assert_eq!(route.timeouts, timeouts);
        assert_eq!(
            route.upstreams.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["https://a:1", "h2c://b"]
        );
        assert_eq!(route.health.as_ref().unwrap().interval, Duration::from_secs(2));
    }

    #[test]
    fn upstream_urls_have_no_path_and_no_password() {
        for invalid in [
            "127.0.0.1:80",
            "ftp://a",
            "http://a/b",
            "http://a?b",
            "http://u:p@a",
            "http://",
            "http://a:99999",
        ] {
            assert!(UpstreamUrl::parse(invalid).is_err(), "{invalid}");
        }
        assert_eq!(UpstreamUrl::parse("HTTP://[::1]:80/").unwrap().to_string(), "http://[::1]:80");
    }
}

//! The routes of the proxy, by host and path.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::StatusCode;
use http::header::HeaderValue;
use http::uri::Authority;
use tollgate::endpoint::Endpoint;
use tollgate::rules::pattern_index::PatternIndex;

use super::client::{ClientSettings, UpstreamClient};
use super::upstream::{Upstream, UpstreamGroup};
use crate::config::settings::{
    HealthCheckSettings, HostHeader, ProxySettings, RouteSettings, UpstreamTimeouts, UpstreamTlsSettings,
    UpstreamUrl,
};
use crate::records::metrics::latency::DurationHistogram;

/// Status classes: 1xx to 5xx.
pub(crate) const CLASSES: usize = 5;

/// One route.
pub(crate) struct Route {
    /// Hosts and path, as metrics and logs name it.
    pub(crate) name: Box<str>,
    pub(crate) group: UpstreamGroup,
    pub(super) host: HostHeader,
    pub(super) timeouts: UpstreamTimeouts,
    pub(super) health: Option<HealthCheckSettings>,
    upstream_tls: Option<Arc<UpstreamTlsSettings>>,
    pub(crate) stats: Arc<RouteStats>,
}

impl RouteStats {
    /// Counts a response to a client.
    pub(super) fn count_response(&self, status: StatusCode) {
        let class = usize::from(status.as_u16() / 100).clamp(1, CLASSES) - 1;
        self.responses[class].fetch_add(1, Ordering::Relaxed);
    }
}

/// Figures of one route. A reload keeps them.
#[derive(Default)]
pub(crate) struct RouteStats {
    /// Responses by status class.
    pub(crate) responses: [AtomicU64; CLASSES],
    /// Requests that the limiter refused.
    pub(crate) refused: AtomicU64,
    /// Requests without a response of an upstream.
    pub(crate) upstream_errors: AtomicU64,
    /// The time until the head of the upstream's response.
    pub(crate) upstream_duration: DurationHistogram,
    /// Upgraded connections that are open.
    pub(crate) tunnels: AtomicU64,
}

/// All routes, compiled.
pub(crate) struct RouteTable {
    pub(crate) routes: Vec<Arc<Route>>,
    /// Routes of a host, the most specific path first.
    by_host: HashMap<Box<str>, HostRoutes>,
    any_host: HostRoutes,
}

#[derive(Default)]
struct HostRoutes {
    index: PatternIndex,
    /// By the numbers in the index.
    routes: Vec<Arc<Route>>,
}

impl RouteTable {
    /// Compiles routes. Upstreams and figures that `before` has too are kept, with their connections.
    ///
    /// # Errors
    /// When the TLS settings of clients cannot be made.
    pub(super) fn new(settings: &ProxySettings, before: Option<&RouteTable>) -> io::Result<Self> {
        let clients = ClientSettings::new(settings.timeouts)?;
        let mut upstreams = Upstreams::default();
        if let Some(before) = before {
            upstreams.keep(before);
        }
        let routes: Vec<(&RouteSettings, Arc<Route>)> =
            settings.routes.iter().map(|route| (route, compile(route, &clients, &mut upstreams))).collect();
        let mut ordered: Vec<_> = routes.iter().collect();
        ordered.sort_by_key(|(settings, _)| std::cmp::Reverse(settings.path.specificity()));
        let mut table =
            RouteTable { routes: Vec::new(), by_host: HashMap::new(), any_host: HostRoutes::default() };
        for (settings, route) in ordered {
            if settings.hosts.is_empty() {
                table.any_host.add(settings, route);
            }
            for host in &settings.hosts {
                table.by_host.entry(host.clone()).or_default().add(settings, route);
            }
        }
        table.routes = routes.into_iter().map(|(_, route)| route).collect();
        Ok(table)
    }

    /// The route of a request: one of its host, else one of any host; of these the one with the most specific path.
    pub(super) fn find(&self, host: Option<&HeaderValue>, endpoint: &Endpoint<'_>) -> Option<&Arc<Route>> {
        let host = host.filter(|_| !self.by_host.is_empty()).and_then(host_name);
        let of_host = host.and_then(|host| self.by_host.get(host.as_str()));
        of_host.and_then(|routes| routes.find(endpoint)).or_else(|| self.any_host.find(endpoint))
    }

    /// Every upstream once.
    pub(crate) fn upstreams(&self) -> Vec<&Arc<Upstream>> {
        let mut all: Vec<&Arc<Upstream>> =
            self.routes.iter().flat_map(|route| &route.group.upstreams).collect();
        all.sort_by_key(|upstream| Arc::as_ptr(upstream));
        all.dedup_by_key(|upstream| Arc::as_ptr(upstream));
        all.sort_by_key(|upstream| upstream.url.to_string());
        all
    }
}

impl HostRoutes {
    fn add(&mut self, settings: &RouteSettings, route: &Arc<Route>) {
        let number = u32::try_from(self.routes.len()).unwrap_or(u32::MAX);
        self.index.insert(&settings.path, number);
        self.routes.push(Arc::clone(route));
    }

    fn find(&self, endpoint: &Endpoint<'_>) -> Option<&Arc<Route>> {
        let mut best: Option<u32> = None;
        self.index
            .for_each_match(endpoint, |number| best = Some(best.map_or(number, |best| best.min(number))));
        self.routes.get(best? as usize)
    }
}

/// The host without its port, in lower case.
fn host_name(host: &HeaderValue) -> Option<String> {
    let authority: Authority = host.to_str().ok()?.parse().ok()?;
    Some(authority.host().trim_end_matches('.').to_ascii_lowercase())
}

/// Upstreams by URL, timeouts and certificates: routes share them.
#[derive(Default)]
struct Upstreams {
    by_url: HashMap<(UpstreamUrl, UpstreamKey), Arc<Upstream>>,
    stats: HashMap<Box<str>, Arc<RouteStats>>,
}

/// What else the client of an upstream depends on.
type UpstreamKey = ([Duration; 3], Option<[u8; 32]>);

fn key_of(timeouts: UpstreamTimeouts, tls: Option<&UpstreamTlsSettings>) -> UpstreamKey {
    let UpstreamTimeouts { connect, response, idle } = timeouts;
    ([connect, response, idle], tls.map(|tls| tls.fingerprint))
}

impl Upstreams {
    fn keep(&mut self, before: &RouteTable) {
        for route in &before.routes {
            self.stats.insert(route.name.clone(), Arc::clone(&route.stats));
            let key = key_of(route.timeouts, route.upstream_tls.as_deref());
            for upstream in &route.group.upstreams {
                self.by_url.insert((upstream.url.clone(), key), Arc::clone(upstream));
            }
        }
    }

    fn get(&mut self, url: &UpstreamUrl, route: &RouteSettings, clients: &ClientSettings) -> Arc<Upstream> {
        let (timeouts, tls) = (route.timeouts, route.upstream_tls.as_deref());
        let entry = self.by_url.entry((url.clone(), key_of(timeouts, tls)));
        let make = || {
            let client = UpstreamClient::new(url, &clients.of_route(timeouts, tls));
            Arc::new(Upstream::new(url.clone(), client))
        };
        Arc::clone(entry.or_insert_with(make))
    }
}

fn compile(settings: &RouteSettings, clients: &ClientSettings, upstreams: &mut Upstreams) -> Arc<Route> {
    let name: Box<str> = if settings.hosts.is_empty() {
        settings.path.to_string().into()
    } else {
        format!("{}{}", settings.hosts.join(","), settings.path).into()
    };
    let group = settings.upstreams.iter().map(|url| upstreams.get(url, settings, clients)).collect();
    Arc::new(Route {
        group: UpstreamGroup::new(group, settings.balance),
        host: settings.host,
        timeouts: settings.timeouts,
        health: settings.health.clone(),
        upstream_tls: settings.upstream_tls.clone(),
        stats: Arc::clone(upstreams.stats.entry(name.clone()).or_default()),
        name,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::settings::Settings;

    fn table(routes: &str, before: Option<&RouteTable>) -> RouteTable {
        let text = format!("[proxy]\nlisten = '127.0.0.1:1'\n{routes}");
        let settings = Settings::from_toml(&text).unwrap_or_else(|error| panic!("{error}"));
        RouteTable::new(&settings.proxy.unwrap(), before).unwrap()
    }

    fn found(table: &RouteTable, host: &str, path: &str) -> Option<String> {
        let endpoint = Endpoint::parse(path).unwrap();
        table.find(Some(&host.parse().unwrap()), &endpoint).map(|route| route.name.to_string())
    }

    const ROUTES: &str = "[[proxy.routes]]\nmatch = '/api/*'\nupstreams = ['http://127.0.0.1:1']\n\
        [[proxy.routes]]\nmatch = '/api/v2/*'\nupstreams = ['http://127.0.0.1:2']\n\
        [[proxy.routes]]\nhosts = ['shop.example']\nupstreams = ['http://127.0.0.1:1']";

    #[test]
    fn most_specific_path_wins_in_any_order() {
        let table = table(ROUTES, None);
        assert_eq!(found(&table, "a", "/api/v1").as_deref(), Some("/api/*"));
        assert_eq!(found(&table, "a", "/api/v2/x").as_deref(), Some("/api/v2/*"));
        assert_eq!(found(&table, "a", "/other"), None);
    }

    #[test]
    fn route_of_the_host_comes_first() {
        let table = table(ROUTES, None);
        assert_eq!(found(&table, "shop.example", "/api/v2/x").as_deref(), Some("shop.example/*"));
        assert_eq!(table.upstreams().len(), 2, "routes share upstreams");
    }

    #[test]
    fn reload_keeps_upstreams_that_stay() {
        let before = table(ROUTES, None);
        let after = table(
            "[[proxy.routes]]\nupstreams = ['http://127.0.0.1:2', 'http://127.0.0.1:3']",
            Some(&before),
        );
        assert!(Arc::ptr_eq(&before.routes[1].group.upstreams[0], &after.routes[0].group.upstreams[0]));
        assert_eq!(after.upstreams().len(), 2);
    }
}

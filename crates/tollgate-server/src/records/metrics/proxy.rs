//! Metrics of the reverse proxy. Labels come from the settings: routes and upstreams.

use std::sync::atomic::{AtomicU64, Ordering};

use super::collector::{Collector, Labels};
use crate::gateways::proxy::Proxy;
use crate::gateways::proxy::routes::{Route, RouteStats};
use crate::gateways::proxy::upstream::Upstream;

pub(super) fn collect(proxy: &Proxy, collector: &mut Collector) {
    let table = proxy.routes();
    collect_routes(&table.routes, collector);
    collect_upstreams(&table.upstreams(), collector);
    let help = "Requests to the proxy that no route takes";
    collector.counter("proxy_unrouted", help, load(&proxy.stats.unrouted));
    let help = "Requests refused because too many were waiting for their delay";
    collector.counter("proxy_delays_refused", help, load(&proxy.stats.delays_refused));
    let help = "Lines of the access log dropped because its reader was too slow";
    collector.counter("proxy_access_log_dropped", help, load(proxy.access_log_dropped()));
    let connections = load(&proxy.stats.connections.open);
    collector.gauge("proxy_connections", "Open connections of clients to the proxy", connections);
}

fn collect_routes(routes: &[std::sync::Arc<Route>], collector: &mut Collector) {
    let classes = ["1xx", "2xx", "3xx", "4xx", "5xx"];
    let responses = routes.iter().flat_map(|route| {
        classes.iter().zip(&route.stats.responses).map(|(class, count)| {
            let mut labels = of_route(route);
            labels.push(("class", (*class).to_owned()));
            (labels, load(count))
        })
    });
    collector.counters("proxy_responses", "Responses to clients of the proxy", responses);
    let figure = |figure: fn(&RouteStats) -> &AtomicU64| {
        routes.iter().map(move |route| (of_route(route), load(figure(&route.stats))))
    };
    collector.counters("proxy_refused", "Requests that the limiter refused", figure(|stats| &stats.refused));
    let help = "Admitted requests that got no response of an upstream";
    collector.counters("proxy_upstream_failures", help, figure(|stats| &stats.upstream_errors));
    let durations = routes.iter().map(|route| (of_route(route), route.stats.upstream_duration.clone()));
    collector.histograms("proxy_upstream_duration_seconds", "Time until upstreams responded", durations);
    collector.gauges("proxy_tunnels", "Upgraded connections that are open", figure(|stats| &stats.tunnels));
}

fn collect_upstreams(upstreams: &[&std::sync::Arc<Upstream>], collector: &mut Collector) {
    let figure = |figure: fn(&Upstream) -> u64| {
        upstreams.iter().map(move |upstream| (vec![("upstream", upstream.url.to_string())], figure(upstream)))
    };
    let help = "Whether the upstream gets requests";
    collector.gauges("upstream_up", help, figure(|one| u64::from(one.state().is_healthy)));
    let help = "Open connections to the upstream";
    collector.gauges("upstream_connections", help, figure(|one| load(&one.connections().open)));
    let help = "Requests sent to the upstream";
    collector.counters("upstream_requests", help, figure(|one| load(&one.stats.requests)));
    let help = "Failed connects to the upstream";
    collector.counters("upstream_connect_errors", help, figure(|one| load(&one.stats.connect_errors)));
    let help = "Requests to which the upstream sent no valid response in time";
    collector.counters("upstream_response_errors", help, figure(|one| load(&one.stats.response_errors)));
    let help = "Requests sent again to another upstream";
    collector.counters("upstream_retries", help, figure(|one| load(&one.stats.retries)));
}

fn of_route(route: &Route) -> Labels {
    vec![("route", route.name.to_string())]
}

fn load(count: &AtomicU64) -> u64 {
    count.load(Ordering::Relaxed)
}

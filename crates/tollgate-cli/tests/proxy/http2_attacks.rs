//! HTTP/2 floods of the proxy's listener.

use crate::harness::Service;
use crate::http2_floods::{Listener, flood_tests};
use crate::upstream::{Upstream, get, proxy_of};

fn proxy(server: &str) -> Listener {
    let upstream = Upstream::start();
    let top = format!("default_limit = 100000000\n[server]\n{server}");
    let service = Service::with_config(&Upstream::proxied(&[&upstream], "idle_timeout = \"3s\"", &top));
    Listener {
        address: proxy_of(&service),
        service,
        connections: "tollgate_proxy_connections",
        serves: Box::new(move |service| {
            let _alive = &upstream;
            get(proxy_of(service), "/x").status == 200
        }),
    }
}

flood_tests!(crate::http2_attacks::proxy);

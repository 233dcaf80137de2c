//! The path that is limited is the path that is forwarded.

use crate::harness::Service;
use crate::upstream::{Upstream, get, proxy_of, send};

/// Forms of `/admin/users`, and what is forwarded.
const FORMS: [(&str, &str); 16] = [
    ("/admin/users", "/admin/users"),
    ("/admin/users/", "/admin/users/"),
    ("//admin/users", "/admin/users"),
    ("/admin//users", "/admin/users"),
    ("/./admin/users", "/admin/users"),
    ("/x/../admin/users", "/admin/users"),
    ("/%61dmin/users", "/admin/users"),
    ("/admin/%75sers", "/admin/users"),
    ("/admin/x/%2e%2e/users", "/admin/users"),
    ("/admin/x/.%2E/users", "/admin/users"),
    ("/admin;v=1/users", "/admin;v=1/users"),
    ("/admin/users;jsessionid=1", "/admin/users;jsessionid=1"),
    ("/x/..;/admin/users", "/admin/users"),
    ("/admin/./users/.", "/admin/users/"),
    ("/admin/users?x=/../y", "/admin/users?x=/../y"),
    ("http://api.example/admin/users", "/admin/users"),
];

#[test]
fn every_spelling_of_a_path_has_one_counter() {
    let upstream = Upstream::start();
    let rule = "[[rules]]\nname = \"admin\"\nwhen = { endpoints = [\"/admin/users\"] }\nper = [\"ip\"]\n\
                limits = [{ requests = 16, window = \"1h\" }]\n";
    let service = Service::with_config(&Upstream::proxied(&[&upstream], "", rule));
    let proxy = proxy_of(&service);
    for (number, (path, forwarded)) in FORMS.into_iter().enumerate() {
        let answer = get(proxy, path);
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
        let left = (FORMS.len() - 1 - number).to_string();
        assert_eq!(answer.header("x-ratelimit-remaining"), Some(&*left), "{path}");
        assert_eq!(upstream.requests().last().unwrap().target(), forwarded, "{path}");
    }
    assert_eq!(get(proxy, "/admin/users").status, 429);
}

#[test]
fn ambiguous_paths_are_refused() {
    let upstream = Upstream::start();
    let service = Service::with_config(&Upstream::proxied(&[&upstream], "", ""));
    for path in ["/a\\b", "/%5cb", "/%zz", "/%2", "/a%00b", "/%252e%252e/a", "/%c0%ae", "/a%0d%0ab"] {
        assert_eq!(get(proxy_of(&service), path).status, 400, "{path}");
    }
    assert_eq!(upstream.count(), 0);
}

#[test]
fn connect_and_unknown_routes_are_refused() {
    let upstream = Upstream::start();
    let service = Service::with_config(&Upstream::proxied(&[&upstream], "match = \"/api/*\"", ""));
    let proxy = proxy_of(&service);
    let connect = send(proxy, b"CONNECT 169.254.169.254:80 HTTP/1.1\r\nhost: 169.254.169.254:80\r\n\r\n");
    assert_eq!(connect.status, 405, "{connect:?}");
    let missing = get(proxy, "/other");
    assert_eq!((missing.status, missing.error().1.as_str()), (404, "NOT_FOUND"));
    let absolute = get(proxy, "http://169.254.169.254/api/x");
    assert_eq!(absolute.status, 400, "the host of the target must be that of the header: {absolute:?}");
    assert_eq!(upstream.count(), 0);
}

#[test]
fn routes_are_chosen_by_host_and_path() {
    let (first, second) = (Upstream::start(), Upstream::start());
    let config = format!(
        "[proxy]\nlisten = \"127.0.0.1:0\"\n[[proxy.routes]]\nmatch = \"/v1/*\"\nupstreams = [\"http://{}\"]\n\
         [[proxy.routes]]\nhosts = [\"shop.example\"]\nupstreams = [\"http://{}\"]\n",
        first.address, second.address
    );
    let service = Service::with_config(&config);
    let proxy = proxy_of(&service);
    assert_eq!(get(proxy, "/v1/a").status, 200);
    let shop = send(proxy, b"GET /v1/a HTTP/1.1\r\nhost: SHOP.example:8000\r\n\r\n");
    assert_eq!(shop.status, 200);
    assert_eq!((first.count(), second.count()), (1, 1));
}

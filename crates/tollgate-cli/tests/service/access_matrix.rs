//! Every route against every kind of caller, generated from the description.

use serde_json::{Value, json};

use crate::harness::openapi_validator::DOCS_FILES;
use crate::harness::{Answer, Service};

const SCOPES: [&str; 6] = ["check", "read", "config", "reset", "override", "admin"];

/// A route and the scope that it requires, if any.
struct Route {
    method: String,
    path: String,
    scope: Option<String>,
}

/// Every described route; another test shows that all routes are described.
fn routes(service: &Service) -> Vec<Route> {
    let description = service.get("/openapi.json").json();
    let mut routes = Vec::new();
    for (path, operations) in description["paths"].as_object().unwrap() {
        for (verb, operation) in operations.as_object().unwrap() {
            let security = operation["security"].as_array().unwrap();
            let scope = security.last().map(|key| key["key"][0].as_str().unwrap().to_owned());
            routes.push(Route { method: verb.to_uppercase(), path: filled_in(path), scope });
        }
    }
    routes
}

#[test]
fn every_response_has_security_headers() {
    let service = Service::unconfigured();
    let described = routes(&service);
    assert!(described.len() > 30, "{}", described.len());
    let route = |method: &str, path: &str| Route { method: method.into(), path: path.into(), scope: None };
    let pages = ["/", "/docs", "/nowhere", "/metrics", "/openapi.json"];
    let pages = pages.into_iter().chain(DOCS_FILES).map(|path| route("GET", path));
    let others = pages.chain([route("PATCH", "/v1/rate-limit/check")]);
    let admin = service.admin_key();
    for route in described.into_iter().chain(others) {
        for key in [None, Some(&*admin), Some("wrong")] {
            let answer = route.send(&service, key);
            let label = format!("{} {} {key:?}: {}", route.method, route.path, answer.status);
            let policy = answer.header("content-security-policy").unwrap_or_default();
            assert!(policy.contains("frame-ancestors 'none'"), "{label}: {policy:?}");
            assert_eq!(answer.header("x-content-type-options"), Some("nosniff"), "{label}");
            assert_eq!(answer.header("cache-control"), Some("no-store"), "{label}");
        }
    }
}

fn filled_in(path: &str) -> String {
    let values = [("{client}", "user:nobody"), ("{endpoint}", "x")];
    let path = values.iter().fold(path.to_owned(), |path, (name, value)| path.replace(name, value));
    ["{user_id}", "{name}", "{id}", "{identifier}"]
        .iter()
        .fold(path, |path, name| path.replace(name, "nobody"))
}

fn new_key(service: &Service, body: &Value) -> String {
    let made = service.admin("POST", "/v1/admin/keys", &body.to_string());
    assert_eq!(made.status, 201, "{}", made.text);
    made.json()["key"].as_str().unwrap().to_owned()
}

impl Route {
    fn send(&self, service: &Service, key: Option<&str>) -> Answer {
        let body = if matches!(&*self.method, "POST" | "PUT") { "{}" } else { "" };
        match key {
            Some(key) => service.with_key(key, &self.method, &self.path, body),
            None => service.send(&self.method, &self.path, &[("content-type", "application/json")], body),
        }
    }

    fn is_let_in(&self, service: &Service, key: Option<&str>, who: &str) {
        let answer = self.send(service, key);
        // An empty body may be invalid, but the caller is authorized.
        let served = answer.status > 0 && answer.status < 500 && ![401, 403, 429].contains(&answer.status);
        assert!(served, "{who}: {} {}: {} {}", self.method, self.path, answer.status, answer.text);
    }

    fn is_refused(&self, service: &Service, key: Option<&str>, who: &str, expected: (u16, &str)) {
        let answer = self.send(service, key);
        let (status, code, _) = answer.error();
        assert_eq!((status, &*code), expected, "{who}: {} {}: {}", self.method, self.path, answer.text);
        assert_eq!(answer.header("www-authenticate"), Some("Bearer").filter(|_| status == 401));
    }
}

#[test]
fn every_route_requires_its_scope() {
    let service = Service::with_config("[auth]\nopen_checks = false");
    let singles = SCOPES.map(|scope| (scope, new_key(&service, &json!({"name": scope, "scopes": [scope]}))));
    let powerless = new_key(&service, &json!({"name": "powerless"}));
    let bound = new_key(&service, &json!({"name": "bound", "tenant": "acme", "scopes": SCOPES}));
    let (unauthorized, forbidden) = ((401, "UNAUTHORIZED"), (403, "FORBIDDEN"));
    let routes = routes(&service);
    assert!(routes.len() > 45, "{}", routes.len());
    for route in &routes {
        if route.path == "/v1/forward-auth" {
            // Only the connection counts: the key in such a request is that of the gateway's client.
            for key in [None, Some("wrong"), Some(&*service.admin_key()), Some(&*bound)] {
                route.is_refused(&service, key, "not a trusted proxy", forbidden);
            }
            continue;
        }
        let Some(scope) = &route.scope else {
            for key in [None, Some("wrong"), Some(&*powerless), Some(&*bound), Some(&*singles[0].1)] {
                route.is_let_in(&service, key, "anyone");
            }
            continue;
        };
        route.is_refused(&service, None, "without a key", unauthorized);
        route.is_refused(&service, Some("wrong"), "with a wrong key", unauthorized);
        route.is_refused(&service, Some(&powerless), "without a scope", forbidden);
        route.is_let_in(&service, Some(&service.admin_key()), "the administrator");
        for (given, key) in &singles {
            if given == scope || *given == "admin" {
                route.is_let_in(&service, Some(key), given);
            } else {
                route.is_refused(&service, Some(key), given, forbidden);
            }
        }
        let of_one =
            ["quotas", "top", "blocks", "counters", "decisions", "windows", "rollups", "usage", "records"];
        let kind = route.path.split('/').nth(3).unwrap_or_default();
        let is_of_one = of_one.contains(&kind);
        let is_for_all = route.path.starts_with("/v1/admin/") && !is_of_one;
        if is_for_all {
            route.is_refused(&service, Some(&bound), "bound to a tenant", forbidden);
        } else {
            route.is_let_in(&service, Some(&bound), "bound to a tenant");
        }
    }
}

#[test]
fn described_scopes_are_the_intended_ones() {
    let service = Service::unconfigured();
    let routes = routes(&service);
    let scope = |method: &str, path: &str| {
        let route = routes.iter().find(|route| route.method == method && route.path == path);
        route.unwrap_or_else(|| panic!("{method} {path}")).scope.clone().unwrap_or_default()
    };
    for kind in ["rules", "tiers", "quotas", "blocks", "keys"] {
        let reads = if kind == "keys" { "admin" } else { "read" };
        let writes = if matches!(kind, "quotas" | "blocks") { "config" } else { "admin" };
        let (list, one) = (format!("/v1/admin/{kind}"), format!("/v1/admin/{kind}/nobody"));
        let one = if kind == "blocks" { "/v1/admin/blocks/user:nobody".to_owned() } else { one };
        assert_eq!((scope("GET", &list), scope("GET", &one)), (reads.to_owned(), reads.to_owned()), "{kind}");
        for (method, path) in [("POST", &list), ("PUT", &one), ("DELETE", &one)] {
            assert_eq!(scope(method, path), writes, "{method} {path}");
        }
    }
    for (method, path) in [
        ("POST", "/v1/admin/keys/nobody/rotate"),
        ("POST", "/v1/admin/keys/nobody/revoke"),
        ("GET", "/v1/admin/audit"),
        ("GET", "/v1/admin/actions"),
        ("GET", "/v1/admin/export"),
        ("POST", "/v1/admin/import"),
        ("POST", "/v1/admin/reload"),
        ("DELETE", "/v1/admin/penalties/user:nobody"),
    ] {
        assert_eq!(scope(method, path), "admin", "{method} {path}");
    }
    assert_eq!(scope("POST", "/v1/rate-limit/check"), "check");
    assert_eq!(scope("GET", "/healthz"), "");
}

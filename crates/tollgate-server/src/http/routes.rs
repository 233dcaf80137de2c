//! The table of routes, and how a path is matched to it.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::LazyLock;

use http::Method;
use hyper::body::Incoming;

use super::deprecation::Deprecated;
use super::{Call, Response, health};
use crate::admin::blocks::Blocks;
use crate::admin::keys::Keys;
use crate::admin::quotas::Quotas;
use crate::admin::rules::Rules;
use crate::admin::tiers::Tiers;
use crate::admin::{self, counters, crud, limits, penalties, records, reload};
use crate::api::{batch_check, check, config, explain, reset, status};
use crate::auth::Access;
use crate::auth::scope::Scope;
use crate::gateways::forward_auth;
use crate::http::error::ApiError;

/// One route of version 1.
pub(crate) struct Route {
    pub(crate) method: Method,
    /// `{name}` matches one segment, `{*name}` all that are left.
    pub(crate) path: &'static str,
    pub(crate) access: Access,
    /// Whether every method is taken, not only this one.
    pub(crate) any_method: bool,
    /// Whether a request counts once per check in it against its caller's limit, instead of once.
    pub(crate) by_check: bool,
    /// Set once the route is going to be removed.
    pub(crate) deprecated: Option<Deprecated>,
    pub(crate) handler: Handler,
}

impl Route {
    /// Whether the route takes this method. `HEAD` is `GET`; hyper leaves the body out.
    pub(crate) fn takes(&self, method: &Method) -> bool {
        self.any_method || self.method == *method || (self.method == Method::GET && *method == Method::HEAD)
    }

    /// The methods as `Allow` lists them.
    pub(crate) fn allow(&self) -> &str {
        if self.method == Method::GET { "GET, HEAD" } else { self.method.as_str() }
    }

    /// Whether a request is logged as a change. A check only counts.
    pub(crate) fn is_change(&self) -> bool {
        self.method != Method::GET && matches!(self.access, Access::Keyed(_))
    }

    /// Whether it reports health to orchestrators and load balancers.
    pub(crate) fn is_probe(&self) -> bool {
        matches!(self.path, "/healthz" | "/readyz")
    }

    /// Whether a response may be larger than that to a check: lists, documents, metrics.
    pub(crate) fn may_be_large(&self) -> bool {
        match self.path {
            "/" | "/docs/" | "/v1/forward-auth" => false,
            _ if self.is_probe() => false,
            "/v1/rate-limit/explain" | "/v1/rate-limit/batch-check" => true,
            path => self.method == Method::GET && !path.starts_with("/v1/rate-limit/"),
        }
    }

    /// Whether it names no tenant, or lists and changes what belongs to several: callers bound to a tenant are refused.
    pub(crate) fn concerns_all_tenants(&self) -> bool {
        let of_one = [
            "/v1/admin/quotas",
            "/v1/admin/blocks",
            "/v1/admin/counters",
            "/v1/admin/top",
            "/v1/admin/decisions",
            "/v1/admin/windows",
            "/v1/admin/rollups",
            "/v1/admin/usage",
            "/v1/admin/records",
        ];
        self.path.starts_with("/v1/admin/") && !of_one.iter().any(|path| self.path.starts_with(path))
    }

    const fn by_check(mut self) -> Self {
        self.by_check = true;
        self
    }

    const fn any_method(mut self) -> Self {
        self.any_method = true;
        self
    }

    /// Marks the route as deprecated: in its responses and in OpenAPI.
    #[cfg_attr(not(test), expect(dead_code, reason = "no route of version 1 is deprecated"))]
    pub(crate) const fn deprecated(mut self, deprecated: Deprecated) -> Self {
        self.deprecated = Some(deprecated);
        self
    }
}

pub(crate) type HandlerFuture = Pin<Box<dyn Future<Output = Result<Response, ApiError>> + Send>>;
pub(crate) type Handler = fn(Call, Incoming) -> HandlerFuture;

/// A route with an async handler; `body` marks handlers that read one.
macro_rules! route {
    ($method:ident $path:literal, $access:expr, $handler:path) => {
        route!(@ $method, $path, $access, |call, _| Box::pin($handler(call)))
    };
    ($method:ident $path:literal, $access:expr, $handler:path, body) => {
        route!(@ $method, $path, $access, |call, body| Box::pin($handler(call, body)))
    };
    (@ $method:ident, $path:literal, $access:expr, $handler:expr) => {
        $crate::http::routes::Route {
            method: http::Method::$method,
            path: $path,
            access: $access,
            any_method: false,
            by_check: false,
            deprecated: None,
            handler: $handler,
        }
    };
}

const READ: Access = Access::Keyed(Scope::Read);
const CONFIG: Access = Access::Keyed(Scope::Config);
const ADMIN: Access = Access::Keyed(Scope::Admin);

/// Every route. Those under `/v1` are also served under `/api/v1`.
pub(crate) static ROUTES: &[Route] = &[
    route!(POST "/v1/rate-limit/check", Access::OpenScope(Scope::Check), check::check, body),
    route!(POST "/v1/rate-limit/batch-check", Access::OpenScope(Scope::Check), batch_check::batch_check, body).by_check(),
    route!(GET "/v1/rate-limit/status", Access::OpenScope(Scope::Read), status::status),
    route!(GET "/v1/rate-limit/status/{user_id}/{*endpoint}", Access::OpenScope(Scope::Read), status::status_by_path),
    route!(POST "/v1/rate-limit/explain", Access::OpenScope(Scope::Read), explain::explain, body),
    route!(GET "/v1/rate-limit/config", READ, config::read),
    route!(PUT "/v1/rate-limit/config", CONFIG, config::write, body),
    route!(DELETE "/v1/rate-limit/config", CONFIG, config::delete),
    route!(POST "/v1/rate-limit/reset", Access::Keyed(Scope::Reset), reset::reset, body),
    route!(GET "/v1/forward-auth", Access::TrustedProxy, forward_auth::forward_auth, body).any_method(),
    route!(GET "/v1/admin/rules", READ, crud::list::<Rules>),
    route!(POST "/v1/admin/rules", ADMIN, crud::create::<Rules>, body),
    route!(GET "/v1/admin/rules/{name}", READ, crud::read::<Rules>),
    route!(PUT "/v1/admin/rules/{name}", ADMIN, crud::put::<Rules>, body),
    route!(DELETE "/v1/admin/rules/{name}", ADMIN, crud::delete::<Rules>),
    route!(GET "/v1/admin/tiers", READ, crud::list::<Tiers>),
    route!(POST "/v1/admin/tiers", ADMIN, crud::create::<Tiers>, body),
    route!(GET "/v1/admin/tiers/{name}", READ, crud::read::<Tiers>),
    route!(PUT "/v1/admin/tiers/{name}", ADMIN, crud::put::<Tiers>, body),
    route!(DELETE "/v1/admin/tiers/{name}", ADMIN, crud::delete::<Tiers>),
    route!(GET "/v1/admin/quotas", READ, crud::list::<Quotas>),
    route!(POST "/v1/admin/quotas", CONFIG, crud::create::<Quotas>, body),
    route!(GET "/v1/admin/quotas/{user_id}", READ, crud::read::<Quotas>),
    route!(PUT "/v1/admin/quotas/{user_id}", CONFIG, crud::put::<Quotas>, body),
    route!(DELETE "/v1/admin/quotas/{user_id}", CONFIG, crud::delete::<Quotas>),
    route!(GET "/v1/admin/keys", ADMIN, crud::list::<Keys>),
    route!(POST "/v1/admin/keys", ADMIN, admin::keys::create, body),
    route!(GET "/v1/admin/keys/{id}", ADMIN, crud::read::<Keys>),
    route!(PUT "/v1/admin/keys/{id}", ADMIN, admin::keys::put, body),
    route!(DELETE "/v1/admin/keys/{id}", ADMIN, crud::delete::<Keys>),
    route!(POST "/v1/admin/keys/{id}/rotate", ADMIN, admin::key_rotation::rotate, body),
    route!(POST "/v1/admin/keys/{id}/revoke", ADMIN, admin::key_rotation::revoke),
    route!(GET "/v1/admin/blocks", READ, crud::list::<Blocks>),
    route!(POST "/v1/admin/blocks", CONFIG, crud::create::<Blocks>, body),
    route!(GET "/v1/admin/blocks/{*client}", READ, crud::read::<Blocks>),
    route!(PUT "/v1/admin/blocks/{*client}", CONFIG, crud::put::<Blocks>, body),
    route!(DELETE "/v1/admin/blocks/{*client}", CONFIG, crud::delete::<Blocks>),
    route!(GET "/v1/admin/limits", READ, limits::limits),
    route!(GET "/v1/admin/audit", ADMIN, admin::audit::audit),
    route!(GET "/v1/admin/actions", ADMIN, admin::audit::audit),
    route!(GET "/v1/admin/export", ADMIN, admin::export::export),
    route!(POST "/v1/admin/import", ADMIN, admin::import::import, body),
    route!(POST "/v1/admin/reload", ADMIN, reload::reload, body),
    route!(GET "/v1/admin/counters", READ, counters::counters),
    route!(GET "/v1/admin/top", READ, admin::top::top),
    route!(GET "/v1/admin/decisions", READ, records::decisions::decisions),
    route!(GET "/v1/admin/windows", READ, records::windows::windows),
    route!(GET "/v1/admin/rollups", READ, records::rollups::rollups),
    route!(GET "/v1/admin/usage/{*identifier}", READ, records::usage::usage),
    route!(GET "/v1/admin/records/top", READ, records::ranking::top),
    route!(GET "/v1/admin/records/trend", READ, records::trend::trend),
    route!(GET "/v1/admin/records/violations", READ, records::ranking::violations),
    route!(GET "/v1/admin/upstreams", READ, admin::upstreams::upstreams),
    route!(GET "/v1/admin/penalties", ADMIN, penalties::penalties),
    route!(DELETE "/v1/admin/penalties/{*client}", ADMIN, penalties::pardon),
    route!(GET "/healthz", Access::Anyone, health::healthz),
    route!(GET "/readyz", Access::Anyone, health::readyz),
    route!(GET "/metrics", Access::Anyone, health::metrics),
    route!(GET "/openapi.json", Access::Anyone, health::openapi),
    route!(GET "/docs", Access::Anyone, health::docs),
    route!(GET "/docs/", Access::Anyone, health::index),
    route!(GET "/docs/docs.css", Access::Anyone, health::docs),
    route!(GET "/docs/docs.js", Access::Anyone, health::docs),
    route!(GET "/docs/dom.js", Access::Anyone, health::docs),
    route!(GET "/docs/operation.js", Access::Anyone, health::docs),
    route!(GET "/docs/request.js", Access::Anyone, health::docs),
    route!(GET "/docs/schema.js", Access::Anyone, health::docs),
    route!(GET "/", Access::Anyone, health::index),
    #[cfg(test)]
    route!(GET "/deprecated-in-tests", Access::Anyone, health::healthz).deprecated(super::deprecation::FOR_TESTS),
];

/// The routes by path, each path with all of its methods.
static PATHS: LazyLock<HashMap<&'static str, Vec<&'static Route>>> = LazyLock::new(|| {
    let mut paths: HashMap<_, Vec<_>> = HashMap::new();
    for route in ROUTES {
        paths.entry(route.path).or_default().push(route);
    }
    paths
});

/// The routes of a path, with or without the prefix `/api`. No two patterns match the same path.
pub(crate) fn routes_of(path: &str) -> &'static [&'static Route] {
    let path = without_api_prefix(path);
    let by_pattern = || PATHS.iter().find(|(pattern, _)| match_pattern(pattern, path, |_, _| ()));
    let found = PATHS.get(path).or_else(|| by_pattern().map(|(_, routes)| routes));
    found.map_or(&[], Vec::as_slice)
}

/// The value of a path variable, still percent-encoded.
pub(crate) fn path_variable<'p>(pattern: &'static str, path: &'p str, name: &str) -> &'p str {
    let mut value = "";
    match_pattern(pattern, without_api_prefix(path), |known, segment| {
        if known == name {
            value = segment;
        }
    });
    value
}

/// Strips the prefix `/api` of `/api/v1/…`.
fn without_api_prefix(path: &str) -> &str {
    match path.strip_prefix("/api") {
        Some(rest) if rest.starts_with("/v1/") => rest,
        _ => path,
    }
}

/// Whether a path matches a pattern; calls `each` with every variable and its value, which is never empty.
fn match_pattern<'p>(
    pattern: &'static str,
    path: &'p str,
    mut each: impl FnMut(&'static str, &'p str),
) -> bool {
    let mut rest = Some(path);
    for part in pattern.split('/') {
        let Some(left) = rest else { return false };
        let name = part.strip_prefix('{').and_then(|part| part.strip_suffix('}'));
        let all = name.and_then(|name| name.strip_prefix('*'));
        let (segment, behind) = match left.split_once('/') {
            Some((segment, behind)) if all.is_none() => (segment, Some(behind)),
            _ => (left, None),
        };
        match all.or(name) {
            Some(name) if !segment.is_empty() => each(name, segment),
            None if segment == part => {}
            _ => return false,
        }
        rest = behind;
    }
    rest.is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_service_routes_need_no_scope() {
        for route in ROUTES {
            let open = matches!(route.access, Access::Anyone);
            assert_eq!(open, !route.path.starts_with("/v1/"), "{}", route.path);
        }
    }

    /// The path with a value for each variable.
    fn filled_in(path: &str) -> String {
        let part = |part: &str| match part {
            all if all.starts_with("{*") => "a/b/c".to_owned(),
            one if one.starts_with('{') => "user%3Aa".to_owned(),
            literal => literal.to_owned(),
        };
        path.split('/').map(part).collect::<Vec<String>>().join("/")
    }

    #[test]
    fn every_route_is_found_with_and_without_api_prefix() {
        for route in ROUTES {
            let path = filled_in(route.path);
            let found = |path: &str| routes_of(path).iter().any(|found| std::ptr::eq(*found, route));
            assert!(found(&path), "{path}");
            assert_eq!(found(&format!("/api{path}")), path.starts_with("/v1/"), "/api{path}");
        }
        for nowhere in [
            "/v1/rate-limit/check/",
            "/v1/rate-limit/status/",
            "/v1/rate-limit/status/a",
            "/v1/admin/rules/",
            "/v1/admin/rules/a/b",
            "/v1/admin/keys//rotate",
            "/v1/admin/keys/a/rotate/",
            "/v1/admin/keys/a/other",
            "/v1/admin/penalties/",
            "/v1",
            "",
            "/api/healthz",
            "/docs/x",
        ] {
            assert!(routes_of(nowhere).is_empty(), "{nowhere}");
        }
    }

    #[test]
    fn deprecated_routes_are_served_for_six_months() {
        let deprecated: Vec<_> = ROUTES.iter().filter_map(|route| route.deprecated).collect();
        assert!(deprecated.iter().all(|route| route.sunset - route.since >= 183 * 86_400), "{deprecated:?}");
    }

    #[test]
    fn routes_of_a_path_have_distinct_methods() {
        for route in ROUTES {
            let same = routes_of(&filled_in(route.path)).iter().filter(|other| other.method == route.method);
            assert_eq!(same.count(), 1, "{}", route.path);
        }
    }

    #[test]
    fn path_variables_keep_their_encoding() {
        let keys = "/v1/admin/keys/{id}/rotate";
        assert_eq!(path_variable(keys, "/api/v1/admin/keys/a%2Fb/rotate", "id"), "a%2Fb");
        let status = "/v1/rate-limit/status/{user_id}/{*endpoint}";
        assert_eq!(path_variable(status, "/v1/rate-limit/status/u//a/b", "endpoint"), "/a/b");
        assert_eq!(path_variable(status, "/v1/rate-limit/status/u//a/b", "user_id"), "u");
    }
}

//! Every route, and how a path finds its own.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::LazyLock;

use http::Method;
use hyper::body::Incoming;

use super::{Call, Response, health};
use crate::admin::blocks::Blocks;
use crate::admin::keys::Keys;
use crate::admin::quotas::Quotas;
use crate::admin::rules::Rules;
use crate::admin::tiers::Tiers;
use crate::admin::{self, counters, crud, penalties, reload};
use crate::api::{batch_check, check, config, explain, reset, status};
use crate::auth::Access;
use crate::auth::scope::Scope;
use crate::http::error::ApiError;

/// One route of version 1.
pub(crate) struct Route {
    pub(crate) method: RouteMethod,
    /// Pieces between slashes; `{name}` is any one of them, `{*name}` all that is left.
    pub(crate) path: &'static str,
    pub(crate) access: Access,
    pub(crate) deprecated: Option<Deprecated>,
    /// Whether it counts for its caller as many as there are checks in it, which is known once it is read.
    pub(crate) by_check: bool,
    pub(crate) handler: Handler,
}

/// A route on its way out: answered as ever, with `Deprecation` and `Sunset` headers.
#[derive(Copy, Clone)]
pub(crate) struct Deprecated {
    /// Since when, as a structured-field date (`@` and Unix seconds).
    pub(crate) since: &'static str,
    /// When it goes, as an HTTP date.
    pub(crate) sunset: &'static str,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum RouteMethod {
    Get,
    Post,
    Put,
    Delete,
}

impl RouteMethod {
    /// `HEAD` is `GET` without the body, which the transport leaves out.
    pub(crate) fn is(self, method: &Method) -> bool {
        match self {
            RouteMethod::Get => method == Method::GET || method == Method::HEAD,
            RouteMethod::Post => method == Method::POST,
            RouteMethod::Put => method == Method::PUT,
            RouteMethod::Delete => method == Method::DELETE,
        }
    }

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            RouteMethod::Get => "GET",
            RouteMethod::Post => "POST",
            RouteMethod::Put => "PUT",
            RouteMethod::Delete => "DELETE",
        }
    }

    pub(crate) const fn allow(self) -> &'static str {
        match self {
            RouteMethod::Get => "GET, HEAD",
            other => other.as_str(),
        }
    }
}

impl Route {
    /// Whether it is there to change something. A check counts, and that is no change.
    pub(crate) fn changes_something(&self) -> bool {
        self.method != RouteMethod::Get && matches!(self.access, Access::Keyed(_))
    }
}

pub(crate) type HandlerFuture = Pin<Box<dyn Future<Output = Result<Response, ApiError>> + Send>>;
pub(crate) type Handler = fn(Call, Incoming) -> HandlerFuture;

/// Wraps an async handler as a plain function; one that takes no body is marked so.
macro_rules! route {
    ($method:ident $path:literal, $access:expr, $handler:path) => {
        route!(@ $method, $path, $access, |call, _| Box::pin($handler(call)))
    };
    ($method:ident $path:literal, $access:expr, $handler:path, body) => {
        route!(@ $method, $path, $access, |call, body| Box::pin($handler(call, body)))
    };
    (@ $method:ident, $path:literal, $access:expr, $handler:expr) => {
        $crate::http::routes::Route {
            method: $crate::http::routes::RouteMethod::$method,
            path: $path,
            access: $access,
            deprecated: None,
            by_check: false,
            handler: $handler,
        }
    };
}
#[cfg(test)]
pub(crate) use route;

const READ: Access = Access::Keyed(Scope::Read);
const CONFIG: Access = Access::Keyed(Scope::Config);
const ADMIN: Access = Access::Keyed(Scope::Admin);

/// Every route. The alias under `/api` is made from the same list.
pub(crate) static ROUTES: &[Route] = &[
    route!(Post "/v1/rate-limit/check", Access::OpenScope(Scope::Check), check::check, body),
    Route {
        by_check: true,
        ..route!(Post "/v1/rate-limit/batch-check", Access::OpenScope(Scope::Check), batch_check::batch_check, body)
    },
    route!(Get "/v1/rate-limit/status", Access::OpenScope(Scope::Read), status::status),
    route!(Get "/v1/rate-limit/status/{user_id}/{*endpoint}", Access::OpenScope(Scope::Read), status::status_by_path),
    route!(Post "/v1/rate-limit/explain", Access::OpenScope(Scope::Read), explain::explain, body),
    route!(Get "/v1/rate-limit/config", READ, config::read),
    route!(Put "/v1/rate-limit/config", CONFIG, config::write, body),
    route!(Delete "/v1/rate-limit/config", CONFIG, config::delete),
    route!(Post "/v1/rate-limit/reset", Access::Keyed(Scope::Reset), reset::reset, body),
    route!(Get "/v1/admin/rules", READ, crud::list::<Rules>),
    route!(Post "/v1/admin/rules", ADMIN, crud::create::<Rules>, body),
    route!(Get "/v1/admin/rules/{name}", READ, crud::read::<Rules>),
    route!(Put "/v1/admin/rules/{name}", ADMIN, crud::put::<Rules>, body),
    route!(Delete "/v1/admin/rules/{name}", ADMIN, crud::delete::<Rules>),
    route!(Get "/v1/admin/tiers", READ, crud::list::<Tiers>),
    route!(Post "/v1/admin/tiers", ADMIN, crud::create::<Tiers>, body),
    route!(Get "/v1/admin/tiers/{name}", READ, crud::read::<Tiers>),
    route!(Put "/v1/admin/tiers/{name}", ADMIN, crud::put::<Tiers>, body),
    route!(Delete "/v1/admin/tiers/{name}", ADMIN, crud::delete::<Tiers>),
    route!(Get "/v1/admin/quotas", READ, crud::list::<Quotas>),
    route!(Post "/v1/admin/quotas", CONFIG, crud::create::<Quotas>, body),
    route!(Get "/v1/admin/quotas/{user_id}", READ, crud::read::<Quotas>),
    route!(Put "/v1/admin/quotas/{user_id}", CONFIG, crud::put::<Quotas>, body),
    route!(Delete "/v1/admin/quotas/{user_id}", CONFIG, crud::delete::<Quotas>),
    route!(Get "/v1/admin/keys", ADMIN, crud::list::<Keys>),
    route!(Post "/v1/admin/keys", ADMIN, admin::keys::create, body),
    route!(Get "/v1/admin/keys/{id}", ADMIN, crud::read::<Keys>),
    route!(Put "/v1/admin/keys/{id}", ADMIN, admin::keys::put, body),
    route!(Delete "/v1/admin/keys/{id}", ADMIN, crud::delete::<Keys>),
    route!(Post "/v1/admin/keys/{id}/rotate", ADMIN, admin::key_rotation::rotate, body),
    route!(Post "/v1/admin/keys/{id}/revoke", ADMIN, admin::key_rotation::revoke),
    route!(Get "/v1/admin/blocks", READ, crud::list::<Blocks>),
    route!(Post "/v1/admin/blocks", CONFIG, crud::create::<Blocks>, body),
    route!(Get "/v1/admin/blocks/{*client}", READ, crud::read::<Blocks>),
    route!(Put "/v1/admin/blocks/{*client}", CONFIG, crud::put::<Blocks>, body),
    route!(Delete "/v1/admin/blocks/{*client}", CONFIG, crud::delete::<Blocks>),
    route!(Get "/v1/admin/audit", ADMIN, admin::audit::audit),
    route!(Get "/v1/admin/actions", ADMIN, admin::audit::actions),
    route!(Get "/v1/admin/export", ADMIN, admin::export::export),
    route!(Post "/v1/admin/import", ADMIN, admin::import::import, body),
    route!(Post "/v1/admin/reload", ADMIN, reload::reload, body),
    route!(Get "/v1/admin/counters", READ, counters::counters),
    route!(Get "/v1/admin/penalties", ADMIN, penalties::penalties),
    route!(Delete "/v1/admin/penalties/{*client}", ADMIN, penalties::pardon),
    route!(Get "/healthz", Access::Anyone, health::healthz),
    route!(Get "/readyz", Access::Anyone, health::readyz),
    route!(Get "/metrics", Access::Anyone, health::metrics),
    route!(Get "/openapi.json", Access::Anyone, health::openapi),
    route!(Get "/docs", Access::Anyone, health::docs),
    route!(Get "/docs/", Access::Anyone, health::index),
    route!(Get "/docs/docs.js", Access::Anyone, health::docs_script),
    route!(Get "/docs/docs.css", Access::Anyone, health::docs_style),
    route!(Get "/", Access::Anyone, health::index),
];

/// The routes by path: those that are written out, and those with variables, each with all of its methods.
struct Paths {
    exact: HashMap<&'static str, Vec<&'static Route>>,
    patterns: Vec<(&'static str, Vec<&'static Route>)>,
}

static PATHS: LazyLock<Paths> = LazyLock::new(|| {
    let mut paths = Paths { exact: HashMap::new(), patterns: Vec::new() };
    for route in ROUTES {
        if !route.path.contains('{') {
            paths.exact.entry(route.path).or_default().push(route);
            continue;
        }
        match paths.patterns.iter_mut().find(|(path, _)| *path == route.path) {
            Some((_, routes)) => routes.push(route),
            None => paths.patterns.push((route.path, vec![route])),
        }
    }
    paths
});

/// The routes of a path, in either of its spellings.
pub(crate) fn routes_of(path: &str) -> &'static [&'static Route] {
    let path = plain(path);
    if let Some(routes) = PATHS.exact.get(path) {
        return routes;
    }
    let found = PATHS.patterns.iter().find(|(pattern, _)| variables(pattern, path, |_, _| ()));
    found.map_or(&[], |(_, routes)| routes)
}

/// The piece of a path that a variable of its route stands for, as it was sent.
pub(crate) fn variable<'p>(pattern: &'static str, path: &'p str, name: &str) -> &'p str {
    let mut value = "";
    variables(pattern, plain(path), |known, piece| {
        if known == name {
            value = piece;
        }
    });
    value
}

/// A path without the `/api` that may stand before it.
fn plain(path: &str) -> &str {
    match path.strip_prefix("/api") {
        Some(rest) if rest.starts_with("/v1/") => rest,
        _ => path,
    }
}

/// Whether a path has the form of a pattern; each variable is told with its piece, none of which is empty.
fn variables<'p>(pattern: &'static str, path: &'p str, mut each: impl FnMut(&'static str, &'p str)) -> bool {
    let mut rest = Some(path);
    for part in pattern.split('/') {
        let Some(left) = rest else { return false };
        let name = part.strip_prefix('{').and_then(|part| part.strip_suffix('}'));
        let all = name.and_then(|name| name.strip_prefix('*'));
        let (piece, behind) = match left.split_once('/') {
            Some((piece, behind)) if all.is_none() => (piece, Some(behind)),
            _ => (left, None),
        };
        match all.or(name) {
            Some(name) if !piece.is_empty() => each(name, piece),
            None if piece == part => {}
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
    fn every_route_but_those_of_the_service_itself_asks_for_a_scope() {
        for route in ROUTES {
            let open = matches!(route.access, Access::Anyone);
            assert_eq!(open, !route.path.starts_with("/v1/"), "{}", route.path);
        }
    }

    /// The path with something in place of each variable.
    fn filled_in(path: &str) -> String {
        let part = |part: &str| match part {
            all if all.starts_with("{*") => "a/b/c".to_owned(),
            one if one.starts_with('{') => "user%3Aa".to_owned(),
            literal => literal.to_owned(),
        };
        path.split('/').map(part).collect::<Vec<String>>().join("/")
    }

    #[test]
    fn every_route_is_found_by_its_path_and_by_its_alias() {
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
    fn no_path_has_two_routes_of_one_method() {
        for route in ROUTES {
            let same = routes_of(&filled_in(route.path)).iter().filter(|other| other.method == route.method);
            assert_eq!(same.count(), 1, "{}", route.path);
        }
    }

    #[test]
    fn variables_are_told_as_they_were_sent() {
        let keys = "/v1/admin/keys/{id}/rotate";
        assert_eq!(variable(keys, "/api/v1/admin/keys/a%2Fb/rotate", "id"), "a%2Fb");
        let status = "/v1/rate-limit/status/{user_id}/{*endpoint}";
        assert_eq!(variable(status, "/v1/rate-limit/status/u//a/b", "endpoint"), "/a/b");
        assert_eq!(variable(status, "/v1/rate-limit/status/u//a/b", "user_id"), "u");
    }
}

//! The description of the API, made from the handlers themselves and from the table of routes.

mod components;

use std::sync::LazyLock;

use serde_json::{Value, json};
use utoipa::OpenApi;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};

use super::health;
use super::routes::{ROUTES, Route};
use crate::admin::{self, counters, penalties, reload};
use crate::api::{batch_check, check, config, explain, reset, status};
use crate::auth::Access;
use crate::auth::scope::Scope;

#[derive(OpenApi)]
#[openapi(
    info(title = "tollgate", description = "Decides, for every request to an API, whether it may pass now."),
    paths(
        check::check,
        batch_check::batch_check,
        status::status,
        status::status_by_path,
        explain::explain,
        config::read,
        config::write,
        config::delete,
        reset::reset,
        admin::rules::list,
        admin::rules::create,
        admin::rules::read,
        admin::rules::put,
        admin::rules::delete,
        admin::tiers::list,
        admin::tiers::create,
        admin::tiers::read,
        admin::tiers::put,
        admin::tiers::delete,
        admin::quotas::list,
        admin::quotas::create,
        admin::quotas::read,
        admin::quotas::put,
        admin::quotas::delete,
        admin::keys::list,
        admin::keys::create,
        admin::keys::read,
        admin::keys::put,
        admin::keys::delete,
        admin::key_rotation::rotate,
        admin::key_rotation::revoke,
        admin::blocks::list,
        admin::blocks::create,
        admin::blocks::read,
        admin::blocks::put,
        admin::blocks::delete,
        admin::audit::audit,
        admin::audit::actions,
        admin::export::export,
        admin::import::import,
        reload::reload,
        counters::counters,
        penalties::penalties,
        penalties::pardon,
        health::healthz,
        health::readyz,
        health::metrics,
        health::openapi,
    )
)]
struct Description;

static JSON: LazyLock<String> = LazyLock::new(|| {
    let mut description = Description::openapi();
    let bearer = SecurityScheme::Http(HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build());
    description.components.get_or_insert_default().add_security_scheme("key", bearer);
    let mut description = serde_json::to_value(&description).unwrap_or_default();
    let schemas = description["components"]["schemas"].clone();
    for route in ROUTES {
        let path = format!("/paths/{}/{}", described_path(route).replace('/', "~1"), verb(route));
        if let Some(Value::Object(operation)) = description.pointer_mut(&path) {
            operation.insert("security".to_owned(), security(route));
            components::complete(operation, route, &schemas);
        }
    }
    description["components"]["headers"] = components::headers();
    components::widen_numbers(&mut description);
    description.to_string()
});

/// What a route asks of its caller: the router knows, so nobody writes it down twice.
fn security(route: &Route) -> Value {
    let key = |scope: Scope| json!({ "key": [scope.as_str()] });
    match route.access {
        Access::Anyone => json!([]),
        // While checks are open, no key is as good as one.
        Access::OpenScope(scope) => json!([{}, key(scope)]),
        Access::Keyed(scope) => json!([key(scope)]),
    }
}

/// The path as it is described: `{*rest}` is `{rest}`.
fn described_path(route: &Route) -> String {
    route.path.replace("{*", "{")
}

fn verb(route: &Route) -> String {
    route.method.as_str().to_lowercase()
}

/// OpenAPI 3.1, made once.
pub(crate) fn json() -> &'static str {
    &JSON
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// What version 1 has promised. Lines are added, never removed: see docs/api.md.
    const CONTRACT: &str = include_str!("../../contract/v1.txt");

    fn description() -> Value {
        serde_json::from_str(json()).unwrap()
    }

    /// Every route, parameter and field, one a line.
    fn described(api: &Value) -> BTreeSet<String> {
        let mut lines = BTreeSet::new();
        for (path, operations) in api["paths"].as_object().unwrap() {
            for (verb, operation) in operations.as_object().unwrap() {
                let route = format!("{} {path}", verb.to_uppercase());
                for parameter in operation["parameters"].as_array().into_iter().flatten() {
                    lines.insert(format!("{route} takes {}", parameter["name"].as_str().unwrap()));
                }
                for status in operation["responses"].as_object().unwrap().keys() {
                    lines.insert(format!("{route} answers {status}"));
                }
                lines.insert(route);
            }
        }
        for (name, schema) in api["components"]["schemas"].as_object().unwrap() {
            let parts = schema["allOf"].as_array().into_iter().flatten().chain([schema]);
            for part in parts {
                for (field, kind) in part["properties"].as_object().into_iter().flatten() {
                    lines.insert(format!("{name}.{field}: {}", kind_of(kind)));
                }
            }
            for code in schema["enum"].as_array().into_iter().flatten() {
                lines.insert(format!("{name} = {code}"));
            }
        }
        lines
    }

    /// The type of a field, or the name of what it is.
    fn kind_of(schema: &Value) -> String {
        if let Some(parts) = schema["oneOf"].as_array() {
            return parts.iter().map(kind_of).collect::<Vec<String>>().join(" or ");
        }
        let name = schema["$ref"].as_str().and_then(|reference| reference.rsplit('/').next());
        name.map_or_else(|| schema["type"].to_string(), str::to_owned)
    }

    #[test]
    fn nothing_that_version_1_documents_has_disappeared() {
        let described = described(&description());
        let lost: Vec<&str> = CONTRACT.lines().filter(|line| !described.contains(*line)).collect();
        assert!(lost.is_empty(), "a change of version 1 may only add; these are gone: {lost:#?}");
        let new: Vec<&String> =
            described.iter().filter(|line| !CONTRACT.lines().any(|old| old == *line)).collect();
        assert!(new.is_empty(), "new, so promise them in contract/v1.txt: {new:#?}");
    }

    #[test]
    fn every_route_of_version_1_is_described() {
        let api = description();
        for route in ROUTES.iter().filter(|route| route.path.starts_with("/v1/")) {
            let (path, verb) = (described_path(route), verb(route));
            assert!(api["paths"][&path][&verb]["security"].is_array(), "who may do {verb} {path}");
            assert!(api["paths"][&path][&verb].is_object(), "{verb} {path}");
        }
    }
    #[test]
    fn every_operation_has_a_name_of_its_own() {
        let api = description();
        let operations =
            api["paths"].as_object().unwrap().values().flat_map(|path| path.as_object().unwrap());
        let mut names = BTreeSet::new();
        for (_, operation) in operations {
            let name = operation["operationId"].as_str().unwrap().to_owned();
            assert!(names.insert(name.clone()), "{name}");
        }
        assert!(names.contains("list_rules") && names.contains("put_rule") && names.contains("write_config"));
    }
}

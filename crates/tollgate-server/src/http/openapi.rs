//! The OpenAPI document, built from the handlers and the route table.

mod components;
mod constraints;
mod examples;
mod groups;
mod resources;

use std::sync::LazyLock;

use serde_json::{Value, json};
use utoipa::OpenApi;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};

use super::health;
use super::routes::{ROUTES, Route};
use crate::admin::blocks::Blocks;
use crate::admin::keys::Keys;
use crate::admin::quotas::Quotas;
use crate::admin::rules::Rules;
use crate::admin::tiers::Tiers;
use crate::admin::{self, counters, limits, penalties, records, reload};
use crate::api::{batch_check, check, config, explain, reset, status};
use crate::auth::Access;
use crate::auth::scope::Scope;
use crate::gateways::forward_auth;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "tollgate",
        description = "Rate limiting: decides for each API request whether it is admitted."
    ),
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
        forward_auth::forward_auth,
        admin::key_rotation::rotate,
        admin::key_rotation::revoke,
        limits::limits,
        admin::audit::audit,
        admin::export::export,
        admin::import::import,
        reload::reload,
        counters::counters,
        admin::top::top,
        records::decisions::decisions,
        records::windows::windows,
        records::rollups::rollups,
        records::usage::usage,
        records::ranking::top,
        records::ranking::violations,
        records::trend::trend,
        penalties::penalties,
        penalties::pardon,
        admin::upstreams::upstreams,
        health::healthz,
        health::readyz,
        health::metrics,
        health::openapi,
    )
)]
struct Description;

/// Built by a thread of its own: with it, the allocator returns the memory that building took.
static JSON: LazyLock<Box<str>> = LazyLock::new(|| std::thread::spawn(build).join().unwrap_or_default());

fn build() -> Box<str> {
    let mut description = Description::openapi();
    let bearer = SecurityScheme::Http(HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build());
    description.components.get_or_insert_default().add_security_scheme("key", bearer);
    let mut description = serde_json::to_value(&description).unwrap_or_default();
    resources::describe::<Rules>(&mut description);
    resources::describe::<Tiers>(&mut description);
    resources::describe::<Quotas>(&mut description);
    resources::describe::<Keys>(&mut description);
    resources::describe::<Blocks>(&mut description);
    let mut actions = description["paths"]["/v1/admin/audit"].clone();
    actions["get"]["operationId"] = json!("actions");
    description["paths"]["/v1/admin/actions"] = actions;
    let schemas = description["components"]["schemas"].clone();
    for route in ROUTES {
        let path = format!("/paths/{}/{}", described_path(route).replace('/', "~1"), verb(route));
        if let Some(Value::Object(operation)) = description.pointer_mut(&path) {
            operation.insert("security".to_owned(), security(route));
            operation.insert("tags".to_owned(), json!([groups::tag(route)]));
            components::complete(operation, route, &schemas);
            examples::complete(operation, route);
        }
    }
    groups::describe(&mut description);
    description["components"]["headers"] = components::headers();
    components::widen_numbers(&mut description);
    constraints::describe(&mut description);
    description.to_string().into()
}

/// The scopes of a route, from the route table.
fn security(route: &Route) -> Value {
    let key = |scope: Scope| json!({ "key": [scope.as_str()] });
    match route.access {
        // A gateway is known by its connection.
        Access::Anyone | Access::TrustedProxy => json!([]),
        // With `auth.open_checks` no key is needed.
        Access::OpenScope(scope) => json!([{}, key(scope)]),
        Access::Keyed(scope) => json!([key(scope)]),
    }
}

/// The path in OpenAPI: `{*rest}` becomes `{rest}`.
fn described_path(route: &Route) -> String {
    route.path.replace("{*", "{")
}

fn verb(route: &Route) -> String {
    route.method.as_str().to_lowercase()
}

/// OpenAPI 3.1, built once.
pub(crate) fn json() -> &'static str {
    &JSON
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The contract of version 1. Lines are added, never removed: see docs/api.md.
    const CONTRACT: &str = include_str!("../../contract/v1.txt");

    fn description() -> Value {
        serde_json::from_str(json()).unwrap()
    }

    /// Every route, parameter and field, one per line.
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
            for (field, kind) in fields(api, schema) {
                lines.insert(format!("{name}.{field}: {}", kind_of(kind)));
            }
            for code in schema["enum"].as_array().into_iter().flatten() {
                lines.insert(format!("{name} = {code}"));
            }
        }
        lines
    }

    /// The fields of a schema and of those that it includes.
    fn fields<'a>(api: &'a Value, schema: &'a Value) -> Vec<(&'a String, &'a Value)> {
        let included =
            schema["$ref"].as_str().and_then(|reference| api.pointer(reference.strip_prefix('#')?));
        let parts = schema["allOf"].as_array().into_iter().flatten().chain(included);
        let own = schema["properties"].as_object().into_iter().flatten();
        own.chain(parts.flat_map(|part| fields(api, part))).collect()
    }

    /// The type of a field, or the name of its schema.
    fn kind_of(schema: &Value) -> String {
        if let Some(parts) = schema["oneOf"].as_array() {
            return parts.iter().map(kind_of).collect::<Vec<String>>().join(" or ");
        }
        let name = schema["$ref"].as_str().and_then(|reference| reference.rsplit('/').next());
        name.map_or_else(|| schema["type"].to_string(), str::to_owned)
    }

    #[test]
    fn contract_of_version_1_is_complete() {
        let described = described(&description());
        let lost: Vec<&str> = CONTRACT.lines().filter(|line| !described.contains(*line)).collect();
        assert!(lost.is_empty(), "removed from version 1: {lost:#?}");
        let new: Vec<&String> =
            described.iter().filter(|line| !CONTRACT.lines().any(|old| old == *line)).collect();
        assert!(new.is_empty(), "add to contract/v1.txt: {new:#?}");
    }

    #[test]
    fn every_v1_route_is_described() {
        let api = description();
        for route in ROUTES.iter().filter(|route| route.path.starts_with("/v1/")) {
            let (path, verb) = (described_path(route), verb(route));
            assert!(api["paths"][&path][&verb]["security"].is_array(), "who may do {verb} {path}");
            assert!(api["paths"][&path][&verb].is_object(), "{verb} {path}");
        }
    }

    #[test]
    fn operation_ids_are_unique() {
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

//! The operations of the CRUD handlers, described once for every kind of configuration item.

use serde_json::{Value, json};
use tollgate_stores::sql::ItemKind;
use utoipa::ToSchema;
use utoipa::openapi::{RefOr, Schema};

use crate::admin::crud::{AdminResource, Operations};
use crate::admin::view;

const DRY_RUN: &str = "`true` changes nothing; the response shows what would change.";

/// Adds the five operations of one kind, and their schemas.
pub(super) fn describe<R: AdminResource>(api: &mut Value) {
    let Operations { noun, id, create, put, delete, create_conflict, put_creates } = R::OPERATIONS;
    let plural = view::plural(R::KIND);
    let (input, item) = (add_schema::<R::Input>(api), add_schema::<R::View>(api));
    let page = add_page_schema(api, plural, noun, &item);
    if matches!(R::KIND, ItemKind::Rule | ItemKind::Tier | ItemKind::Block) {
        let stale =
            "Present and true while the database is unreachable: the items that this node last read from it.";
        api["components"]["schemas"][&page]["properties"]["stale"] =
            json!({ "type": "boolean", "description": stale });
    }
    let item_id = path_parameter(R::ID_FIELD, id);
    let tenant = query("tenant", "string", "Tenant of the item; without it, the item without a tenant.");
    let with_tenant = |parameters: Vec<&Value>| -> Vec<Value> {
        parameters.into_iter().chain(R::IN_TENANT.then_some(&tenant)).cloned().collect()
    };
    let dry_run = query("dry_run", "boolean", DRY_RUN);
    let body = json!({ "required": true, "content": content(&input) });
    let ok = |text: &str| response(text, &item);
    let written = |text: &str| json!({ "description": text, "content": written_content(&item) });
    let failed = |text: &str| response(text, "ErrorEnvelope");
    let missing = format!("The {noun} does not exist.");
    let not_met =
        format!("The {noun} is not at the version in `If-Match`, or exists despite `If-None-Match: *`.");
    let would_change = response("With `dry_run`: what would change.", "DryRunResponse");

    let mut replace = json!({
        "operationId": format!("put_{noun}"), "summary": put, "parameters": with_tenant(vec![&item_id, &dry_run]), "requestBody": body,
        "responses": {
            "200": written(&format!("The {noun} was replaced; with `dry_run`, what would change.")),
            "412": failed(&not_met),
        },
    });
    if put_creates {
        replace["responses"]["201"] = written(&format!("The {noun} was created."));
    } else {
        replace["responses"]["404"] = failed(&missing);
    }
    api["paths"][format!("/v1/admin/{plural}")] = json!({
        "get": {
            "operationId": format!("list_{plural}"), "summary": format!("Lists {plural} by {}.", R::ID_FIELD), "parameters": list_parameters::<R>(),
            "responses": { "200": response(&format!("A page of {plural}."), &page) },
        },
        "post": {
            "operationId": format!("create_{noun}"), "summary": create, "parameters": with_tenant(vec![&dry_run]), "requestBody": body,
            "responses": {
                "201": written(&format!("The {noun} was created; `Location` is its path.")),
                "200": would_change, "409": failed(create_conflict),
            },
        },
    });
    api["paths"][format!("/v1/admin/{plural}/{{{}}}", R::ID_FIELD)] = json!({
        "get": {
            "operationId": format!("read_{noun}"), "summary": format!("Returns a {noun}."), "parameters": with_tenant(vec![&item_id]),
            "responses": {
                "200": ok(&format!("The {noun}; `ETag` is its version.")),
                "304": { "description": "The version in `If-None-Match` is current." },
                "404": failed(&missing),
            },
        },
        "put": replace,
        "delete": {
            "operationId": format!("delete_{noun}"), "summary": delete, "parameters": with_tenant(vec![&item_id, &dry_run]),
            "responses": {
                "204": { "description": format!("The {noun} was deleted.") },
                "200": would_change, "404": failed(&missing), "412": failed(&not_met),
            },
        },
    });
}

fn list_parameters<R: AdminResource>() -> Vec<Value> {
    let mut limit = query("limit", "integer", "Items per page; default 100.");
    limit["schema"] = json!({ "type": "integer", "format": "int32", "minimum": 1, "maximum": 1000 });
    let after = query("after", "string", "Continues after an earlier page: its `next`.");
    let filters = R::FILTERS.iter().map(|filter| query(filter.name, filter.schema_type, filter.description));
    [limit, after].into_iter().chain(filters).collect()
}

fn path_parameter(name: &str, description: &str) -> Value {
    json!({
        "name": name, "in": "path", "required": true, "description": description, "schema": { "type": "string" },
    })
}

fn query(name: &str, schema_type: &str, description: &str) -> Value {
    json!({
        "name": name, "in": "query", "required": false, "description": description, "schema": { "type": schema_type },
    })
}

fn response(description: &str, schema: &str) -> Value {
    json!({ "description": description, "content": content(schema) })
}

fn content(schema: &str) -> Value {
    json!({ "application/json": { "schema": { "$ref": format!("#/components/schemas/{schema}") } } })
}

/// An item that was written, with warnings.
fn written_content(item: &str) -> Value {
    let warnings = json!({
        "type": "array", "items": { "type": "string" }, "description": "What may not be as meant; absent if nothing.",
    });
    let schema = json!({ "allOf": [
        { "$ref": format!("#/components/schemas/{item}") },
        { "type": "object", "properties": { "warnings": warnings } },
    ] });
    json!({ "application/json": { "schema": schema } })
}

/// Adds the schema of a type, and those it refers to. Returns its name.
fn add_schema<T: ToSchema>(api: &mut Value) -> String {
    let name = T::name().into_owned();
    let mut schemas: Vec<(String, RefOr<Schema>)> = vec![(name.clone(), T::schema())];
    T::schemas(&mut schemas);
    for (name, schema) in schemas {
        api["components"]["schemas"][name] = serde_json::to_value(schema).unwrap_or_default();
    }
    name
}

/// Adds the schema of a page. Returns its name.
fn add_page_schema(api: &mut Value, plural: &str, noun: &str, item: &str) -> String {
    let (first, rest) = noun.split_at(1);
    let name = format!("{}{rest}Page", first.to_uppercase());
    let cursor = "Cursor of the next page; null if this is the last.";
    api["components"]["schemas"][&name] = json!({
        "type": "object",
        "description": format!("A page of {plural}."),
        "required": [plural, "next"],
        "properties": {
            plural: { "type": "array", "items": { "$ref": format!("#/components/schemas/{item}") } },
            "next": { "type": ["string", "null"], "description": cursor },
        },
    });
    name
}

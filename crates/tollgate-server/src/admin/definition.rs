//! Items as a request body would define them: in exports and dry runs. Nothing here contains a secret or its hash.

use serde_json::{Map, Value as Json, json};
use tollgate_stores::sql::{Item, KeyItem};

use super::blocks::BlockProperties;
use super::keys::KeyProperties;
use super::quotas::QuotaInput;
use super::view::{put, timestamp};

/// The definition of an item, without absent fields.
pub(crate) fn definition(item: &Item) -> Map<String, Json> {
    match item {
        Item::Rule(rule) => with_name(&rule.name, "", &rule.body),
        Item::Tier(tier) => with_name(&tier.name, &tier.description, &tier.body),
        Item::Quota(quota) => without_absent(json!(QuotaInput::from(quota))),
        Item::Key(key) => without_absent(key_definition(key)),
        Item::Block(block) => without_absent(json!(BlockProperties::from(block))),
        Item::Limit(limit) => without_absent(json!({
            "tenant": limit.tenant, "user_id": limit.user, "endpoint": limit.endpoint, "limit": limit.requests,
            "window_seconds": limit.window_micros.div_ceil(1_000_000), "strategy": limit.algorithm,
            "burst_capacity": limit.burst,
        })),
    }
}

fn with_name(name: &str, description: &str, body: &Map<String, Json>) -> Map<String, Json> {
    let mut all = body.clone();
    put(&mut all, "name", Some(name));
    put(&mut all, "description", Some(description).filter(|text| !text.is_empty()));
    all
}

fn key_definition(key: &KeyItem) -> Json {
    let mut all = json!(KeyProperties::from(key));
    all["id"] = json!(key.id);
    all["previous_until"] = json!(key.previous_until_micros.map(timestamp));
    all["revoked_at"] = json!(key.revoked_at_micros.map(timestamp));
    all["revoked_by"] = json!(key.revoked_by);
    all
}

fn without_absent(all: Json) -> Map<String, Json> {
    let Json::Object(mut all) = all else { return Map::new() };
    all.retain(|_, value| !value.is_null() && *value != "");
    all
}

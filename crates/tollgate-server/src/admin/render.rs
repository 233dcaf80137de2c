//! Items as they are written: in answers, in exports, in what a change would do. Never with anything that a key is checked
//! against.

use serde_json::{Map, Value as Json, json};
use tollgate_stores::sql::{AccountLimits, BlockItem, Item, ItemKind, KeyItem, QuotaItem, UserEndpointLimit};

/// The name that a list of a kind has in paths, answers and exports.
pub(crate) const fn plural(kind: ItemKind) -> &'static str {
    match kind {
        ItemKind::Rule => "rules",
        ItemKind::Tier => "tiers",
        ItemKind::Quota => "quotas",
        ItemKind::Key => "keys",
        ItemKind::Block => "blocks",
        ItemKind::Limit => "limits",
    }
}

/// An item as it was written; what is absent stays absent.
pub(crate) fn written(item: &Item) -> Map<String, Json> {
    match item {
        Item::Rule(rule) => named(&rule.name, None, &rule.body),
        Item::Tier(tier) => {
            named(&tier.name, Some(&tier.description).filter(|text| !text.is_empty()), &tier.body)
        }
        Item::Quota(quota) => written_quota(quota),
        Item::Key(key) => written_key(key),
        Item::Block(block) => written_block(block),
        Item::Limit(limit) => written_limit(limit),
    }
}

fn named(name: &str, description: Option<&String>, body: &Map<String, Json>) -> Map<String, Json> {
    let mut all = Map::new();
    put(&mut all, "name", Some(name));
    put(&mut all, "description", description.map(String::as_str));
    all.extend(body.iter().map(|(key, value)| (key.clone(), value.clone())));
    all
}

fn written_quota(quota: &QuotaItem) -> Map<String, Json> {
    let mut all = Map::new();
    put(&mut all, "user_id", Some(&*quota.user));
    put(&mut all, "tier", quota.tier.as_deref());
    put_limits(&mut all, &quota.limits);
    all
}

fn written_key(key: &KeyItem) -> Map<String, Json> {
    let mut all = Map::new();
    put(&mut all, "id", Some(&*key.id));
    put(&mut all, "name", Some(&*key.name));
    put(&mut all, "user_id", key.user.as_deref());
    put(&mut all, "tenant", key.tenant.as_deref());
    put(&mut all, "tier", key.tier.as_deref());
    put(&mut all, "scopes", Some(json!(key.scopes)));
    put_limits(&mut all, &key.limits);
    put(&mut all, "expires_at", key.expires_at_micros.map(instant));
    put(&mut all, "previous_until", key.previous_until_micros.map(instant));
    put(&mut all, "revoked_at", key.revoked_at_micros.map(instant));
    put(&mut all, "revoked_by", key.revoked_by.as_deref());
    all
}

fn written_block(block: &BlockItem) -> Map<String, Json> {
    let mut all = Map::new();
    put(&mut all, "client", Some(client(block)));
    put(&mut all, "reason", Some(&*block.reason).filter(|reason| !reason.is_empty()));
    put(&mut all, "until", block.until_micros.map(instant));
    all
}

fn written_limit(limit: &UserEndpointLimit) -> Map<String, Json> {
    let mut all = Map::new();
    put(&mut all, "user_id", Some(&*limit.user));
    put(&mut all, "endpoint", Some(&*limit.endpoint));
    put(&mut all, "limit", Some(limit.requests));
    put(&mut all, "window_seconds", Some(limit.window_micros.div_ceil(1_000_000)));
    put(&mut all, "strategy", Some(&*limit.algorithm));
    put(&mut all, "burst_capacity", limit.burst);
    all
}

fn put_limits(all: &mut Map<String, Json>, limits: &AccountLimits) {
    put(all, "requests_per_second", limits.requests_per_second);
    put(all, "requests_per_hour", limits.requests_per_hour);
    put(all, "requests_per_day", limits.requests_per_day);
    put(all, "burst", limits.burst);
}

pub(crate) fn put(all: &mut Map<String, Json>, key: &str, value: Option<impl Into<Json>>) {
    if let Some(value) = value {
        all.insert(key.to_owned(), value.into());
    }
}

/// Whom a block is about, as it is written.
pub(crate) fn client(block: &BlockItem) -> String {
    format!("{}:{}", block.kind.as_str(), block.subject)
}

/// An instant in RFC 3339, to the microsecond where it has any: what is written is read again as the same.
pub(crate) fn instant(micros: u64) -> String {
    let micros = i64::try_from(micros).unwrap_or(i64::MAX);
    jiff::Timestamp::from_microsecond(micros).map_or_else(|_| String::new(), |instant| instant.to_string())
}

//! Items as JSON. Nothing here contains a secret or its hash.

use serde::Serialize;
use serde_json::{Map, Value as Json, json};
use tollgate_stores::sql::{
    AccountLimits, BlockItem, Item, ItemKind, KeyItem, QuotaItem, StoredItem, UserEndpointLimit,
};
use utoipa::ToSchema;

/// Version and origin of an item in the database.
#[derive(Serialize, ToSchema)]
pub(crate) struct Revision {
    /// Configuration version of the last change.
    version: u64,
    /// Caller that created the item.
    created_by: String,
    /// Time of creation, RFC 3339.
    created_at: String,
    /// Time of the last change, RFC 3339.
    updated_at: String,
}

impl Revision {
    pub(crate) fn of(stored: &StoredItem) -> Self {
        Revision {
            version: stored.version,
            created_by: stored.created_by.clone(),
            created_at: timestamp(stored.created_at_micros),
            updated_at: timestamp(stored.updated_at_micros),
        }
    }
}

/// Where a rule or tier is defined.
#[derive(Default, Serialize, ToSchema)]
pub(crate) struct SourceRevision {
    /// `file`, `database`, or `built-in` for the rule that applies if none is configured.
    source: &'static str,
    /// Configuration version of the last change; null unless the source is `database`.
    version: Option<u64>,
    /// Caller that created the item.
    created_by: Option<String>,
    /// Time of creation, RFC 3339.
    created_at: Option<String>,
    /// Time of the last change, RFC 3339.
    updated_at: Option<String>,
}

impl SourceRevision {
    /// Of an item that the settings file defines, or that is built in.
    pub(crate) fn file(source: &'static str) -> Self {
        SourceRevision { source, version: None, created_by: None, created_at: None, updated_at: None }
    }

    pub(crate) fn database(stored: &StoredItem) -> Self {
        let Revision { version, created_by, created_at, updated_at } = Revision::of(stored);
        SourceRevision {
            source: "database",
            version: Some(version),
            created_by: Some(created_by),
            created_at: Some(created_at),
            updated_at: Some(updated_at),
        }
    }
}

/// The name of a kind in paths, lists and exports.
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

/// An item as a request body would define it, without absent fields.
pub(crate) fn definition(item: &Item) -> Map<String, Json> {
    match item {
        Item::Rule(rule) => named(&rule.name, "", &rule.body),
        Item::Tier(tier) => named(&tier.name, &tier.description, &tier.body),
        Item::Quota(quota) => quota_definition(quota),
        Item::Key(key) => key_definition(key),
        Item::Block(block) => block_definition(block),
        Item::Limit(limit) => limit_definition(limit),
    }
}

fn named(name: &str, description: &str, body: &Map<String, Json>) -> Map<String, Json> {
    let mut all = body.clone();
    put(&mut all, "name", Some(name));
    put(&mut all, "description", Some(description).filter(|text| !text.is_empty()));
    all
}

fn quota_definition(quota: &QuotaItem) -> Map<String, Json> {
    let mut all = Map::new();
    put(&mut all, "user_id", Some(&*quota.user));
    put(&mut all, "tier", quota.tier.as_deref());
    put_limits(&mut all, &quota.limits);
    all
}

fn key_definition(key: &KeyItem) -> Map<String, Json> {
    let mut all = Map::new();
    put(&mut all, "id", Some(&*key.id));
    put(&mut all, "name", Some(&*key.name));
    put(&mut all, "user_id", key.user.as_deref());
    put(&mut all, "tenant", key.tenant.as_deref());
    put(&mut all, "tier", key.tier.as_deref());
    put(&mut all, "scopes", Some(json!(key.scopes)));
    put_limits(&mut all, &key.limits);
    put(&mut all, "expires_at", key.expires_at_micros.map(timestamp));
    put(&mut all, "previous_until", key.previous_until_micros.map(timestamp));
    put(&mut all, "revoked_at", key.revoked_at_micros.map(timestamp));
    put(&mut all, "revoked_by", key.revoked_by.as_deref());
    all
}

fn block_definition(block: &BlockItem) -> Map<String, Json> {
    let mut all = Map::new();
    put(&mut all, "client", Some(client(block)));
    put(&mut all, "reason", Some(&*block.reason).filter(|reason| !reason.is_empty()));
    put(&mut all, "until", block.until_micros.map(timestamp));
    all
}

fn limit_definition(limit: &UserEndpointLimit) -> Map<String, Json> {
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

/// Adds a field, unless it is absent.
pub(crate) fn put(all: &mut Map<String, Json>, key: &str, value: Option<impl Into<Json>>) {
    if let Some(value) = value {
        all.insert(key.to_owned(), value.into());
    }
}

/// The client of a block: `user:alice`.
pub(crate) fn client(block: &BlockItem) -> String {
    format!("{}:{}", block.kind.as_str(), block.subject)
}

/// A time in RFC 3339, exact to the microsecond.
pub(crate) fn timestamp(micros: u64) -> String {
    let micros = i64::try_from(micros).unwrap_or(i64::MAX);
    jiff::Timestamp::from_microsecond(micros).map_or_else(|_| String::new(), |instant| instant.to_string())
}

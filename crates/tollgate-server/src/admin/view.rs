//! Items as answers show them.

use serde::Serialize;
use serde_json::{Map, Value as Json};
use tollgate_stores::sql::{Item, ItemKind, StoredItem};

use super::{blocks, keys, quotas, render, rules, tiers};
use crate::http::Call;
use crate::http::error::ApiError;

/// Items of one kind, each as its answer. What is known of them beside what was written is looked up for all at once.
pub(crate) async fn items(call: &Call, stored: Vec<StoredItem>) -> Result<Vec<Json>, ApiError> {
    let Some(first) = stored.first() else { return Ok(Vec::new()) };
    match first.item.id().kind() {
        ItemKind::Rule => Ok(stored.iter().map(rules::show).collect()),
        ItemKind::Tier => Ok(stored.iter().map(tiers::show).collect()),
        ItemKind::Quota => quotas::show(call, &stored).await,
        ItemKind::Key => keys::show(call, &stored).await,
        ItemKind::Block => Ok(stored.iter().map(|stored| blocks::show(stored, call.app.now())).collect()),
        ItemKind::Limit => Ok(stored.iter().map(|stored| Json::Object(with_origin(stored))).collect()),
    }
}

/// An item that was just written. That it was must be told, whether or not its totals can be had.
pub(crate) async fn written(call: &Call, stored: &StoredItem) -> Json {
    match items(call, vec![stored.clone()]).await {
        Ok(mut shown) => shown.pop().unwrap_or_default(),
        Err(_) => match &stored.item {
            Item::Quota(quota) => quotas::show_one(call, stored, &quota.user, None),
            Item::Key(key) => keys::show_one(stored, key, None, call.app.now()),
            _ => Json::Object(with_origin(stored)),
        },
    }
}

/// An item as it was written, and where it is from.
pub(crate) fn with_origin(stored: &StoredItem) -> Map<String, Json> {
    let mut all = render::written(&stored.item);
    put_origin(&mut all, stored);
    all
}

/// Where an item is from.
pub(crate) fn put_origin(all: &mut Map<String, Json>, stored: &StoredItem) {
    render::put(all, "version", Some(stored.version));
    render::put(all, "created_by", Some(&*stored.created_by));
    render::put(all, "created_at", Some(render::instant(stored.created_at_micros)));
    render::put(all, "updated_at", Some(render::instant(stored.updated_at_micros)));
}

/// The fields that are always there, null where there is nothing to tell.
pub(crate) fn or_null(all: &mut Map<String, Json>, fields: &[&str]) {
    for field in fields {
        all.entry(*field).or_insert(Json::Null);
    }
}

/// One page of a list, by the name of its kind.
pub(crate) fn page(kind: ItemKind, items: Vec<Json>, next: Option<String>) -> impl Serialize {
    let mut all = Map::new();
    all.insert(render::plural(kind).to_owned(), Json::Array(items));
    all.insert("next".to_owned(), next.map_or(Json::Null, Json::String));
    Json::Object(all)
}

/// The item as what it must be, if it is that.
pub(crate) fn key_of(stored: &StoredItem) -> Option<&tollgate_stores::sql::KeyItem> {
    match &stored.item {
        Item::Key(key) => Some(key),
        _ => None,
    }
}

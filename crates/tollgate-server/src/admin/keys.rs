//! `/v1/admin/keys`: API keys. A secret is shown once, when the key is created or rotated.
//!
//! Ids and secrets are generated, so `POST` and `PUT` have handlers of their own. `PUT` changes an existing key only.

use std::collections::HashMap;

use http::{HeaderValue, StatusCode, header};
use hyper::body::Incoming;
use serde::Serialize;
use tollgate_stores::sql::{
    AccountLimits, Item, ItemEdit, ItemId, ItemKind, ItemWrite, KeyItem, KeyUsage, Precondition, StoredItem,
};
use utoipa::ToSchema;

use super::body::RequestBody;
use super::change::{self, Applied};
use super::crud::{self, AdminResource, Operations};
use super::list_query::{self, ListFilter};
use super::parse::{self, KeyFields};
use super::schema::KeyInput;
use super::view::{self, Revision};
use super::{dry_run, normalize, preconditions};
use crate::http::error::{ApiError, Code};
use crate::http::{Call, Response};

/// Attempts to update a key while others change it at the same time.
const ATTEMPTS_MAX: usize = 5;

/// An API key.
#[derive(Serialize, ToSchema)]
pub(crate) struct KeyView {
    /// The id: the public part of the key.
    id: String,
    /// The complete key; only in the response that creates or rotates it.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    /// A display name.
    name: String,
    /// User that the holder counts as.
    user_id: Option<String>,
    /// Tenant of the key.
    tenant: Option<String>,
    /// Tier of the holder.
    tier: Option<String>,
    /// What the holder may do in this API.
    scopes: Vec<String>,
    /// Requests per second; overrides the rules.
    requests_per_second: Option<u32>,
    /// Requests per hour; overrides the rules.
    requests_per_hour: Option<u32>,
    /// Requests per day; overrides the rules.
    requests_per_day: Option<u32>,
    /// Bucket capacity of these limits.
    burst: Option<u32>,
    /// Expiry, RFC 3339; null if the key does not expire.
    expires_at: Option<String>,
    /// `active`, `expired` or `revoked`.
    status: &'static str,
    /// End of the overlap in which the previous secret is accepted, RFC 3339.
    previous_until: Option<String>,
    /// Time of revocation, RFC 3339.
    revoked_at: Option<String>,
    /// Caller that revoked the key.
    revoked_by: Option<String>,
    /// Time of the last recorded use, RFC 3339; written with a delay.
    last_used_at: Option<String>,
    /// Number of recorded uses.
    requests_total: u64,
    #[serde(flatten)]
    revision: Revision,
}

pub(crate) struct Keys;

impl AdminResource for Keys {
    const KIND: ItemKind = ItemKind::Key;
    const ID_FIELD: &'static str = "id";
    const FILTERS: &'static [ListFilter] = &[
        list_query::PREFIX,
        list_query::USER_ID,
        list_query::TENANT,
        list_query::TIER,
        list_query::ACTIVE_KEYS,
    ];
    const OPERATIONS: Operations = Operations {
        noun: "key",
        id: "Id of the key, not the key itself.",
        list: "Lists keys by id.",
        create: "Creates a key. The response is the only one that contains it.",
        read: "Returns a key without its secret.",
        put: "Replaces the properties of a key. Its secret and a revocation remain.",
        delete: "Deletes a key and its usage totals. The audit trail keeps its history.",
        create_conflict: "`auth.key_secret` of this node differs from that of the other nodes.",
        put_creates: false,
    };

    type Item = KeyItem;
    type Input = KeyInput;
    type View = KeyView;
    type Usage = HashMap<String, KeyUsage>;

    fn parse_id(text: String) -> Result<ItemId, ApiError> {
        let id = ItemId::Key(text);
        // No key has such an id, and some databases reject it.
        let is_possible = matches!(&id, ItemId::Key(text) if text.len() <= 64 && !text.contains('\0'));
        if is_possible { Ok(id) } else { Err(change::not_found(&id, None)) }
    }

    fn item(item: &Item) -> Option<&KeyItem> {
        if let Item::Key(key) = item { Some(key) } else { None }
    }

    async fn usage(call: &Call, stored: &[StoredItem]) -> Result<Self::Usage, ApiError> {
        let ids: Vec<&str> =
            stored.iter().filter_map(|stored| Self::item(&stored.item)).map(|key| &*key.id).collect();
        let usage = change::database(call)?.keys_usage(&ids).await?;
        Ok(usage.into_iter().map(|usage| (usage.id.clone(), usage)).collect())
    }

    fn view(call: &Call, stored: &StoredItem, key: &KeyItem, usage: &Self::Usage) -> KeyView {
        let now = call.app.now().as_micros();
        let usage = usage.get(&key.id);
        let previous_until = key.previous_until_micros.filter(|until| *until > now);
        KeyView {
            id: key.id.clone(),
            key: None,
            name: key.name.clone(),
            user_id: key.user.clone(),
            tenant: key.tenant.clone(),
            tier: key.tier.clone(),
            scopes: key.scopes.clone(),
            requests_per_second: key.limits.requests_per_second,
            requests_per_hour: key.limits.requests_per_hour,
            requests_per_day: key.limits.requests_per_day,
            burst: key.limits.burst,
            expires_at: key.expires_at_micros.map(view::timestamp),
            status: status(key, now),
            previous_until: previous_until.map(view::timestamp),
            revoked_at: key.revoked_at_micros.map(view::timestamp),
            revoked_by: key.revoked_by.clone(),
            last_used_at: usage.map(|usage| view::timestamp(usage.last_used_at_micros)),
            requests_total: usage.map_or(0, |usage| usage.requests),
            revision: Revision::of(stored),
        }
    }
}

fn status(key: &KeyItem, now: u64) -> &'static str {
    match key.expires_at_micros {
        _ if key.revoked_at_micros.is_some() => "revoked",
        Some(expiry) if expiry <= now => "expired",
        _ => "active",
    }
}

/// `POST /v1/admin/keys`
pub(crate) async fn create(call: Call, body: Incoming) -> Result<Response, ApiError> {
    let body = RequestBody::read(&call, body).await?;
    let fields = body.parse(|fields, _| parse::key(fields, call.app.now(), true))?;
    let config_sync = call.app.config_sync();
    let secret = config_sync.new_key()?;
    let key = new_key(secret.id(), config_sync.secret().verifier(secret.reveal()), fields);
    let write = ItemWrite::Put(normalize::item(&call, Item::Key(key))?);
    let edit = ItemEdit { write, precondition: Precondition::Absent };
    if dry_run::parse(&call)? {
        return dry_run::respond(&call, &[edit], change::version_differs).await;
    }
    // Two ids of 80 random bits do not collide in practice; if they do, nothing is created.
    let applied = change::apply(&call, &[edit], change::version_differs).await?;
    secret_response(&call, &applied, secret.id(), secret.reveal(), StatusCode::CREATED).await
}

/// `PUT /v1/admin/keys/{id}`
pub(crate) async fn put(call: Call, body: Incoming) -> Result<Response, ApiError> {
    let id = crud::path_id::<Keys>(&call)?;
    let body = RequestBody::read(&call, body).await?;
    let fields = body.parse(|fields, _| parse::key(fields, call.app.now(), false))?;
    match update(&call, &id, |key| Ok(with_fields(key, fields.clone()))).await? {
        Updated::DryRun(response) => Ok(response),
        Updated::Applied(applied) => crud::written::<Keys>(&call, &applied, &id, StatusCode::OK).await,
    }
}

fn new_key(id: &str, hash: [u8; 32], fields: KeyFields) -> KeyItem {
    let key = KeyItem {
        id: id.to_owned(),
        hash,
        previous_hash: None,
        previous_until_micros: None,
        name: String::new(),
        user: None,
        tenant: None,
        tier: None,
        scopes: Vec::new(),
        limits: AccountLimits::default(),
        expires_at_micros: None,
        revoked_at_micros: None,
        revoked_by: None,
    };
    with_fields(key, fields)
}

fn with_fields(key: KeyItem, fields: KeyFields) -> KeyItem {
    KeyItem {
        name: fields.name,
        user: fields.user,
        tenant: fields.tenant,
        tier: fields.tier,
        scopes: fields.scopes,
        limits: fields.limits,
        expires_at_micros: fields.expires_at_micros,
        ..key
    }
}

/// The result of [`update`].
pub(crate) enum Updated {
    DryRun(Response),
    Applied(Applied),
}

/// Replaces a key by `next(key)`. Retries if the key changes meanwhile, unless the request has an `If-Match`.
pub(crate) async fn update(
    call: &Call,
    id: &ItemId,
    mut next: impl FnMut(KeyItem) -> Result<KeyItem, ApiError>,
) -> Result<Updated, ApiError> {
    let precondition = preconditions::parse(&call.parts.headers)?;
    let is_dry_run = dry_run::parse(call)?;
    let mut attempt = 1;
    loop {
        let stored = change::database(call)?.get(id).await?;
        let found = stored.as_ref().map(|stored| stored.version);
        // `If-None-Match: *` asks for a new key, which only POST creates.
        if precondition == Precondition::Absent || !precondition.holds(found) {
            return Err(change::version_differs(id, found));
        }
        let stored = stored.ok_or_else(|| change::not_found(id, None))?;
        let key = Keys::item(&stored.item).ok_or_else(|| change::not_found(id, None))?;
        let write = ItemWrite::Put(normalize::item(call, Item::Key(next(key.clone())?))?);
        let edit = ItemEdit { write, precondition: Precondition::Version(stored.version) };
        if is_dry_run {
            return dry_run::respond(call, &[edit], change::version_differs).await.map(Updated::DryRun);
        }
        match change::apply(call, &[edit], change::version_differs).await {
            Err(error) if error.code() == Code::PreconditionFailed && attempt < ATTEMPTS_MAX => attempt += 1,
            result => return result.map(Updated::Applied),
        }
    }
}

/// The key with its secret. The secret cannot be read later, so nothing after the write may fail.
pub(crate) async fn secret_response(
    call: &Call,
    applied: &Applied,
    id: &str,
    secret: &str,
    status: StatusCode,
) -> Result<Response, ApiError> {
    let stored = applied.stored(call, &ItemId::Key(id.to_owned())).await?;
    let view = crud::written_view::<Keys>(call, &stored).await;
    let view = view.map(|view| KeyView { key: Some(secret.to_owned()), ..view });
    let mut response = crud::item_response(&stored, &view, status);
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

#[cfg(test)]
mod tests;

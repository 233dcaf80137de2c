//! `/v1/admin/keys`: API keys. A secret is shown once, when the key is created or rotated.
//!
//! Ids and secrets are generated, so `POST` and `PUT` have handlers of their own. `PUT` changes an existing key only. `POST` can
//! also import a key of another system.

use std::collections::HashMap;

use http::{HeaderValue, StatusCode, header};
use hyper::body::Incoming;
use serde::Serialize;
use tollgate_stores::sql::{
    Item, ItemEdit, ItemId, ItemKind, ItemWrite, KeyItem, KeyUsage, Precondition, StoredItem,
};
use utoipa::ToSchema;

use super::body::RequestBody;
use super::change::{self, Applied};
use super::crud::{self, AdminResource, Operations};
use super::list_query::{self, ListFilter};
use super::parse;
use super::view::{self, Revision};
use super::{dry_run, preconditions};
use crate::http::error::{ApiError, Code};
use crate::http::{Call, Response};

/// Attempts to update a key while others change it at the same time.
const ATTEMPTS_MAX: usize = 5;

/// The properties of an API key.
#[derive(Serialize, ToSchema)]
pub(crate) struct KeyProperties {
    /// A display name.
    name: String,
    /// User that the holder counts as.
    user_id: Option<String>,
    /// Tenant of the key. A caller with this key can act for this tenant only.
    tenant: Option<String>,
    /// Tier of the holder.
    tier: Option<String>,
    /// What the holder may do in this API: `check`, `read`, `config`, `reset`, `override`, `admin`.
    scopes: Option<Vec<String>>,
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
}

impl From<&KeyItem> for KeyProperties {
    fn from(key: &KeyItem) -> Self {
        KeyProperties {
            name: key.name.clone(),
            user_id: key.user.clone(),
            tenant: key.tenant.clone(),
            tier: key.tier.clone(),
            scopes: Some(key.scopes.clone()),
            requests_per_second: key.limits.requests_per_second,
            requests_per_hour: key.limits.requests_per_hour,
            requests_per_day: key.limits.requests_per_day,
            burst: key.limits.burst,
            expires_at: key.expires_at_micros.map(view::timestamp),
        }
    }
}

/// An API key to create or replace.
#[derive(ToSchema)]
#[expect(dead_code, reason = "describes what the parser accepts")]
pub(crate) struct KeyInput {
    #[serde(flatten)]
    properties: KeyProperties,
    /// Expiry from now: `"90d"`.
    expires_in: Option<String>,
    /// `POST` only: a key of another system, 16 to 256 characters, to be imported instead of generating one.
    #[schema(min_length = 16, max_length = 256, pattern = "^[!-~]+$")]
    key: Option<String>,
    /// `POST` only: the SHA-256 of such a key, as 64 hexadecimal digits.
    #[schema(pattern = "^[0-9A-Fa-f]{64}$")]
    key_sha256: Option<String>,
}

/// An API key.
#[derive(Serialize, ToSchema)]
pub(crate) struct KeyView {
    /// The id: the public part of the key.
    id: String,
    /// The complete key; only in the response that creates or rotates it.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    /// Warnings about a change; only in responses to writes, which add it to the view.
    #[serde(skip_serializing_if = "Option::is_none")]
    warnings: Option<Vec<String>>,
    #[serde(flatten)]
    properties: KeyProperties,
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
        list_query::EXPIRES_BEFORE,
    ];
    const OPERATIONS: Operations = Operations {
        noun: "key",
        id: "Id of the key, not the key itself.",
        create: "Creates a key, and returns it: no other response contains it. With `key` or `key_sha256`, imports a key of \
                 another system.",
        put: "Replaces the properties of a key. Its secret and a revocation remain.",
        delete: "Deletes a key and its usage totals. The audit trail keeps its history.",
        create_conflict: "The key was imported before, or `auth.key_secret` of this node differs from that of the other nodes.",
        put_creates: false,
    };

    type Input = KeyInput;
    type View = KeyView;
    type Usage = HashMap<String, KeyUsage>;

    fn parse_id(text: &str, _: Option<&str>) -> Result<ItemId, ApiError> {
        let id = ItemId::Key(text.to_owned());
        // No key has such an id, and some databases reject it.
        if text.len() > 64 || text.contains('\0') { Err(change::not_found(&id, None)) } else { Ok(id) }
    }

    async fn usage(call: &Call, stored: &[StoredItem]) -> Result<Self::Usage, ApiError> {
        let ids: Vec<String> = stored.iter().map(|stored| stored.item.id().to_string()).collect();
        let ids: Vec<&str> = ids.iter().map(|id| &**id).collect();
        let usage = change::database(call)?.keys_usage(&ids).await?;
        Ok(usage.into_iter().map(|usage| (usage.id.clone(), usage)).collect())
    }

    fn view(call: &Call, stored: &StoredItem, usage: &Self::Usage) -> Option<KeyView> {
        let Item::Key(key) = &stored.item else { return None };
        let now = call.app.now().as_micros();
        let usage = usage.get(&key.id);
        let previous_until = key.previous_until_micros.filter(|until| *until > now);
        Some(KeyView {
            id: key.id.clone(),
            key: None,
            warnings: None,
            properties: key.into(),
            status: status(key, now),
            previous_until: previous_until.map(view::timestamp),
            revoked_at: key.revoked_at_micros.map(view::timestamp),
            revoked_by: key.revoked_by.clone(),
            last_used_at: usage.map(|usage| view::timestamp(usage.last_used_at_micros)),
            requests_total: usage.map_or(0, |usage| usage.requests),
            revision: Revision::of(stored),
        })
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
    let (fields, existing) = body.parse(|fields, _| {
        let existing = parse::existing_key(fields);
        Some((parse::key(fields, call.app.now(), true)?, existing))
    })?;
    if let Some(sha256) = existing {
        return import(&call, fields, &sha256).await;
    }
    let config_sync = call.app.config_sync();
    let secret = config_sync.new_key()?;
    let key = KeyItem {
        id: secret.id().to_owned(),
        hash: config_sync.secret().verifier(secret.reveal()),
        ..fields
    };
    let write = ItemWrite::Put(change::normalized(&call, Item::Key(key))?);
    let edit = ItemEdit { write, precondition: Precondition::Absent };
    if dry_run::parse(&call)? {
        return dry_run::respond(&call, &[edit], change::version_differs).await;
    }
    // Two ids of 80 random bits do not collide in practice; if they do, nothing is created.
    let applied = change::apply(&call, &[edit], change::version_differs).await?;
    secret_response(&call, &applied, secret.id(), secret.reveal(), StatusCode::CREATED).await
}

/// Creates the account of a key of another system. The response does not repeat the key.
async fn import(call: &Call, fields: KeyItem, sha256: &[u8; 32]) -> Result<Response, ApiError> {
    let imported = call.app.config_sync().import_key(sha256)?;
    let id = ItemId::Key(imported.id.clone());
    let key = KeyItem { id: imported.id, hash: imported.verifier, ..fields };
    let write = ItemWrite::Put(change::normalized(call, Item::Key(key))?);
    let edit = ItemEdit { write, precondition: Precondition::Absent };
    if dry_run::parse(call)? {
        return dry_run::respond(call, &[edit], already_imported).await;
    }
    let applied = change::apply(call, &[edit], already_imported).await?;
    crud::written::<Keys>(call, &applied, &id, StatusCode::CREATED).await
}

fn already_imported(id: &ItemId, _: Option<u64>) -> ApiError {
    ApiError::new(Code::Conflict, format!("this key was imported before, as key {:?}", id.to_string()))
}

/// `PUT /v1/admin/keys/{id}`
pub(crate) async fn put(call: Call, body: Incoming) -> Result<Response, ApiError> {
    let id = crud::path_id::<Keys>(&call)?;
    let body = RequestBody::read(&call, body).await?;
    let fields = body.parse(|fields, _| parse::key(fields, call.app.now(), false))?;
    let replaced = |key: KeyItem| {
        Ok(KeyItem {
            id: key.id,
            hash: key.hash,
            previous_hash: key.previous_hash,
            previous_until_micros: key.previous_until_micros,
            revoked_at_micros: key.revoked_at_micros,
            revoked_by: key.revoked_by,
            ..fields.clone()
        })
    };
    match update(&call, &id, replaced).await? {
        Updated::DryRun(response) => Ok(response),
        Updated::Applied(applied) => crud::written::<Keys>(&call, &applied, &id, StatusCode::OK).await,
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
        let Item::Key(key) = stored.item else { return Err(change::not_found(id, None)) };
        let write = ItemWrite::Put(change::normalized(call, Item::Key(next(key)?))?);
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
    let mut response = crud::item_response(applied, &stored, &view, status);
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

#[cfg(test)]
mod tests;

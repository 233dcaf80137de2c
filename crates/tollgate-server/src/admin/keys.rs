//! `/v1/admin/keys`: API keys. Their secrets are shown once, when they are made, and nowhere else.

use std::collections::HashMap;

use http::StatusCode;
use hyper::body::Incoming;
use serde::Deserialize;
use serde_json::Value as Json;
use tollgate::Timestamp;
use tollgate::identity::{NormalForm, Normalization};
use tollgate_stores::sql::{
    AccountLimits, Item, ItemEdit, ItemFilter, ItemId, ItemKind, ItemWrite, KeyItem, KeyUsage, Precondition,
    StoredItem,
};
use utoipa::{IntoParams, ToSchema};

use super::body::Sent;
use super::change::{self, ChangeQuery, DryRunAnswer, ITEM_BYTES_MAX, Made};
use super::page::Page;
use super::parse::KeyFacts;
use super::{parse, preconditions, render, require_text, view};
use crate::config::sync;
use crate::http::error::{ApiError, Code, ErrorEnvelope};
use crate::http::response;
use crate::http::{Call, Response};

/// How often a change is tried again that somebody else came between.
const ATTEMPTS: usize = 5;

/// Which keys.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct KeysQuery {
    /// How many, 1 to 1000; 100 if absent.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000)]
    limit: Option<String>,
    /// Behind those of an earlier answer: its `next`.
    after: Option<String>,
    /// OverrideKey ids begin so.
    prefix: Option<String>,
    /// Those of this user.
    user_id: Option<String>,
    /// Those of this tenant.
    tenant: Option<String>,
    /// Those of this tier.
    tier: Option<String>,
    /// `true` for those alone that are neither revoked nor expired.
    #[param(value_type = Option<bool>)]
    active: Option<String>,
}

/// What is to be known of a key.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it describes what the reader takes")]
pub(crate) struct KeyWritten {
    /// What people call it.
    name: String,
    /// OverrideKey it is: its holder counts as this user.
    user_id: Option<String>,
    /// The organisation it belongs to. A caller with such a key asks for that organisation alone.
    tenant: Option<String>,
    /// The plan of its holder.
    tier: Option<String>,
    /// What its holder may ask of tollgate itself: `check`, `read`, `config`, `reset`, `override`, `admin`.
    scopes: Option<Vec<String>>,
    /// Requests in a second, in place of what the rules say.
    requests_per_second: Option<u32>,
    /// Requests in an hour.
    requests_per_hour: Option<u32>,
    /// Requests in a day.
    requests_per_day: Option<u32>,
    /// What may come at once.
    burst: Option<u32>,
    /// When it ends, in RFC 3339.
    expires_at: Option<String>,
    /// When it ends, from now: `"90d"`.
    expires_in: Option<String>,
}

/// What is known of a key.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it describes an answer that is made of what was written")]
pub(crate) struct KeyAnswer {
    /// The part of it that may be shown.
    id: String,
    /// The whole key. LogThrottle once, when it is made or rotated.
    key: Option<String>,
    /// What people call it.
    name: String,
    /// OverrideKey it is.
    user_id: Option<String>,
    /// The organisation it belongs to.
    tenant: Option<String>,
    /// The plan of its holder.
    tier: Option<String>,
    /// What its holder may ask of tollgate itself.
    scopes: Vec<String>,
    /// Requests in a second.
    requests_per_second: Option<u32>,
    /// Requests in an hour.
    requests_per_hour: Option<u32>,
    /// Requests in a day.
    requests_per_day: Option<u32>,
    /// What may come at once.
    burst: Option<u32>,
    /// When it ends; null if it does not by itself.
    expires_at: Option<String>,
    /// `active`, `expired` or `revoked`.
    status: String,
    /// Until when the secret before this one is good.
    previous_until: Option<String>,
    /// When it was revoked.
    revoked_at: Option<String>,
    /// By whom.
    revoked_by: Option<String>,
    /// When it was used last, as far as that is written down yet.
    last_used_at: Option<String>,
    /// How often it was used.
    requests_total: u64,
    /// The version that changed it last.
    version: u64,
    /// Who made it.
    created_by: String,
    /// When it was made.
    created_at: String,
    /// When it was changed last.
    updated_at: String,
}

/// A page of keys, in the order of their ids.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it describes an answer that is made of what was written")]
pub(crate) struct KeysAnswer {
    keys: Vec<KeyAnswer>,
    /// The cursor of the next page; null if this is the last.
    next: Option<String>,
}

/// The keys there are, in the order of their ids.
#[utoipa::path(
    get, path = "/v1/admin/keys", params(KeysQuery),
    responses(
        (status = 200, description = "A page of keys", body = KeysAnswer),
        (status = 400, description = "A parameter is wrong", body = ErrorEnvelope<'_>),
        (status = 503, description = "The database cannot be reached", body = ErrorEnvelope<'_>),
    )
)]
pub(crate) async fn list(call: Call) -> Result<Response, ApiError> {
    let query: KeysQuery = call.query()?;
    let page = Page::of(ItemKind::Key, query.limit.as_deref(), query.after.as_deref())?;
    let filter = query.filter(call.app.now(), call.app.limiter().rules().normalization())?;
    let stored = call.database()?.list(ItemKind::Key, &filter, page.after.as_ref(), page.asked()).await;
    let (stored, next) = page.cut(stored.map_err(|error| sync::failed(&error))?, |stored| stored.item.id());
    let keys = show(&call, &stored).await?;
    Ok(response::json(StatusCode::OK, &view::page(ItemKind::Key, keys, next)))
}

/// Makes a key. The answer is the only one that tells it.
#[utoipa::path(
    post, path = "/v1/admin/keys", request_body = KeyWritten, params(ChangeQuery),
    responses(
        (status = 201, description = "Made; `key` is told this once", body = KeyAnswer),
        (status = 200, description = "With dry_run: what would change", body = DryRunAnswer),
        (status = 400, description = "A field is wrong; nothing was changed", body = ErrorEnvelope<'_>),
        (status = 409, description = "This node's auth.key_secret is not that of the others", body = ErrorEnvelope<'_>),
        (status = 503, description = "The database cannot be reached", body = ErrorEnvelope<'_>),
    )
)]
pub(crate) async fn create(call: Call, body: Incoming) -> Result<Response, ApiError> {
    let body = call.json_body(body, ITEM_BYTES_MAX).await?;
    let now = call.app.now();
    let facts = Sent::json(&body)?.read(|fields, _| parse::key(fields, now, true))?;
    let catalog = call.app.config_sync();
    let new = catalog.new_key()?;
    let key = facts.into_key(new.id(), catalog.key_hash(new.reveal()));
    let edit = ItemEdit {
        write: ItemWrite::Put(call.normalize_item(Item::Key(key))?),
        precondition: Precondition::Absent,
    };
    if call.is_dry_run()? {
        return change::dry_run(&call, &[edit], change::differs).await;
    }
    // Eighty random bits: should they ever meet, nothing is made and it can be sent again.
    let made = change::make(&call, &[edit], change::differs).await?;
    answer_with_secret(&call, &made, new.id(), new.reveal(), StatusCode::CREATED).await
}

/// One key.
#[utoipa::path(
    get, path = "/v1/admin/keys/{id}",
    params(("id" = String, Path, description = "The id of the key, not the key")),
    responses(
        (status = 200, description = "The key without its secret; ETag says which version", body = KeyAnswer),
        (status = 304, description = "It is still the version that If-None-Match says"),
        (status = 404, description = "No such key", body = ErrorEnvelope<'_>),
        (status = 503, description = "The database cannot be reached", body = ErrorEnvelope<'_>),
    )
)]
pub(crate) async fn read(call: Call) -> Result<Response, ApiError> {
    let id = id_of(&call)?;
    change::read(&call, &id).await
}

/// Says what is to be known of a key, in place of what was. Its secret stays, and so does a revocation.
#[utoipa::path(
    put, path = "/v1/admin/keys/{id}", request_body = KeyWritten,
    params(("id" = String, Path, description = "The id of the key"), ChangeQuery),
    responses(
        (status = 200, description = "Replaced, or with dry_run what would change", body = KeyAnswer),
        (status = 400, description = "A field is wrong; nothing was changed", body = ErrorEnvelope<'_>),
        (status = 404, description = "No such key: they are made with POST", body = ErrorEnvelope<'_>),
        (status = 412, description = "It is not what If-Match says", body = ErrorEnvelope<'_>),
        (status = 503, description = "The database cannot be reached", body = ErrorEnvelope<'_>),
    )
)]
pub(crate) async fn put(call: Call, body: Incoming) -> Result<Response, ApiError> {
    let body = call.json_body(body, ITEM_BYTES_MAX).await?;
    let now = call.app.now();
    let sent = Sent::json(&body)?;
    let facts = || sent.read(|fields, _| parse::key(fields, now, false));
    facts()?;
    let id = id_of(&call)?;
    let told = update(&call, &id, |key| Ok(facts()?.put_into(key))).await?;
    match told {
        Updated::Looked(answer) => Ok(answer),
        Updated::Made(made) => change::answer_with(&call, &id, &made, StatusCode::OK).await,
    }
}

/// Removes a key altogether: nothing tells any more that there was one, but the audit trail.
#[utoipa::path(
    delete, path = "/v1/admin/keys/{id}",
    params(("id" = String, Path, description = "The id of the key"), ChangeQuery),
    responses(
        (status = 204, description = "Removed"),
        (status = 200, description = "With dry_run: what would change", body = DryRunAnswer),
        (status = 404, description = "No such key", body = ErrorEnvelope<'_>),
        (status = 412, description = "It is not what If-Match says", body = ErrorEnvelope<'_>),
        (status = 503, description = "The database cannot be reached", body = ErrorEnvelope<'_>),
    )
)]
pub(crate) async fn delete(call: Call) -> Result<Response, ApiError> {
    let id = id_of(&call)?;
    change::delete(&call, id).await
}

/// The id as given, which keys stored under other `[identity]` settings may have, and normalized.
fn id_forms(id: Option<&str>, form: NormalForm) -> Vec<String> {
    let Some(id) = id else { return Vec::new() };
    let mut forms = vec![id.to_owned(), form.normalize(id).into_owned()];
    forms.dedup();
    forms
}

impl KeysQuery {
    fn filter(&self, now: Timestamp, normalization: &Normalization) -> Result<ItemFilter, ApiError> {
        let texts = [
            ("prefix", &self.prefix),
            ("user_id", &self.user_id),
            ("tenant", &self.tenant),
            ("tier", &self.tier),
        ];
        for (field, text) in texts {
            require_text(field, text.as_deref())?;
        }
        let active = change::flag("active", self.active.as_deref())?;
        Ok(ItemFilter {
            prefix: self.prefix.clone(),
            users: id_forms(self.user_id.as_deref(), normalization.ids.user),
            tenants: id_forms(self.tenant.as_deref(), normalization.ids.tenant),
            tier: self.tier.clone(),
            active_at_micros: active.then(|| now.as_micros()),
            ..ItemFilter::default()
        })
    }
}

impl KeyFacts {
    fn into_key(self, id: &str, hash: [u8; 32]) -> KeyItem {
        self.put_into(KeyItem {
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
        })
    }

    fn put_into(self, key: KeyItem) -> KeyItem {
        KeyItem {
            name: self.name,
            user: self.user,
            tenant: self.tenant,
            tier: self.tier,
            scopes: self.scopes,
            limits: self.limits,
            expires_at_micros: self.expires_at_micros,
            ..key
        }
    }
}

/// The key that the path names.
pub(crate) fn id_of(call: &Call) -> Result<ItemId, ApiError> {
    let id = call.path_param("id")?;
    // No id of ours is like that, and some databases could not even be asked.
    if id.len() > 64 || id.contains('\0') {
        return Err(change::missing(&ItemId::Key(id), None));
    }
    Ok(ItemId::Key(id))
}

/// What became of a key.
pub(crate) enum Updated {
    /// Nothing: with `dry_run` this is the answer.
    Looked(Response),
    /// The change.
    Made(Made),
}

/// Makes of a key what `next` makes of it.
pub(crate) async fn update(
    call: &Call,
    id: &ItemId,
    mut next: impl FnMut(KeyItem) -> Result<KeyItem, ApiError>,
) -> Result<Updated, ApiError> {
    let wanted = preconditions::expected(&call.parts.headers)?;
    let is_dry_run = call.is_dry_run()?;
    let mut attempt = 1;
    loop {
        let stored = call.database()?.get(id).await.map_err(|error| sync::failed(&error))?;
        let found = stored.as_ref().map(|stored| stored.version);
        let is_wanted = match wanted {
            Precondition::Version(version) => found == Some(version),
            Precondition::Absent => false,
            Precondition::Present => found.is_some(),
            Precondition::None => true,
        };
        if !is_wanted {
            return Err(change::differs(id, found));
        }
        let stored = stored.ok_or_else(|| change::missing(id, None))?;
        let Some(key) = view::key_of(&stored) else { return Err(change::missing(id, None)) };
        let write = ItemWrite::Put(call.normalize_item(Item::Key(next(key.clone())?))?);
        let edit = ItemEdit { write, precondition: Precondition::Version(stored.version) };
        if is_dry_run {
            return change::dry_run(call, &[edit], change::differs).await.map(Updated::Looked);
        }
        match change::make(call, &[edit], change::differs).await {
            // Somebody came between, and the caller did not say of which version this was.
            Err(error) if error.code() == Code::PreconditionFailed && attempt < ATTEMPTS => attempt += 1,
            made => return made.map(Updated::Made),
        }
    }
}

/// The key as it is now, with its secret. The secret is told whatever happens: nobody could ever ask for it again.
pub(crate) async fn answer_with_secret(
    call: &Call,
    made: &Made,
    id: &str,
    secret: &str,
    status: StatusCode,
) -> Result<Response, ApiError> {
    let stored = made.stored(call, &ItemId::Key(id.to_owned())).await?;
    let mut shown = view::written(call, &stored).await;
    shown["key"] = secret.into();
    let mut response = change::answer_of(&stored, &shown, status);
    response.headers_mut().insert(http::header::CACHE_CONTROL, http::HeaderValue::from_static("no-store"));
    Ok(response)
}

/// Keys as their answers.
pub(crate) async fn show(call: &Call, stored: &[StoredItem]) -> Result<Vec<Json>, ApiError> {
    let ids: Vec<&str> = stored.iter().filter_map(view::key_of).map(|key| &*key.id).collect();
    let usage = call.database()?.keys_usage(&ids).await.map_err(|error| sync::failed(&error))?;
    let usage: HashMap<&str, &KeyUsage> = usage.iter().map(|usage| (&*usage.id, usage)).collect();
    let now = call.app.now();
    let with_key = stored.iter().filter_map(|stored| Some((stored, view::key_of(stored)?)));
    Ok(with_key.map(|(stored, key)| show_one(stored, key, usage.get(&*key.id).copied(), now)).collect())
}

pub(crate) fn show_one(stored: &StoredItem, key: &KeyItem, usage: Option<&KeyUsage>, now: Timestamp) -> Json {
    let mut all = view::with_origin(stored);
    let expired = key.expires_at_micros.is_some_and(|end| end <= now.as_micros());
    let status = match key.revoked_at_micros {
        Some(_) => "revoked",
        None if expired => "expired",
        None => "active",
    };
    render::put(&mut all, "status", Some(status));
    if key.previous_until_micros.is_some_and(|until| until <= now.as_micros()) {
        all.remove("previous_until");
    }
    let last = usage.map(|usage| render::instant(usage.last_used_at_micros));
    render::put(&mut all, "last_used_at", last);
    render::put(&mut all, "requests_total", Some(usage.map_or(0, |usage| usage.requests)));
    view::or_null(&mut all, &["user_id", "tenant", "tier", "requests_per_second", "requests_per_hour"]);
    view::or_null(&mut all, &["requests_per_day", "burst", "expires_at", "previous_until", "revoked_at"]);
    view::or_null(&mut all, &["revoked_by", "last_used_at"]);
    Json::Object(all)
}

#[cfg(test)]
mod tests;

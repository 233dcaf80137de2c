//! `/v1/admin/blocks`: who is refused outright.

use http::StatusCode;
use hyper::body::Incoming;
use serde::Deserialize;
use serde_json::Value as Json;
use tollgate::Timestamp;
use tollgate_stores::sql::{BlockKind, Item, ItemFilter, ItemId, ItemKind, StoredItem};
use utoipa::{IntoParams, ToSchema};

use super::body::Sent;
use super::change::{self, ChangeQuery, DryRunAnswer, ITEM_BYTES_MAX};
use super::page::Page;
use super::{parse, render, require_text, view};
use crate::config::sync;
use crate::http::error::{ApiError, Code, ErrorEnvelope};
use crate::http::response;
use crate::http::{Call, Response};

/// Which blocks.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct BlocksQuery {
    /// How many, 1 to 1000; 100 if absent.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000)]
    limit: Option<String>,
    /// Behind those of an earlier answer: its `next`.
    after: Option<String>,
    /// OverrideKey names, behind the kind, begin so.
    prefix: Option<String>,
    /// `user`, `api_key`, `tenant`, `login` or `ip`.
    kind: Option<String>,
    /// `true` for those alone that are in force.
    #[param(value_type = Option<bool>)]
    active: Option<String>,
}

/// Who is to be refused.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it describes what the reader takes")]
pub(crate) struct BlockWritten {
    /// `user:alice`, `api_key:<id>`, `tenant:acme`, `login:bob` or `ip:192.0.2.0/24`; may be left out where the path names it.
    client: Option<String>,
    /// Why; the client is told. At most 1024 bytes.
    reason: Option<String>,
    /// Until when, in RFC 3339; for good if neither this nor `for` is given.
    until: Option<String>,
    /// For how long, `"1h"`.
    r#for: Option<String>,
}

/// Who is to be refused, in an import.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it describes what the reader takes")]
pub(crate) struct BlockImported {
    /// As of one block alone.
    client: String,
    /// As of one block alone.
    reason: Option<String>,
    /// Until when, in RFC 3339; for good if not given. A length of time would begin anew with each import.
    until: Option<String>,
}

/// Who is refused.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it describes an answer that is made of what was written")]
pub(crate) struct BlockAnswer {
    /// The client, `user:alice`.
    client: String,
    /// Why.
    reason: String,
    /// Until when; null if for good.
    until: Option<String>,
    /// Whether it is in force now.
    active: bool,
    /// The version that changed it last.
    version: u64,
    /// Who made it.
    created_by: String,
    /// When it was made.
    created_at: String,
    /// When it was changed last.
    updated_at: String,
}

/// A page of blocks, in the order of kind and name.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it describes an answer that is made of what was written")]
pub(crate) struct BlocksAnswer {
    blocks: Vec<BlockAnswer>,
    /// The cursor of the next page; null if this is the last.
    next: Option<String>,
}

/// Who is refused, in force or over.
#[utoipa::path(
    get, path = "/v1/admin/blocks", params(BlocksQuery),
    responses(
        (status = 200, description = "A page of blocks", body = BlocksAnswer),
        (status = 400, description = "A parameter is wrong", body = ErrorEnvelope<'_>),
        (status = 503, description = "The database cannot be reached", body = ErrorEnvelope<'_>),
    )
)]
pub(crate) async fn list(call: Call) -> Result<Response, ApiError> {
    let query: BlocksQuery = call.query()?;
    let page = Page::of(ItemKind::Block, query.limit.as_deref(), query.after.as_deref())?;
    let now = call.app.now();
    let filter = query.filter(now)?;
    let stored = call.database()?.list(ItemKind::Block, &filter, page.after.as_ref(), page.asked()).await;
    let (stored, next) = page.cut(stored.map_err(|error| sync::failed(&error))?, |stored| stored.item.id());
    let blocks = stored.iter().map(|stored| show(stored, now)).collect();
    Ok(response::json(StatusCode::OK, &view::page(ItemKind::Block, blocks, next)))
}

/// Refuses a client from now on.
#[utoipa::path(
    post, path = "/v1/admin/blocks", request_body = BlockWritten, params(ChangeQuery),
    responses(
        (status = 201, description = "In force; Location and ETag say where and which version", body = BlockAnswer),
        (status = 200, description = "With dry_run: what would change", body = DryRunAnswer),
        (status = 400, description = "A field is wrong; nothing was changed", body = ErrorEnvelope<'_>),
        (status = 409, description = "The client is blocked already", body = ErrorEnvelope<'_>),
        (status = 503, description = "The database cannot be reached", body = ErrorEnvelope<'_>),
    )
)]
pub(crate) async fn create(call: Call, body: Incoming) -> Result<Response, ApiError> {
    let body = call.json_body(body, ITEM_BYTES_MAX).await?;
    let now = call.app.now();
    let item = Sent::json(&body)?.read(|fields, _| parse::block(fields, now))?;
    change::create(&call, item).await
}

/// One block.
#[utoipa::path(
    get, path = "/v1/admin/blocks/{client}",
    params(("client" = String, Path, description = "The client, user:alice")),
    responses(
        (status = 200, description = "The block; ETag says which version", body = BlockAnswer),
        (status = 400, description = "That is no client", body = ErrorEnvelope<'_>),
        (status = 304, description = "It is still the version that If-None-Match says"),
        (status = 404, description = "The client is not blocked", body = ErrorEnvelope<'_>),
        (status = 503, description = "The database cannot be reached", body = ErrorEnvelope<'_>),
    )
)]
pub(crate) async fn read(call: Call) -> Result<Response, ApiError> {
    let id = id_of(&call)?;
    change::read(&call, &id).await
}

/// Refuses a client from now on, in place of an earlier block.
#[utoipa::path(
    put, path = "/v1/admin/blocks/{client}", request_body = BlockWritten,
    params(("client" = String, Path, description = "The client, user:alice"), ChangeQuery),
    responses(
        (status = 200, description = "Replaced, or with dry_run what would change", body = BlockAnswer),
        (status = 201, description = "Added", body = BlockAnswer),
        (status = 400, description = "A field is wrong; nothing was changed", body = ErrorEnvelope<'_>),
        (status = 412, description = "It is not what If-Match or If-None-Match says", body = ErrorEnvelope<'_>),
        (status = 503, description = "The database cannot be reached", body = ErrorEnvelope<'_>),
    )
)]
pub(crate) async fn put(call: Call, body: Incoming) -> Result<Response, ApiError> {
    let body = call.json_body(body, ITEM_BYTES_MAX).await?;
    let (id, now) = (id_of(&call)?, call.app.now());
    let item = Sent::json(&body)?.named_if_absent("client", &id.to_string());
    let item = item.read(|fields, _| parse::block(fields, now))?;
    // An address has several spellings, and so may a name: what they stand for is compared.
    if call.normalize_id(&item.id()) != call.normalize_id(&id) {
        return Err(ApiError::field(Code::InvalidInput, "client", "is not what the path says"));
    }
    change::put(&call, item).await
}

/// Lets a client in again.
#[utoipa::path(
    delete, path = "/v1/admin/blocks/{client}",
    params(("client" = String, Path, description = "The client, user:alice"), ChangeQuery),
    responses(
        (status = 204, description = "Removed"),
        (status = 200, description = "With dry_run: what would change", body = DryRunAnswer),
        (status = 400, description = "That is no client", body = ErrorEnvelope<'_>),
        (status = 404, description = "The client is not blocked", body = ErrorEnvelope<'_>),
        (status = 412, description = "It is not what If-Match says", body = ErrorEnvelope<'_>),
        (status = 503, description = "The database cannot be reached", body = ErrorEnvelope<'_>),
    )
)]
pub(crate) async fn delete(call: Call) -> Result<Response, ApiError> {
    let id = id_of(&call)?;
    change::delete(&call, id).await
}

impl BlocksQuery {
    fn filter(&self, now: Timestamp) -> Result<ItemFilter, ApiError> {
        let kind = self.kind.as_deref();
        let wrong = || {
            let names = BlockKind::ALL.map(BlockKind::as_str).join(", ");
            ApiError::field(Code::InvalidInput, "kind", format!("must be one of {names}"))
        };
        let block_kind = kind.map(|kind| BlockKind::parse(kind).ok_or_else(wrong)).transpose()?;
        require_text("prefix", self.prefix.as_deref())?;
        let active = change::flag("active", self.active.as_deref())?;
        let active_at_micros = active.then(|| now.as_micros());
        Ok(ItemFilter { prefix: self.prefix.clone(), block_kind, active_at_micros, ..ItemFilter::default() })
    }
}

fn id_of(call: &Call) -> Result<ItemId, ApiError> {
    let written = call.path_param("client")?;
    let wrong = |reason: String| ApiError::field(Code::InvalidInput, "client", reason);
    let (kind, subject) = parse::parse_client(&written).map_err(wrong)?;
    Ok(ItemId::Block { kind, subject })
}

/// A block as its answer.
pub(crate) fn show(stored: &StoredItem, now: Timestamp) -> Json {
    let mut all = view::with_origin(stored);
    let until = match &stored.item {
        Item::Block(block) => block.until_micros,
        _ => None,
    };
    render::put(&mut all, "active", Some(until.is_none_or(|until| now.as_micros() < until)));
    all.entry("reason").or_insert_with(|| "".into());
    view::or_null(&mut all, &["until"]);
    Json::Object(all)
}

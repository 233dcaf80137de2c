//! `GET /v1/admin/export`: the configuration in the database except API keys, in the form that import accepts.
//!
//! A response is built in memory, so its size is bounded; larger configurations are read in pages. An export shows one
//! version: it is read again if the configuration changes meanwhile.

use http::{HeaderValue, StatusCode, header};
use serde::Deserialize;
use serde_json::{Map, Value as Json};
use tokio::sync::Semaphore;
use tollgate_stores::sql::{Database, DatabaseError, ItemFilter, ItemId, ItemKind};
use utoipa::{IntoParams, ToSchema};

use super::blocks::BlockProperties;
use super::definition::definition;
use super::quotas::QuotaInput;
use super::schema::{RuleInput, TierInput};
use super::{change, page, preconditions, view};
use crate::api::config::ConfigBody;
use crate::http::error::{ApiError, Code, ErrorEnvelope};
use crate::http::{Call, Response, response};

/// Kinds that can be exported and imported, in the order of an export. Keys cannot: their secrets are not stored.
pub(crate) const KINDS: [ItemKind; 5] =
    [ItemKind::Rule, ItemKind::Tier, ItemKind::Quota, ItemKind::Block, ItemKind::Limit];

/// The most items of one response or one import.
pub(crate) const ITEMS_MAX: usize = 10_000;
/// The most bytes of items in one response, approximately.
const BYTES_MAX: usize = 16 << 20;
const ITEMS_PER_QUERY: u32 = 200;
/// Attempts to read one version while the configuration changes.
const ATTEMPTS_MAX: usize = 5;

/// Bounds the memory of concurrent exports.
static EXPORTS: Semaphore = Semaphore::const_new(2);

/// Selects what is exported.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ExportQuery {
    /// `json` (default) or `toml`.
    format: Option<String>,
    /// Comma-separated list of `rules`, `tiers`, `quotas`, `blocks`, `limits`; default all.
    kinds: Option<String>,
    /// Items per page, 1 to 10000. Without it the response has all items, or the request fails with 409.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 10_000)]
    limit: Option<String>,
    /// Continues after an earlier page: its `next`.
    after: Option<String>,
}

/// The configuration in the database, except API keys.
#[derive(ToSchema)]
#[expect(dead_code, reason = "describes a response that is built of JSON values")]
pub(crate) struct ExportResponse {
    /// Configuration version of the export.
    version: u64,
    #[serde(flatten)]
    items: ItemSections,
    /// Cursor of the next page; null if this is the last.
    next: Option<String>,
}

/// The items of an export or import by kind.
#[derive(ToSchema)]
#[expect(dead_code, reason = "describes JSON that is built and parsed as values")]
pub(crate) struct ItemSections {
    /// Rules, with the keys of `[[rules]]`.
    rules: Option<Vec<RuleInput>>,
    /// Tiers, with the keys of `[[tiers]]`.
    tiers: Option<Vec<TierInput>>,
    /// Quotas of users.
    quotas: Option<Vec<QuotaInput>>,
    /// Blocked clients.
    blocks: Option<Vec<BlockProperties>>,
    /// Limits of single users on single endpoints, as in `PUT /v1/rate-limit/config`.
    limits: Option<Vec<ConfigBody<'static>>>,
}

/// Exports the configuration in the database, except API keys. Items of the settings file are not included.
#[utoipa::path(
    get, path = "/v1/admin/export", params(ExportQuery),
    responses(
        (status = 200, description = "The configuration, as import accepts it. `ETag` is its version.",
         content((ExportResponse = "application/json"), (String = "application/toml")),
         headers(("ETag" = String, description = "Version of the configuration."))),
        (status = 409, description = "The configuration is too large for one response; use `limit`.", body = ErrorEnvelope<'_>),
        (status = 503, description = "The database is unreachable, or too many exports are running.", body = ErrorEnvelope<'_>),
    )
)]
pub(crate) async fn export(call: Call) -> Result<Response, ApiError> {
    let query: ExportQuery = call.query()?;
    let is_toml = query.is_toml()?;
    let selection = Selection {
        kinds: parse_kinds(query.kinds.as_deref())?,
        limit: query.limit()?,
        after: query.after()?,
    };
    let busy = |_| ApiError::new(Code::ServiceUnavailable, "too many exports are running; retry");
    let _permit = EXPORTS.try_acquire().map_err(busy)?;
    let database = change::database(&call)?;
    for _ in 0..ATTEMPTS_MAX {
        let version = database.version().await?;
        let items = selection.read(&database).await?;
        if database.version().await? == version {
            return Ok(respond(version, items, is_toml));
        }
    }
    Err(ApiError::new(Code::ServiceUnavailable, "the configuration changed during the export; retry"))
}

impl ExportQuery {
    fn is_toml(&self) -> Result<bool, ApiError> {
        match self.format.as_deref() {
            None | Some("json") => Ok(false),
            Some("toml") => Ok(true),
            Some(_) => Err(ApiError::field(Code::InvalidInput, "format", "must be json or toml")),
        }
    }

    fn limit(&self) -> Result<Option<usize>, ApiError> {
        let max = u32::try_from(ITEMS_MAX).unwrap_or(u32::MAX);
        let limit = self.limit.as_deref().map(|text| page::parse_limit_to(max, text)).transpose()?;
        Ok(limit.and_then(|limit| usize::try_from(limit).ok()))
    }

    fn after(&self) -> Result<Option<ItemId>, ApiError> {
        self.after.as_deref().map(|text| page::parse_cursor(&KINDS, text)).transpose()
    }
}

/// The kinds in a query, in the order of an export; all if it has none.
pub(crate) fn parse_kinds(text: Option<&str>) -> Result<Vec<ItemKind>, ApiError> {
    let Some(text) = text else { return Ok(KINDS.to_vec()) };
    let names: Vec<&str> = text.split(',').map(str::trim).collect();
    let known = |name: &&str| KINDS.iter().any(|kind| view::plural(*kind) == *name);
    if let Some(unknown) = names.iter().find(|name| !known(name)) {
        let all = KINDS.map(view::plural).join(", ");
        let reason = match *unknown {
            "keys" => "keys cannot be exported or imported: their secrets are not stored".to_owned(),
            unknown => format!("{unknown:?} is not one of {all}"),
        };
        return Err(ApiError::field(Code::InvalidInput, "kinds", reason));
    }
    Ok(KINDS.into_iter().filter(|kind| names.contains(&view::plural(*kind))).collect())
}

/// What an export contains.
struct Selection {
    kinds: Vec<ItemKind>,
    limit: Option<usize>,
    after: Option<ItemId>,
}

/// The items that were read.
#[derive(Default)]
struct Items {
    /// The definitions by kind.
    sections: Vec<(ItemKind, Vec<Json>)>,
    count: usize,
    bytes: usize,
    last: Option<ItemId>,
    has_more: bool,
}

impl Selection {
    async fn read(&self, database: &Database) -> Result<Items, ApiError> {
        let sections = self.kinds.iter().map(|kind| (*kind, Vec::new())).collect();
        let mut items = Items { sections, ..Items::default() };
        for kind in &self.kinds {
            // Kinds before that of the cursor were on earlier pages.
            match &self.after {
                Some(after) if position(*kind) < position(after.kind()) => continue,
                Some(after) if after.kind() == *kind => items.last = Some(after.clone()),
                _ => {}
            }
            self.read_kind(database, *kind, &mut items).await?;
            if items.has_more {
                break;
            }
        }
        if items.has_more && self.limit.is_none() {
            let message = format!(
                "the configuration exceeds the {ITEMS_MAX} items or {} MB of one response; \
                 read it in pages with limit=1000, then after=<next>",
                BYTES_MAX >> 20
            );
            return Err(ApiError::new(Code::Conflict, message));
        }
        Ok(items)
    }

    async fn read_kind(
        &self,
        database: &Database,
        kind: ItemKind,
        items: &mut Items,
    ) -> Result<(), DatabaseError> {
        let limit = self.limit.unwrap_or(ITEMS_MAX);
        loop {
            let after = items.last.clone().filter(|last| last.kind() == kind);
            let read = database.list(kind, &ItemFilter::default(), after.as_ref(), ITEMS_PER_QUERY).await?;
            let is_last = read.len() < usize::try_from(ITEMS_PER_QUERY).unwrap_or(usize::MAX);
            for stored in &read {
                if items.count == limit || items.bytes > BYTES_MAX {
                    items.has_more = true;
                    return Ok(());
                }
                items.push(stored.item.id(), definition(&stored.item));
            }
            if is_last {
                return Ok(());
            }
        }
    }
}

impl Items {
    fn push(&mut self, id: ItemId, definition: Map<String, Json>) {
        self.bytes += serde_json::to_vec(&definition).map_or(0, |bytes| bytes.len());
        self.count += 1;
        if let Some((_, section)) = self.sections.iter_mut().find(|(kind, _)| *kind == id.kind()) {
            section.push(Json::Object(definition));
        }
        self.last = Some(id);
    }
}

fn position(kind: ItemKind) -> usize {
    KINDS.iter().position(|known| *known == kind).unwrap_or(KINDS.len())
}

fn respond(version: u64, items: Items, is_toml: bool) -> Response {
    let next = items.last.filter(|_| items.has_more).map(|last| page::cursor(&last));
    let respond = if is_toml { toml } else { json };
    let mut response = respond(version, items.sections, next);
    response.headers_mut().insert(header::ETAG, preconditions::etag(version));
    response
}

fn json(version: u64, sections: Vec<(ItemKind, Vec<Json>)>, next: Option<String>) -> Response {
    let mut all = Map::new();
    view::put(&mut all, "version", Some(version));
    for (kind, items) in sections {
        view::put(&mut all, view::plural(kind), Some(Json::Array(items)));
    }
    all.insert("next".to_owned(), next.map_or(Json::Null, Json::String));
    response::json(StatusCode::OK, &all)
}

/// Like [`json`], but the version is a comment and empty sections are omitted, so that rules and tiers can be copied to a
/// settings file.
fn toml(version: u64, sections: Vec<(ItemKind, Vec<Json>)>, next: Option<String>) -> Response {
    let mut all = Map::new();
    view::put(&mut all, "next", next);
    for (kind, items) in sections.into_iter().filter(|(_, items)| !items.is_empty()) {
        view::put(&mut all, view::plural(kind), Some(Json::Array(items)));
    }
    // Definitions contain no null, which TOML does not have.
    let text = toml::to_string(&all).unwrap_or_default();
    let body = bytes::Bytes::from(format!("# tollgate configuration, version {version}\n{text}"));
    let mut response = Response::new(body.into());
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/toml"));
    response
}

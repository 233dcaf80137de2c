//! `GET /v1/admin/export`: everything that people configure but keys, in a form that `import` takes.
//!
//! An answer is made in memory, so it has a bound: whoever has more asks for pages. It is of one version: if the
//! configuration changes while it is read, it is read again.

use http::{HeaderValue, StatusCode, header};
use serde::Deserialize;
use serde_json::{Map, Value as Json};
use tokio::sync::Semaphore;
use tollgate_stores::sql::{Database, DatabaseError, ItemFilter, ItemId, ItemKind};
use utoipa::{IntoParams, ToSchema};

use super::{page, preconditions, render};
use crate::api::config::ConfigBody;
use crate::config::sync;
use crate::http::error::{ApiError, Code, ErrorEnvelope};
use crate::http::response;
use crate::http::{Call, Response};

/// What can be exported and imported, in the order of an export. A key could not be used: its secret is not there to be told.
pub(crate) const KINDS: [ItemKind; 5] =
    [ItemKind::Rule, ItemKind::Tier, ItemKind::Quota, ItemKind::Block, ItemKind::Limit];

/// As many items as one answer or one import has at most,
pub(crate) const ITEMS_MAX: usize = 10_000;
/// and as many bytes of them, more or less.
const BYTES_MAX: usize = 16 << 20;
/// Items that are read at once.
const READ_AT_ONCE: u32 = 200;
/// How often it is read again if the configuration changes meanwhile.
const ATTEMPTS: usize = 5;

/// An answer takes memory, and so there are few at a time.
static EXPORTS: Semaphore = Semaphore::const_new(2);

/// What is exported, and how.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ExportQuery {
    /// `json`, which is the default, or `toml`.
    format: Option<String>,
    /// Some of `rules,tiers,quotas,blocks,limits`; all if absent.
    kinds: Option<String>,
    /// At most so many items, 1 to 10000, and `next` if there are more. Without it all of them, or an error.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 10_000)]
    limit: Option<String>,
    /// Behind those of an earlier answer: its `next`.
    after: Option<String>,
}

/// What people configure, as they write it.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it describes an answer that is made of what was written")]
pub(crate) struct ExportAnswer {
    /// The version of the configuration that it is of.
    version: u64,
    /// Rules, with the keys of `[[rules]]`.
    rules: Option<Vec<super::rules::RuleWritten>>,
    /// Tiers, with the keys of `[[tiers]]`.
    tiers: Option<Vec<super::tiers::TierWritten>>,
    /// What is known of users.
    quotas: Option<Vec<super::quotas::QuotaWritten>>,
    /// Who is refused.
    blocks: Option<Vec<super::blocks::BlockWritten>>,
    /// Numbers of single users on single endpoints, as `PUT /v1/rate-limit/config` takes them.
    limits: Option<Vec<ConfigBody<'static>>>,
    /// The cursor of the next page; null if this is the last.
    next: Option<String>,
}

/// Everything that people configure but keys. What the file says is not in it.
#[utoipa::path(
    get, path = "/v1/admin/export", params(ExportQuery),
    responses(
        (status = 200, description = "What import takes; ETag is the version of the configuration",
         content((ExportAnswer = "application/json"), (String = "application/toml")),
         headers(("ETag" = String, description = "The version of the configuration"))),
        (status = 400, description = "A parameter is wrong", body = ErrorEnvelope<'_>),
        (status = 409, description = "There is more than one answer holds: ask for pages with limit", body = ErrorEnvelope<'_>),
        (status = 503, description = "The database cannot be reached, or others are exporting", body = ErrorEnvelope<'_>),
    )
)]
pub(crate) async fn export(call: Call) -> Result<Response, ApiError> {
    let query: ExportQuery = call.query()?;
    let is_toml = query.is_toml()?;
    let asked = Asked { kinds: kinds(query.kinds.as_deref())?, limit: query.limit()?, after: query.after()? };
    let busy = |_| ApiError::new(Code::ServiceUnavailable, "others are exporting right now: send it again");
    let _turn = EXPORTS.try_acquire().map_err(busy)?;
    let database = call.database()?;
    for _ in 0..ATTEMPTS {
        let version = database.version().await.map_err(|error| sync::failed(&error))?;
        let gathered = asked.gather(&database).await?;
        if database.version().await.map_err(|error| sync::failed(&error))? == version {
            return Ok(respond(&asked, version, gathered, is_toml));
        }
    }
    Err(ApiError::new(Code::ServiceUnavailable, "the configuration changes all the time: send it again"))
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
        let Some(text) = self.limit.as_deref() else { return Ok(None) };
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let limit = if digits { text.parse().ok() } else { None };
        let limit = limit.filter(|limit| (1..=ITEMS_MAX).contains(limit));
        let reason = format!("must be a whole number from 1 to {ITEMS_MAX}");
        limit.map(Some).ok_or_else(|| ApiError::field(Code::InvalidInput, "limit", reason))
    }

    fn after(&self) -> Result<Option<ItemId>, ApiError> {
        self.after.as_deref().map(|text| page::read_cursor_of_any(&KINDS, text)).transpose()
    }
}

/// The kinds that a query names, in the order of an export; all if it names none.
pub(crate) fn kinds(text: Option<&str>) -> Result<Vec<ItemKind>, ApiError> {
    let Some(text) = text else { return Ok(KINDS.to_vec()) };
    let names: Vec<&str> = text.split(',').map(str::trim).collect();
    let known = |name: &&str| KINDS.iter().any(|kind| render::plural(*kind) == *name);
    if let Some(unknown) = names.iter().find(|name| !known(name)) {
        let all = KINDS.map(render::plural).join(", ");
        let reason = match *unknown {
            "keys" => "keys cannot be exported or imported: their secrets are not kept".to_owned(),
            unknown => format!("{unknown:?} is not one of {all}"),
        };
        return Err(ApiError::field(Code::InvalidInput, "kinds", reason));
    }
    Ok(KINDS.into_iter().filter(|kind| names.contains(&render::plural(*kind))).collect())
}

struct Asked {
    kinds: Vec<ItemKind>,
    limit: Option<usize>,
    after: Option<ItemId>,
}

#[derive(Default)]
struct Gathered {
    items: Vec<(ItemKind, Map<String, Json>)>,
    bytes: usize,
    last: Option<ItemId>,
    /// Whether there are more.
    cut: bool,
}

impl Asked {
    async fn gather(&self, database: &Database) -> Result<Gathered, ApiError> {
        let mut gathered = Gathered::default();
        for kind in &self.kinds {
            // Kinds come in one order: those before that of the cursor were told.
            match &self.after {
                Some(after) if order(*kind) < order(after.kind()) => continue,
                Some(after) if after.kind() == *kind => gathered.last = Some(after.clone()),
                _ => {}
            }
            self.gather_kind(database, *kind, &mut gathered).await.map_err(|error| sync::failed(&error))?;
            if gathered.cut {
                break;
            }
        }
        if gathered.cut && self.limit.is_none() {
            let message = format!(
                "one answer holds {ITEMS_MAX} items or {} MB, and there are more: ask for pages with limit=1000, then after=<next>",
                BYTES_MAX >> 20
            );
            return Err(ApiError::new(Code::Conflict, message));
        }
        Ok(gathered)
    }

    async fn gather_kind(
        &self,
        database: &Database,
        kind: ItemKind,
        gathered: &mut Gathered,
    ) -> Result<(), DatabaseError> {
        let limit = self.limit.unwrap_or(ITEMS_MAX);
        loop {
            let after = gathered.last.clone().filter(|last| last.kind() == kind);
            let read = database.list(kind, &ItemFilter::default(), after.as_ref(), READ_AT_ONCE).await?;
            let is_last = read.len() < usize::try_from(READ_AT_ONCE).unwrap_or(usize::MAX);
            for stored in &read {
                if gathered.items.len() == limit || gathered.bytes > BYTES_MAX {
                    gathered.cut = true;
                    return Ok(());
                }
                gathered.push(kind, stored.item.id(), render::written(&stored.item));
            }
            if is_last {
                return Ok(());
            }
        }
    }
}

impl Gathered {
    fn push(&mut self, kind: ItemKind, id: ItemId, written: Map<String, Json>) {
        self.bytes += serde_json::to_vec(&written).map_or(0, |bytes| bytes.len());
        self.last = Some(id);
        self.items.push((kind, written));
    }
}

fn order(kind: ItemKind) -> usize {
    KINDS.iter().position(|known| *known == kind).unwrap_or(KINDS.len())
}

fn respond(asked: &Asked, version: u64, gathered: Gathered, is_toml: bool) -> Response {
    let next = gathered.last.filter(|_| gathered.cut).map(|last| page::cursor_of_any(&last));
    let mut sections: Vec<(ItemKind, Vec<Json>)> =
        asked.kinds.iter().map(|kind| (*kind, Vec::new())).collect();
    for (kind, written) in gathered.items {
        if let Some((_, items)) = sections.iter_mut().find(|(known, _)| *known == kind) {
            items.push(Json::Object(written));
        }
    }
    let mut response = if is_toml { toml(version, sections, next) } else { json(version, sections, next) };
    response.headers_mut().insert(header::ETAG, preconditions::tag(version));
    response
}

fn json(version: u64, sections: Vec<(ItemKind, Vec<Json>)>, next: Option<String>) -> Response {
    let mut all = Map::new();
    render::put(&mut all, "version", Some(version));
    for (kind, items) in sections {
        render::put(&mut all, render::plural(kind), Some(Json::Array(items)));
    }
    all.insert("next".to_owned(), next.map_or(Json::Null, Json::String));
    response::json(StatusCode::OK, &all)
}

/// The same keys; what is not there is left out, and the version is a remark, so that rules and tiers can go into a
/// settings file as they are.
fn toml(version: u64, sections: Vec<(ItemKind, Vec<Json>)>, next: Option<String>) -> Response {
    let mut all = Map::new();
    render::put(&mut all, "next", next);
    for (kind, items) in sections.into_iter().filter(|(_, items)| !items.is_empty()) {
        render::put(&mut all, render::plural(kind), Some(Json::Array(items)));
    }
    // Values of JSON without null are values of TOML.
    let text = toml::to_string(&all).unwrap_or_default();
    let body = bytes::Bytes::from(format!("# tollgate configuration, version {version}\n{text}"));
    let mut response = Response::new(http_body_util::Full::new(body));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/toml"));
    response
}

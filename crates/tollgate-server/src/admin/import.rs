//! `POST /v1/admin/import`: many items at once, all or none.

use std::collections::HashSet;

use http::{StatusCode, header};
use hyper::body::Incoming;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};
use tollgate::config::{Document, Problems, TableReader};
use tollgate_stores::sql::{
    Database, DatabaseError, Item, ItemChange, ItemEdit, ItemFilter, ItemId, ItemKind, ItemWrite,
    Precondition,
};
use utoipa::{IntoParams, ToSchema};

use super::body::Sent;
use super::change::{self, ChangeBody, Made};
use super::export::{ITEMS_MAX, KINDS, kinds};
use super::{parse, preconditions, render};
use crate::api::config::ConfigBody;
use crate::config::{normalize, sync};
use crate::http::error::{ApiError, Code, ErrorEnvelope};
use crate::http::response;
use crate::http::{Call, Response};
use crate::records::traffic_sample::Effect;

/// The largest body.
const IMPORT_BYTES_MAX: usize = 8 << 20;
/// How often it is planned again if somebody else changes the same items.
const ATTEMPTS: usize = 5;

/// What an import does.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ImportQuery {
    /// `true` changes nothing, and answers with what would change.
    #[param(value_type = Option<bool>)]
    dry_run: Option<String>,
    /// `true` removes what is not in the body, of the kinds that are imported.
    #[param(value_type = Option<bool>)]
    prune: Option<String>,
    /// Some of `rules,tiers,quotas,blocks,limits`; if absent, those that the body has.
    kinds: Option<String>,
}

/// What is to be in force: an export, or as much of it as is meant.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it describes what the readers of each kind take")]
pub(crate) struct ImportBody {
    /// As an export tells it; what it says is not looked at.
    version: Option<u64>,
    /// Rules, with the keys of `[[rules]]`.
    rules: Option<Vec<super::rules::RuleWritten>>,
    /// Tiers, with the keys of `[[tiers]]`.
    tiers: Option<Vec<super::tiers::TierWritten>>,
    /// What is known of users.
    quotas: Option<Vec<super::quotas::QuotaWritten>>,
    /// Who is refused.
    blocks: Option<Vec<super::blocks::BlockImported>>,
    /// Numbers of single users on single endpoints, as `PUT /v1/rate-limit/config` takes them.
    limits: Option<Vec<ConfigBody<'static>>>,
    /// As an export tells it; a page of one cannot prune.
    next: Option<String>,
}

/// What an import has done, or would do.
#[derive(Serialize, ToSchema)]
pub(crate) struct ImportAnswer {
    /// Whether nothing was changed because nothing was to be.
    dry_run: bool,
    /// The version of the configuration: after the import, or the one that it was tried on.
    version: u64,
    /// Items that were not there.
    created: usize,
    /// Items that were otherwise.
    updated: usize,
    /// Items that are gone.
    deleted: usize,
    /// Items that are in the body as they were.
    unchanged: usize,
    /// Every item that differs.
    changes: Vec<ChangeBody>,
    /// With `dry_run`: what it would do to the requests of the last minutes.
    effect: Option<Effect>,
}

/// Puts many items in force at once, all or none. JSON, or TOML with `Content-Type: application/toml`.
#[utoipa::path(
    post, path = "/v1/admin/import", params(ImportQuery),
    request_body(content((ImportBody = "application/json"), (String = "application/toml"))),
    responses(
        (status = 200, description = "In force, or with dry_run what would change", body = ImportAnswer),
        (status = 400, description = "Something is wrong; nothing was changed", body = ErrorEnvelope<'_>),
        (status = 409, description = "A name is in the file, too", body = ErrorEnvelope<'_>),
        (status = 412, description = "The configuration is not at the version that If-Match says", body = ErrorEnvelope<'_>),
        (status = 413, description = "More than 8 MB, 10,000 items or 10,000 removals", body = ErrorEnvelope<'_>),
        (status = 415, description = "Neither JSON nor TOML", body = ErrorEnvelope<'_>),
        (status = 503, description = "The database cannot be reached", body = ErrorEnvelope<'_>),
    )
)]
pub(crate) async fn import(call: Call, body: Incoming) -> Result<Response, ApiError> {
    let query: ImportQuery = call.query()?;
    let is_dry_run = change::flag("dry_run", query.dry_run.as_deref())?;
    let prune = change::flag("prune", query.prune.as_deref())?;
    let named = query.kinds.as_deref().map(|text| kinds(Some(text))).transpose()?;
    let expected = preconditions::expected_version(&call.parts.headers)?;
    let sent = read_body(&call, body).await?;
    let parsed = parse(&sent, named, prune, &call)?;
    parsed.refuse_limits_kept_elsewhere(&call)?;
    let mut attempt = 1;
    loop {
        let planned = plan(&call, &parsed, prune, expected).await?;
        if is_dry_run {
            let effect = change::effect(&call, &planned.differences).await?;
            return Ok(respond(&parsed, &planned.differences, planned.version, true, effect));
        }
        match change::write(&call, &call.database()?, &planned.edits(), Some(planned.version)).await {
            Ok(Made { changed, .. }) => {
                return Ok(respond(&parsed, &changed.items, changed.version, false, None));
            }
            Err(DatabaseError::VersionConflict { found }) if expected.is_some() => {
                return Err(overtaken(found, expected));
            }
            Err(DatabaseError::VersionConflict { .. }) if attempt < ATTEMPTS => attempt += 1,
            Err(error) => return Err(sync::failed(&error)),
        }
    }
}

fn overtaken(found: u64, expected: Option<u64>) -> ApiError {
    let expected = expected.unwrap_or_default();
    preconditions::failed(format!(
        "the configuration is at version {found}, not at {expected}: look at it again"
    ))
}

async fn read_body(call: &Call, body: Incoming) -> Result<Sent, ApiError> {
    let is_toml = call.has_content_type("application/toml");
    if is_toml {
        return Sent::toml(&call.body(body, IMPORT_BYTES_MAX).await?);
    }
    if !call.has_content_type("application/json") {
        let message =
            "the body must be JSON or TOML: send Content-Type: application/json or application/toml";
        return Err(ApiError::new(Code::UnsupportedMediaType, message));
    }
    Sent::json(&call.body(body, IMPORT_BYTES_MAX).await?)
}

/// An import as it was sent, checked.
struct Parsed {
    /// What is imported, and where anything may be removed.
    kinds: Vec<ItemKind>,
    items: Vec<Item>,
}

fn parse(sent: &Sent, named: Option<Vec<ItemKind>>, prune: bool, call: &Call) -> Result<Parsed, ApiError> {
    let has = |kind: &ItemKind| sent.values().contains_key(render::plural(*kind));
    let kinds = named.unwrap_or_else(|| KINDS.into_iter().filter(has).collect());
    if prune && sent.values().contains_key("next") {
        let reason = "this is a page of an export: prune would remove what is on the others";
        return Err(ApiError::field(Code::InvalidInput, "next", reason));
    }
    let mut items = sent.read(|fields, values| {
        beside_items(fields);
        Some(KINDS.iter().flat_map(|kind| section(fields, values, *kind, call)).collect::<Vec<Item>>())
    })?;
    if items.len() > ITEMS_MAX {
        let message = format!("an import has at most {ITEMS_MAX} items: send it in parts");
        return Err(ApiError::new(Code::PayloadTooLarge, message));
    }
    items.retain(|item| kinds.contains(&item.id().kind()));
    Ok(Parsed { kinds, items })
}

/// The items of one kind, each named once.
fn section(
    fields: &mut TableReader<'_, '_>,
    values: &Map<String, Json>,
    kind: ItemKind,
    call: &Call,
) -> Vec<Item> {
    let (nothing, rules) = (Map::new(), call.app.limiter().rules());
    let mut sent = values.get(render::plural(kind)).and_then(Json::as_array).into_iter().flatten();
    let mut known = HashSet::new();
    fields.list_of_tables(render::plural(kind), |one| {
        let values = sent.next().and_then(Json::as_object).unwrap_or(&nothing);
        let item = read_one(one, values, kind)?;
        let item = normalize::item(item, rules.normalization());
        let item = item.map_err(|error| one.report(error.field, error.to_string())).ok()?;
        note(one, &item, &mut known);
        Some(item)
    })
}

/// What is wrong with a file for an import, as far as the file itself can tell: what else is configured is not known.
///
/// What answers tell of items beside themselves is not taken amiss: the command line leaves it out.
///
/// # Errors
/// All of its mistakes.
pub fn check_import(document: &Document) -> Result<(), Problems> {
    let (mut problems, nothing) = (Problems::default(), Map::new());
    let mut fields = document.fields(&mut problems);
    beside_items(&mut fields);
    for kind in KINDS {
        let mut known = HashSet::new();
        let _: Vec<()> = fields.list_of_tables(render::plural(kind), |one| {
            let item = read_one(one, &nothing, kind)?;
            note(one, &item, &mut known);
            Some(())
        });
    }
    fields.finish();
    problems.0.retain(|problem| problem.reason != parse::ANSWERED);
    problems.into_result(Some(()))
}

/// What an export says of itself, and what is never in one.
fn beside_items(fields: &mut TableReader<'_, '_>) {
    fields.skip("version");
    fields.skip("next");
    let _ = fields.read("keys", |_| {
        Err::<(), String>("keys cannot be imported: their secrets are not kept anywhere".to_owned())
    });
}

fn read_one(one: &mut TableReader<'_, '_>, values: &Map<String, Json>, kind: ItemKind) -> Option<Item> {
    match kind {
        ItemKind::Rule => parse::rule(one, values),
        ItemKind::Tier => parse::tier(one, values),
        ItemKind::Quota => parse::quota(one),
        ItemKind::Block => parse::block_of_many(one),
        ItemKind::Limit => parse::limit(one),
        ItemKind::Key => None,
    }
}

/// Notes which item it is, and complains of one that was there before.
fn note(one: &mut TableReader<'_, '_>, item: &Item, known: &mut HashSet<ItemId>) {
    let id = item.id();
    let told = id.to_string();
    let key = name_key(id.kind());
    if !known.insert(id) {
        one.report(key, format!("{told:?} is given twice"));
    }
}

/// The field that names an item of a kind.
const fn name_key(kind: ItemKind) -> &'static str {
    match kind {
        ItemKind::Rule | ItemKind::Tier => "name",
        ItemKind::Quota | ItemKind::Limit => "user_id",
        ItemKind::Block => "client",
        ItemKind::Key => "id",
    }
}

impl Parsed {
    /// Where numbers of single users are kept on Redis, the database is not where they are read from.
    fn refuse_limits_kept_elsewhere(&self, call: &Call) -> Result<(), ApiError> {
        let has_limits = self.items.iter().any(|item| item.id().kind() == ItemKind::Limit);
        if has_limits && !call.app.config_sync().stores_overrides() {
            let message = "numbers of single users are kept on Redis here, not in this node's own database: \
                           set them with PUT /v1/rate-limit/config";
            return Err(ApiError::new(Code::Conflict, message));
        }
        Ok(())
    }

    async fn edits(&self, database: &Database, prune: bool) -> Result<Vec<ItemEdit>, ApiError> {
        let put =
            |item: &Item| ItemEdit { write: ItemWrite::Put(item.clone()), precondition: Precondition::None };
        let mut edits: Vec<ItemEdit> = self.items.iter().map(put).collect();
        if !prune {
            return Ok(edits);
        }
        let kept: HashSet<ItemId> = self.items.iter().map(Item::id).collect();
        for kind in &self.kinds {
            for id in superfluous(database, *kind, &kept, edits.len()).await? {
                edits.push(ItemEdit { write: ItemWrite::Delete(id), precondition: Precondition::None });
            }
        }
        Ok(edits)
    }
}

/// What is there of a kind and not in the import.
async fn superfluous(
    database: &Database,
    kind: ItemKind,
    kept: &HashSet<ItemId>,
    already: usize,
) -> Result<Vec<ItemId>, ApiError> {
    const AT_ONCE: u32 = 500;
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let page = database.list(kind, &ItemFilter::default(), after.as_ref(), AT_ONCE).await;
        let page: Vec<ItemId> =
            page.map_err(|error| sync::failed(&error))?.iter().map(|stored| stored.item.id()).collect();
        let is_last = page.len() < usize::try_from(AT_ONCE).unwrap_or(usize::MAX);
        after = page.last().cloned();
        found.extend(page.into_iter().filter(|id| !kept.contains(id)));
        if found.len() + already > 2 * ITEMS_MAX {
            let message = format!(
                "prune would remove more than {ITEMS_MAX} {}: nothing was changed",
                render::plural(kind)
            );
            return Err(ApiError::new(Code::PayloadTooLarge, message));
        }
        if is_last {
            return Ok(found);
        }
    }
}

/// What an import would do to one version of the configuration.
struct Planned {
    version: u64,
    differences: Vec<ItemChange>,
}

async fn plan(call: &Call, parsed: &Parsed, prune: bool, expected: Option<u64>) -> Result<Planned, ApiError> {
    let database = call.database()?;
    let version = database.version().await.map_err(|error| sync::failed(&error))?;
    if expected.is_some_and(|expected| expected != version) {
        return Err(overtaken(version, expected));
    }
    let edits = parsed.edits(&database, prune).await?;
    let differences = change::plan(call, &edits, change::differs).await?;
    Ok(Planned { version, differences })
}

impl Planned {
    /// Exactly what was planned, on exactly what it was planned on.
    fn edits(&self) -> Vec<ItemEdit> {
        let edit = |difference: &ItemChange| ItemEdit {
            write: match &difference.after {
                Some(item) => ItemWrite::Put(item.clone()),
                None => ItemWrite::Delete(difference.id.clone()),
            },
            precondition: difference
                .before
                .as_ref()
                .map_or(Precondition::Absent, |before| Precondition::Version(before.version)),
        };
        self.differences.iter().map(edit).collect()
    }
}

fn respond(
    parsed: &Parsed,
    differences: &[ItemChange],
    version: u64,
    dry_run: bool,
    effect: Option<Effect>,
) -> Response {
    let changes: Vec<ChangeBody> = differences.iter().map(ChangeBody::of).collect();
    let count = |action: &str| changes.iter().filter(|change| change.action == action).count();
    let (created, updated, deleted) = (count("create"), count("update"), count("delete"));
    let unchanged = parsed.items.len().saturating_sub(created + updated);
    let answer = ImportAnswer { dry_run, version, created, updated, deleted, unchanged, changes, effect };
    let mut response = response::json(StatusCode::OK, &answer);
    response.headers_mut().insert(header::ETAG, preconditions::tag(version));
    response
}

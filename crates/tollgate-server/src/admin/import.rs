//! `POST /v1/admin/import`: changes many items at once, all or none.

use std::collections::HashSet;

use http::{StatusCode, header};
use hyper::body::Incoming;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};
use tollgate::Timestamp;
use tollgate::config::{Document, Problems, TableReader, flat_rule_warnings};
use tollgate_stores::sql::{
    Database, DatabaseError, Item, ItemChange, ItemEdit, ItemFilter, ItemId, ItemKind, ItemWrite,
    Precondition,
};
use utoipa::{IntoParams, ToSchema};

use super::body::RequestBody;
use super::change::{self, Applied};
use super::crud::ParseItem;
use super::dry_run::{self, ChangeView, parse_flag};
use super::export::{ITEMS_MAX, ItemSections, KINDS, parse_kinds};
use super::{parse, preconditions, view, warnings};
use crate::config::normalize::{self, NormalizedTooLong};
use crate::http::error::{ApiError, Code, ErrorEnvelope};
use crate::http::{Call, Response, response};
use crate::records::traffic_sample::Effect;

const IMPORT_BYTES_MAX: usize = 8 << 20;
/// Attempts to import while the configuration changes.
const ATTEMPTS_MAX: usize = 5;
/// The most notes about flat names in one response.
const NOTES_MAX: usize = 20;

/// Options of an import.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ImportQuery {
    /// `true` changes nothing; the response shows what would change.
    #[param(value_type = Option<bool>)]
    dry_run: Option<String>,
    /// `true` deletes items of the imported kinds that the body does not contain.
    #[param(value_type = Option<bool>)]
    prune: Option<String>,
    /// Comma-separated list of `rules`, `tiers`, `quotas`, `blocks`, `limits`; default those in the body.
    kinds: Option<String>,
}

/// Items to create or replace: an export, or a part of one.
#[derive(ToSchema)]
#[expect(dead_code, reason = "describes what the parser accepts")]
pub(crate) struct ImportBody {
    /// Version of an export; ignored.
    version: Option<u64>,
    #[serde(flatten)]
    items: ItemSections,
    /// Cursor of an export; a page of an export cannot be imported with `prune`.
    next: Option<String>,
}

/// What an import changed, or would change.
#[derive(Serialize, ToSchema)]
pub(crate) struct ImportResponse {
    /// Whether this was a dry run.
    dry_run: bool,
    /// Configuration version after the import; of a dry run, the version that it was checked against.
    version: u64,
    /// Number of created items.
    created: usize,
    /// Number of replaced items.
    updated: usize,
    /// Number of deleted items.
    deleted: usize,
    /// Number of items in the body that were the same already.
    unchanged: usize,
    /// Every changed item.
    changes: Vec<ChangeView>,
    /// Effect on the requests of the last minutes; only of a dry run.
    effect: Option<Effect>,
    /// What may not be as meant.
    warnings: Vec<String>,
}

/// Creates and replaces many items at once, all or none. Accepts JSON, or TOML with `Content-Type: application/toml`.
#[utoipa::path(
    post, path = "/v1/admin/import", params(ImportQuery),
    request_body(content((ImportBody = "application/json"), (String = "application/toml"))),
    responses(
        (status = 200, description = "What was changed, or with `dry_run` would be.", body = ImportResponse),
        (status = 409, description = "An item is defined in the settings file.", body = ErrorEnvelope<'_>),
        (status = 412, description = "The configuration is not at the version in `If-Match`.", body = ErrorEnvelope<'_>),
        (status = 413, description = "More than 8 MB, 10,000 items or 10,000 deletions.", body = ErrorEnvelope<'_>),
        (status = 415, description = "The body is neither JSON nor TOML.", body = ErrorEnvelope<'_>),
    )
)]
pub(crate) async fn import(call: Call, body: Incoming) -> Result<Response, ApiError> {
    let query: ImportQuery = call.query()?;
    let is_dry_run = parse_flag("dry_run", query.dry_run.as_deref())?;
    let prune = parse_flag("prune", query.prune.as_deref())?;
    let kinds = query.kinds.as_deref().map(|text| parse_kinds(Some(text))).transpose()?;
    let expected = preconditions::parse_version(&call.parts.headers)?;
    let body = read_body(&call, body).await?;
    let import = Import::parse(&body, kinds, prune, &call)?;
    import.reject_limits_in_redis(&call)?;
    let mut attempt = 1;
    loop {
        let plan = plan(&call, &import, prune, expected).await?;
        if is_dry_run {
            let effect = dry_run::effect(&call, &plan.changes).await?;
            let warnings = import.warnings(warnings::of(&call, &plan.edits()));
            return Ok(respond(&import, plan.version, &plan.changes, warnings, true, effect));
        }
        match change::write(&call, &change::database(&call)?, &plan.edits(), Some(plan.version)).await {
            Ok(Applied { change, warnings, .. }) => {
                let warnings = import.warnings(warnings);
                return Ok(respond(&import, change.version, &change.items, warnings, false, None));
            }
            Err(DatabaseError::VersionConflict { found }) if expected.is_some() => {
                return Err(version_differs(found, expected));
            }
            Err(DatabaseError::VersionConflict { .. }) if attempt < ATTEMPTS_MAX => attempt += 1,
            Err(error) => return Err(error.into()),
        }
    }
}

fn version_differs(found: u64, expected: Option<u64>) -> ApiError {
    let expected = expected.unwrap_or_default();
    preconditions::failed(format!(
        "the configuration is at version {found}, not {expected}; read it again and retry"
    ))
}

async fn read_body(call: &Call, body: Incoming) -> Result<RequestBody, ApiError> {
    if call.has_content_type("application/toml") {
        return RequestBody::from_toml(&call.body(body, IMPORT_BYTES_MAX).await?);
    }
    if !call.has_content_type("application/json") {
        let message =
            "the body must be JSON or TOML: send Content-Type: application/json or application/toml";
        return Err(ApiError::new(Code::UnsupportedMediaType, message));
    }
    RequestBody::from_json(&call.body(body, IMPORT_BYTES_MAX).await?)
}

/// A parsed import.
struct Import {
    /// Kinds that are imported and, with `prune`, deleted from.
    kinds: Vec<ItemKind>,
    items: Vec<Item>,
    /// What is read otherwise than it is written.
    notes: Vec<String>,
}

/// The items of one kind. Each id may occur once.
fn parse_section(
    fields: &mut TableReader<'_, '_>,
    values: &Map<String, Json>,
    kind: ItemKind,
    normalize: impl Fn(Item) -> Result<Item, NormalizedTooLong>,
) -> Vec<Item> {
    let empty = Map::new();
    let mut written = values.get(view::plural(kind)).and_then(Json::as_array).into_iter().flatten();
    let mut known = HashSet::new();
    fields.list_of_tables(view::plural(kind), |fields| {
        let values = written.next().and_then(Json::as_object).unwrap_or(&empty);
        let item = normalize(parse_item(fields, values, kind)?);
        let item = item.map_err(|error| fields.report(error.field, error.to_string())).ok()?;
        reject_duplicate(fields, &item, &mut known);
        Some(item)
    })
}

/// Checks an import file without the configuration it is imported into. Read-only fields are ignored: the command line
/// removes them.
///
/// # Errors
/// All invalid fields.
pub fn check_import(document: &Document) -> Result<(), Problems> {
    let mut problems = Problems::default();
    let mut fields = document.fields(&mut problems);
    skip_metadata(&mut fields);
    for kind in KINDS {
        parse_section(&mut fields, &Map::new(), kind, Ok);
    }
    fields.finish();
    problems.0.retain(|problem| problem.reason != parse::READ_ONLY);
    problems.into_result(Some(()))
}

/// Skips what an export contains beside items, and rejects keys.
fn skip_metadata(fields: &mut TableReader<'_, '_>) {
    fields.skip("version");
    fields.skip("next");
    let _ = fields.read("keys", |_| {
        Err::<(), String>("keys cannot be imported: their secrets are not stored".to_owned())
    });
}

fn parse_item(fields: &mut TableReader<'_, '_>, values: &Map<String, Json>, kind: ItemKind) -> Option<Item> {
    let parse: ParseItem = match kind {
        ItemKind::Rule => parse::rule,
        ItemKind::Tier => parse::tier,
        ItemKind::Quota => parse::quota,
        ItemKind::Block => parse::imported_block,
        ItemKind::Limit => parse::limit,
        ItemKind::Key => return None,
    };
    parse(fields, values, Timestamp::default())
}

fn reject_duplicate(fields: &mut TableReader<'_, '_>, item: &Item, known: &mut HashSet<ItemId>) {
    let id = item.id();
    let field = match id.kind() {
        ItemKind::Rule | ItemKind::Tier => "name",
        ItemKind::Quota | ItemKind::Limit => "user_id",
        ItemKind::Block => "client",
        ItemKind::Key => "id",
    };
    let reason = format!("{:?} is given twice", id.to_string());
    if !known.insert(id) {
        fields.report(field, reason);
    }
}

impl Import {
    fn parse(
        body: &RequestBody,
        kinds: Option<Vec<ItemKind>>,
        prune: bool,
        call: &Call,
    ) -> Result<Self, ApiError> {
        let has = |kind: &ItemKind| body.values().contains_key(view::plural(*kind));
        let kinds = kinds.unwrap_or_else(|| KINDS.into_iter().filter(has).collect());
        if prune && body.values().contains_key("next") {
            let reason =
                "a page of an export cannot be imported with prune: items of other pages would be deleted";
            return Err(ApiError::field(Code::InvalidInput, "next", reason));
        }
        let rules = call.app.limiter().rules();
        let normalize = |item| normalize::item(item, rules.normalization());
        let mut items: Vec<Item> = body.parse(|fields, values| {
            skip_metadata(fields);
            Some(KINDS.iter().flat_map(|kind| parse_section(fields, values, *kind, normalize)).collect())
        })?;
        if items.len() > ITEMS_MAX {
            let message = format!("an import can have at most {ITEMS_MAX} items; split it");
            return Err(ApiError::new(Code::PayloadTooLarge, message));
        }
        items.retain(|item| kinds.contains(&item.id().kind()));
        let notes = flat_rule_warnings(body.document());
        let notes = notes.into_iter().map(|(rule, note)| format!("rule {rule:?} {note}")).take(NOTES_MAX);
        Ok(Import { kinds, items, notes: notes.collect() })
    }

    /// Adds the notes to the warnings about what changes.
    fn warnings(&self, mut warnings: Vec<String>) -> Vec<String> {
        warnings.extend(self.notes.iter().cloned());
        warnings
    }

    /// Limits of single users that are stored in Redis are not read from the database.
    fn reject_limits_in_redis(&self, call: &Call) -> Result<(), ApiError> {
        let has_limits = self.items.iter().any(|item| item.id().kind() == ItemKind::Limit);
        if has_limits && !call.app.config_sync().stores_overrides() {
            let message = "limits of single users are stored in Redis here, not in the database: \
                           set them with PUT /v1/rate-limit/config";
            return Err(ApiError::new(Code::Conflict, message));
        }
        Ok(())
    }

    async fn edits(&self, database: &Database, prune: bool) -> Result<Vec<ItemEdit>, ApiError> {
        let edit = |write| ItemEdit { write, precondition: Precondition::None };
        let mut edits: Vec<ItemEdit> =
            self.items.iter().map(|item| edit(ItemWrite::Put(item.clone()))).collect();
        if prune {
            let kept: HashSet<ItemId> = self.items.iter().map(Item::id).collect();
            for kind in &self.kinds {
                let surplus = find_surplus(database, *kind, &kept, edits.len()).await?;
                edits.extend(surplus.into_iter().map(|id| edit(ItemWrite::Delete(id))));
            }
        }
        Ok(edits)
    }
}

/// Items of a kind in the database that the import does not contain.
async fn find_surplus(
    database: &Database,
    kind: ItemKind,
    kept: &HashSet<ItemId>,
    edit_count: usize,
) -> Result<Vec<ItemId>, ApiError> {
    const ITEMS_PER_QUERY: u32 = 500;
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let page = database.list(kind, &ItemFilter::default(), after.as_ref(), ITEMS_PER_QUERY).await;
        let page: Vec<ItemId> = page?.iter().map(|stored| stored.item.id()).collect();
        let is_last = page.len() < usize::try_from(ITEMS_PER_QUERY).unwrap_or(usize::MAX);
        after = page.last().cloned();
        found.extend(page.into_iter().filter(|id| !kept.contains(id)));
        if found.len() + edit_count > 2 * ITEMS_MAX {
            let kind = view::plural(kind);
            let message = format!("prune would delete more than {ITEMS_MAX} {kind}; nothing was changed");
            return Err(ApiError::new(Code::PayloadTooLarge, message));
        }
        if is_last {
            return Ok(found);
        }
    }
}

/// What an import changes in one version of the configuration.
struct Plan {
    version: u64,
    changes: Vec<ItemChange>,
}

async fn plan(call: &Call, import: &Import, prune: bool, expected: Option<u64>) -> Result<Plan, ApiError> {
    let database = change::database(call)?;
    let version = database.version().await?;
    if expected.is_some_and(|expected| expected != version) {
        return Err(version_differs(version, expected));
    }
    let edits = import.edits(&database, prune).await?;
    let changes = change::plan(call, &edits, change::version_differs).await?;
    Ok(Plan { version, changes })
}

impl Plan {
    /// Edits that succeed only if every item is as planned.
    fn edits(&self) -> Vec<ItemEdit> {
        let edit = |change: &ItemChange| ItemEdit {
            write: match &change.after {
                Some(item) => ItemWrite::Put(item.clone()),
                None => ItemWrite::Delete(change.id.clone()),
            },
            precondition: change
                .before
                .as_ref()
                .map_or(Precondition::Absent, |before| Precondition::Version(before.version)),
        };
        self.changes.iter().map(edit).collect()
    }
}

fn respond(
    import: &Import,
    version: u64,
    changes: &[ItemChange],
    warnings: Vec<String>,
    dry_run: bool,
    effect: Option<Effect>,
) -> Response {
    let changes: Vec<ChangeView> = changes.iter().map(ChangeView::of).collect();
    let count = |action: &str| changes.iter().filter(|change| change.action == action).count();
    let (created, updated, deleted) = (count("create"), count("update"), count("delete"));
    let unchanged = import.items.len().saturating_sub(created + updated);
    let body =
        ImportResponse { dry_run, version, created, updated, deleted, unchanged, changes, effect, warnings };
    let mut response = response::json(StatusCode::OK, &body);
    response.headers_mut().insert(header::ETAG, preconditions::etag(version));
    response
}

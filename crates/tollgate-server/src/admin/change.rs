//! How anything is changed: checked whole, written in one transaction, followed at once. Or only looked at, with
//! `?dry_run=true`.

use http::{HeaderValue, StatusCode, header};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};
use tokio::sync::Semaphore;
use tollgate_stores::sql::{
    AppliedChange, Database, DatabaseError, Item, ItemChange, ItemEdit, ItemId, ItemKind, ItemWrite,
    Precondition, StoredItem,
};
use utoipa::{IntoParams, ToSchema};

use super::{parse, preconditions, render, view};
use crate::config::sync;
use crate::http::error::{ApiError, Code};
use crate::http::response;
use crate::http::{Call, Response};
use crate::records::traffic_sample::Effect;

/// An item is as large as a check at most.
pub(crate) const ITEM_BYTES_MAX: usize = 64 << 10;

/// As many items as the log tells of one change.
const LOGGED_MAX: usize = 20;

/// How often a change is checked anew because somebody else was quicker.
const ATTEMPTS: usize = 10;

/// One trial at a time: it takes a processor for some milliseconds.
static TRIALS: Semaphore = Semaphore::const_new(1);

/// What every change takes.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ChangeQuery {
    /// `true` changes nothing, and answers with what would change.
    #[param(value_type = Option<bool>)]
    dry_run: Option<String>,
}

/// What a change would do. Nothing was changed.
#[derive(Serialize, ToSchema)]
pub(crate) struct DryRunAnswer {
    /// Always true.
    pub(crate) dry_run: bool,
    /// Every item that would differ.
    pub(crate) changes: Vec<ChangeBody>,
    /// What it would do to the requests of the last minutes; null for changes that do nothing to them.
    pub(crate) effect: Option<Effect>,
}

/// One item that differs.
#[derive(Serialize, ToSchema)]
pub(crate) struct ChangeBody {
    /// `rule`, `tier`, `quota`, `key`, `block` or `user_endpoint_limit`.
    kind: &'static str,
    /// Which of them.
    id: String,
    /// `create`, `update` or `delete`.
    pub(crate) action: &'static str,
    /// As it is; null if it is not there.
    #[schema(value_type = Option<Object>)]
    before: Option<Map<String, Json>>,
    /// As it would be; null if it would not be there.
    #[schema(value_type = Option<Object>)]
    after: Option<Map<String, Json>>,
}

impl ChangeBody {
    pub(crate) fn of(difference: &ItemChange) -> Self {
        let action = match (&difference.before, &difference.after) {
            (None, _) => "create",
            (Some(_), Some(_)) => "update",
            (Some(_), None) => "delete",
        };
        ChangeBody {
            kind: difference.id.kind().as_str(),
            id: difference.id.to_string(),
            action,
            before: difference.before.as_ref().map(|stored| render::written(&stored.item)),
            after: difference.after.as_ref().map(render::written),
        }
    }
}

impl Call {
    /// Whether nothing is to be changed.
    pub(crate) fn is_dry_run(&self) -> Result<bool, ApiError> {
        let query: ChangeQuery = self.query()?;
        flag("dry_run", query.dry_run.as_deref())
    }

    pub(crate) fn database(&self) -> Result<Database, ApiError> {
        self.app.config_sync().database()
    }
}

/// A flag of a query; absent is no.
pub(crate) fn flag(field: &'static str, text: Option<&str>) -> Result<bool, ApiError> {
    match text {
        None | Some("false") => Ok(false),
        Some("true") => Ok(true),
        Some(_) => Err(ApiError::field(Code::InvalidInput, field, "must be true or false")),
    }
}

/// Adds an item that must not be there yet.
pub(crate) async fn create(call: &Call, item: Item) -> Result<Response, ApiError> {
    let item = call.normalize_item(item)?;
    let id = item.id();
    let edit = ItemEdit { write: ItemWrite::Put(item), precondition: Precondition::Absent };
    if call.is_dry_run()? {
        return dry_run(call, &[edit], exists).await;
    }
    let made = make(call, &[edit], exists).await?;
    answer_with(call, &id, &made, StatusCode::CREATED).await
}

/// Adds an item or replaces it.
pub(crate) async fn put(call: &Call, item: Item) -> Result<Response, ApiError> {
    let item = call.normalize_item(item)?;
    let id = item.id();
    let expect = preconditions::expected(&call.parts.headers)?;
    let refused: Refused = if expect == Precondition::Absent { is_there } else { differs };
    let edit = ItemEdit { write: ItemWrite::Put(item), precondition: expect };
    if call.is_dry_run()? {
        return dry_run(call, &[edit], refused).await;
    }
    let made = make(call, &[edit], refused).await?;
    let is_new = made.changed.items.iter().any(|difference| difference.before.is_none());
    answer_with(call, &id, &made, if is_new { StatusCode::CREATED } else { StatusCode::OK }).await
}

/// Removes an item.
pub(crate) async fn delete(call: &Call, id: ItemId) -> Result<Response, ApiError> {
    let expect = preconditions::expected(&call.parts.headers)?;
    // Without a condition it must be there all the same; that it is not is another answer.
    let (expect, refused): (Precondition, Refused) = match expect {
        Precondition::None => (Precondition::Present, missing),
        Precondition::Absent => {
            return Err(ApiError::field(Code::InvalidInput, "if-none-match", "has no meaning here"));
        }
        expect => (expect, differs),
    };
    let edit = ItemEdit { write: ItemWrite::Delete(call.normalize_id(&id)), precondition: expect };
    if call.is_dry_run()? {
        return dry_run(call, &[edit], refused).await;
    }
    make(call, &[edit], refused).await?;
    Ok(no_content())
}

/// One item, or 304 if whoever asks has it already.
pub(crate) async fn read(call: &Call, id: &ItemId) -> Result<Response, ApiError> {
    let id = &call.normalize_id(id);
    let stored = call.database()?.get(id).await.map_err(|error| sync::failed(&error))?;
    let stored = stored.ok_or_else(|| missing(id, None))?;
    let version = stored.version;
    if preconditions::is_known(&call.parts.headers, version) {
        let mut response = Response::default();
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        response.headers_mut().insert(header::ETAG, preconditions::tag(version));
        return Ok(response);
    }
    let mut shown = view::items(call, vec![stored]).await?;
    let mut response = response::json(StatusCode::OK, &shown.pop());
    response.headers_mut().insert(header::ETAG, preconditions::tag(version));
    Ok(response)
}

/// The item as it is now, with its tag and, if it is new, its place.
pub(crate) async fn answer_with(
    call: &Call,
    id: &ItemId,
    made: &Made,
    status: StatusCode,
) -> Result<Response, ApiError> {
    let stored = made.stored(call, id).await?;
    Ok(answer_of(&stored, &view::written(call, &stored).await, status))
}

/// A change that was made, and when.
pub(crate) struct Made {
    pub(crate) changed: AppliedChange,
    at_micros: u64,
}

impl Made {
    pub(crate) fn new(changed: AppliedChange, at_micros: u64) -> Self {
        Made { changed, at_micros }
    }

    /// The item as it is now. What was just written is not looked up: a database that goes away at this moment must not make
    /// the change look as if it had not been made.
    pub(crate) async fn stored(&self, call: &Call, id: &ItemId) -> Result<StoredItem, ApiError> {
        let mut differences = self.changed.items.iter();
        if let Some(ItemChange { before, after: Some(item), .. }) =
            differences.find(|difference| difference.id == *id)
        {
            let created = before.as_ref().map(|before| (before.created_by.clone(), before.created_at_micros));
            let (created_by, created_at_micros) =
                created.unwrap_or_else(|| (call.caller.name.to_string(), self.at_micros));
            return Ok(StoredItem {
                item: item.clone(),
                version: self.changed.version,
                created_by,
                created_at_micros,
                updated_at_micros: self.at_micros,
            });
        }
        let stored = call.database()?.get(id).await.map_err(|error| sync::failed(&error))?;
        stored.ok_or_else(|| missing(id, None))
    }
}

/// An answer about an item that was just written.
pub(crate) fn answer_of(stored: &StoredItem, shown: &Json, status: StatusCode) -> Response {
    let mut response = response::json(status, shown);
    let headers = response.headers_mut();
    headers.insert(header::ETAG, preconditions::tag(stored.version));
    if status == StatusCode::CREATED
        && let Ok(place) = HeaderValue::try_from(location(&stored.item.id()))
    {
        headers.insert(header::LOCATION, place);
    }
    response
}

/// Where an item is found. Everything that a path could understand otherwise is escaped.
fn location(id: &ItemId) -> String {
    const KEPT: &AsciiSet =
        &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b':');
    let kind = render::plural(id.kind());
    format!("/v1/admin/{kind}/{}", utf8_percent_encode(&id.to_string(), KEPT))
}

pub(crate) fn no_content() -> Response {
    let mut response = Response::default();
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}

/// What a caller is told when an item is not as the edit expects; the version it has, if it is there.
pub(crate) type Refused = fn(&ItemId, Option<u64>) -> ApiError;

fn exists(id: &ItemId, _: Option<u64>) -> ApiError {
    ApiError::new(Code::Conflict, format!("the {} is there already: PUT it to replace it", name(id)))
}

/// The same where the caller's condition says that it must not be.
fn is_there(id: &ItemId, _: Option<u64>) -> ApiError {
    preconditions::failed(format!("the {} is there already", name(id)))
}

pub(crate) fn missing(id: &ItemId, _: Option<u64>) -> ApiError {
    ApiError::new(Code::NotFound, format!("there is no {}", name(id)))
}

pub(crate) fn differs(id: &ItemId, found: Option<u64>) -> ApiError {
    preconditions::failed(match found {
        Some(version) => format!("the {} is at version {version}: look at it again", name(id)),
        None => format!("there is no {}", name(id)),
    })
}

/// An item in words, `rule "a"`.
pub(crate) fn name(id: &ItemId) -> String {
    let kind = match id.kind() {
        ItemKind::Limit => "limit",
        kind => kind.as_str(),
    };
    format!("{kind} {:?}", id.to_string())
}

/// Makes the edits, all or none; they are in force here when it returns, as a rule.
pub(crate) async fn make(call: &Call, edits: &[ItemEdit], refused: Refused) -> Result<Made, ApiError> {
    let database = call.database()?;
    let mut attempt = 1;
    loop {
        // What was checked is what is written: rules go with all the others or they do not.
        let checked_at = check_rules(call, &database, edits).await?;
        match write(call, &database, edits, checked_at).await {
            Err(DatabaseError::VersionConflict { .. }) if attempt < ATTEMPTS => attempt += 1,
            done => return done.map_err(|error| failed(error, refused)),
        }
    }
}

/// Writes edits that were checked, if the configuration is at the version they were checked at.
pub(crate) async fn write(
    call: &Call,
    database: &Database,
    edits: &[ItemEdit],
    at: Option<u64>,
) -> Result<Made, DatabaseError> {
    let (by, now, request_id) = (&*call.caller.name, call.app.now().as_micros(), call.request_id.as_str());
    let changed = match at {
        Some(version) => database.change_at_version(version, by, now, edits).await?,
        None => database.change(by, now, edits).await?,
    };
    // The audit trail tells every item; of a large import the log need not.
    for difference in changed.items.iter().take(LOGGED_MAX) {
        let (kind, id, version) = (difference.id.kind().as_str(), difference.id.to_string(), changed.version);
        tracing::info!(request_id, by, kind, id = %id.escape_debug(), version, "configuration changed");
    }
    if let Some(more) = changed.items.len().checked_sub(LOGGED_MAX).filter(|more| *more > 0) {
        tracing::info!(request_id, by, more, version = changed.version, "configuration changed");
    }
    if !changed.items.is_empty() {
        call.app.config_sync().wait_until_applied(call.app.counters(), changed.version).await;
    }
    Ok(Made::new(changed, now))
}

/// What the edits would do.
pub(crate) async fn dry_run(call: &Call, edits: &[ItemEdit], refused: Refused) -> Result<Response, ApiError> {
    let differences = plan(call, edits, refused).await?;
    let effect = effect(call, &differences).await?;
    let changes = differences.iter().map(ChangeBody::of).collect();
    Ok(response::json(StatusCode::OK, &DryRunAnswer { dry_run: true, changes, effect }))
}

/// Every item that the edits would change.
pub(crate) async fn plan(
    call: &Call,
    edits: &[ItemEdit],
    refused: Refused,
) -> Result<Vec<ItemChange>, ApiError> {
    let database = call.database()?;
    check_rules(call, &database, edits).await?;
    database.dry_run(edits).await.map_err(|error| failed(error, refused))
}

fn failed(error: DatabaseError, refused: Refused) -> ApiError {
    match error {
        DatabaseError::Conflict { id, found } => refused(&id, found),
        error => sync::failed(&error),
    }
}

/// Whether rules and tiers make a rule set with all the others after the edits. Nothing is written before they do. The version
/// of the others; nothing if no rule is changed.
async fn check_rules(call: &Call, database: &Database, edits: &[ItemEdit]) -> Result<Option<u64>, ApiError> {
    let of_rules = |edit: &&ItemEdit| matches!(kind_of(&edit.write), ItemKind::Rule | ItemKind::Tier);
    let writes: Vec<&ItemWrite> = edits.iter().filter(of_rules).map(|edit| &edit.write).collect();
    if writes.is_empty() {
        return Ok(None);
    }
    let catalog = call.app.config_sync();
    for write in &writes {
        refuse_rules_of_the_file(call, write)?;
    }
    // They must go with the rules of now, not with those of the last time this node looked.
    let version = database.version().await.map_err(|error| sync::failed(&error))?;
    if catalog.version() < version && !catalog.wait_until_applied(call.app.counters(), version).await {
        let message =
            "this node has not read the latest configuration yet; nothing was changed: send it again";
        return Err(ApiError::new(Code::ServiceUnavailable, message));
    }
    // Looked at first: if others come between, the version is too old rather than too new.
    let version = catalog.version();
    catalog.compile_with(writes).map(|_| Some(version)).map_err(|problems| {
        let first = problems.0.first().map(|first| (first.key.clone(), first.reason.clone()));
        let (key, reason) = first.unwrap_or_default();
        ApiError::field(Code::InvalidInput, key, reason).with_message(problems.to_string())
    })
}

/// What a file says is changed there.
fn refuse_rules_of_the_file(call: &Call, write: &ItemWrite) -> Result<(), ApiError> {
    let id = id_of(write);
    let rule = match &id {
        ItemId::Tier(tier) => format!("{}{tier}", parse::TIER),
        id => id.to_string(),
    };
    let Some(file) = call.app.config_sync().rules().file_of(&rule) else { return Ok(()) };
    let message = format!("the {} is in {file}, and can be changed there alone", name(&id));
    Err(ApiError::new(Code::Conflict, message))
}

pub(crate) fn id_of(write: &ItemWrite) -> ItemId {
    match write {
        ItemWrite::Put(item) => item.id(),
        ItemWrite::Delete(id) => id.clone(),
    }
}

fn kind_of(write: &ItemWrite) -> ItemKind {
    match write {
        ItemWrite::Put(item) => item.id().kind(),
        ItemWrite::Delete(id) => id.kind(),
    }
}

/// What the changes would do to the requests of the last minutes; nothing for keys, which say who somebody is.
pub(crate) async fn effect(call: &Call, differences: &[ItemChange]) -> Result<Option<Effect>, ApiError> {
    let write = |difference: &ItemChange| match &difference.after {
        Some(item) => ItemWrite::Put(item.clone()),
        None => ItemWrite::Delete(difference.id.clone()),
    };
    let felt = differences.iter().filter(|difference| difference.id.kind() != ItemKind::Key);
    let writes: Vec<ItemWrite> = felt.map(write).collect();
    if writes.is_empty() && differences.iter().any(|difference| difference.id.kind() == ItemKind::Key) {
        return Ok(None);
    }
    let failed = || ApiError::new(Code::InternalError, "the trial failed");
    let _one = TRIALS.acquire().await.map_err(|_| failed())?;
    let app = std::sync::Arc::clone(&call.app);
    let trial = tokio::task::spawn_blocking(move || {
        let (today, changed) = sync::preview(app.config_sync(), &app.limiter().rules(), &writes)?;
        Ok(app.traffic_sample().compare(&today, &changed, app.now()))
    });
    let effect: Result<Effect, tollgate::config::Problems> = trial.await.map_err(|_| failed())?;
    // Rules that do not go together were refused before.
    Ok(effect.ok())
}

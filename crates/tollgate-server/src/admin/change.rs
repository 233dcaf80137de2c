//! Changes of the configuration: checked against all other rules, written in one transaction, in force on return.

use tollgate_stores::sql::{
    AppliedChange, Database, DatabaseError, Item, ItemChange, ItemEdit, ItemId, ItemKind, ItemWrite,
    StoredItem,
};

use super::{parse, preconditions, warnings};
use crate::config::normalize;
use crate::http::Call;
use crate::http::error::{ApiError, Code};

/// Items of one change that are logged; the audit trail has all of them.
const LOGGED_ITEMS_MAX: usize = 20;

/// Attempts to write rules while others change them at the same time.
const ATTEMPTS_MAX: usize = 10;

/// Makes the error for an item that does not meet its precondition, given its version if it exists.
pub(crate) type ConflictError = fn(&ItemId, Option<u64>) -> ApiError;

pub(crate) fn already_exists(id: &ItemId, _: Option<u64>) -> ApiError {
    ApiError::new(Code::Conflict, format!("{} already exists; send PUT to replace it", name(id)))
}

/// Like [`already_exists`], where the request says `If-None-Match: *`.
pub(crate) fn exists_despite_condition(id: &ItemId, _: Option<u64>) -> ApiError {
    preconditions::failed(format!("{} already exists", name(id)))
}

pub(crate) fn not_found(id: &ItemId, _: Option<u64>) -> ApiError {
    ApiError::new(Code::NotFound, format!("{} does not exist", name(id)))
}

pub(crate) fn version_differs(id: &ItemId, found: Option<u64>) -> ApiError {
    preconditions::failed(match found {
        Some(version) => format!("{} is at version {version}; read it again and retry", name(id)),
        None => format!("{} does not exist", name(id)),
    })
}

/// An item in an error message: `rule "a"`.
fn name(id: &ItemId) -> String {
    let kind = match id.kind() {
        ItemKind::Limit => "limit",
        kind => kind.as_str(),
    };
    match id.tenant() {
        Some(tenant) => format!("{kind} {:?} of tenant {tenant:?}", id.to_string()),
        None => format!("{kind} {:?}", id.to_string()),
    }
}

pub(crate) fn database(call: &Call) -> Result<Database, ApiError> {
    Ok(call.app.config_sync().database()?)
}

/// The id, normalized as `[identity]` says.
pub(crate) fn normalized_id(call: &Call, id: &ItemId) -> ItemId {
    normalize::item_id(id, call.app.limiter().rules().normalization())
}

/// The item with normalized ids.
pub(crate) fn normalized(call: &Call, item: Item) -> Result<Item, ApiError> {
    Ok(normalize::item(item, call.app.limiter().rules().normalization())?)
}

/// A change that was made, and when.
pub(crate) struct Applied {
    pub(crate) change: AppliedChange,
    pub(crate) at_micros: u64,
    /// What may not be as meant.
    pub(crate) warnings: Vec<String>,
}

impl Applied {
    /// The same change, of which warnings would say nothing new.
    pub(crate) fn without_warnings(self) -> Self {
        Applied { warnings: Vec::new(), ..self }
    }

    /// The item as it is now. What the change wrote is not read again: a database that fails now must not make the
    /// change look as if it had failed.
    pub(crate) async fn stored(&self, call: &Call, id: &ItemId) -> Result<StoredItem, ApiError> {
        let change = self.change.items.iter().find(|change| change.id == *id);
        if let Some(ItemChange { before, after: Some(item), .. }) = change {
            let created = before.as_ref().map(|before| (before.created_by.clone(), before.created_at_micros));
            let (created_by, created_at_micros) =
                created.unwrap_or_else(|| (call.caller.name.to_string(), self.at_micros));
            return Ok(StoredItem {
                item: item.clone(),
                version: self.change.version,
                created_by,
                created_at_micros,
                updated_at_micros: self.at_micros,
            });
        }
        let stored = database(call)?.get(id).await?;
        stored.ok_or_else(|| not_found(id, None))
    }
}

/// Applies all edits or none. On return the change is usually in force on this node.
pub(crate) async fn apply(
    call: &Call,
    edits: &[ItemEdit],
    conflict: ConflictError,
) -> Result<Applied, ApiError> {
    warnings::reject_unknown_tiers(call, edits)?;
    let database = database(call)?;
    let mut attempt = 1;
    loop {
        // Rules are written only at the version they were checked against.
        let checked_at = check_rules(call, &database, edits).await?;
        match write(call, &database, edits, checked_at).await {
            Err(DatabaseError::VersionConflict { .. }) if attempt < ATTEMPTS_MAX => attempt += 1,
            result => return result.map_err(|error| failed(error, conflict)),
        }
    }
}

/// Writes checked edits. With `version`, only if the configuration is still at that version.
pub(crate) async fn write(
    call: &Call,
    database: &Database,
    edits: &[ItemEdit],
    version: Option<u64>,
) -> Result<Applied, DatabaseError> {
    let (by, now, request_id) = (&*call.caller.name, call.app.now().as_micros(), call.request_id.as_str());
    let warnings = warnings::of(call, edits);
    let change = match version {
        Some(version) => database.change_at_version(version, by, now, edits).await?,
        None => database.change(by, now, edits).await?,
    };
    let version = change.version;
    for item in change.items.iter().take(LOGGED_ITEMS_MAX) {
        let (kind, id) = (item.id.kind().as_str(), item.id.to_string());
        tracing::info!(request_id, by, kind, id = %id.escape_debug(), version, "configuration changed");
    }
    let unlogged = change.items.len().saturating_sub(LOGGED_ITEMS_MAX);
    if unlogged > 0 {
        tracing::info!(request_id, by, more_items = unlogged, version, "configuration changed");
    }
    if !change.items.is_empty() {
        call.app.config_sync().wait_until_applied(call.app.counters(), version).await;
    }
    Ok(Applied { change, at_micros: now, warnings })
}

/// Lists every item that the edits would change.
pub(crate) async fn plan(
    call: &Call,
    edits: &[ItemEdit],
    conflict: ConflictError,
) -> Result<Vec<ItemChange>, ApiError> {
    warnings::reject_unknown_tiers(call, edits)?;
    let database = database(call)?;
    check_rules(call, &database, edits).await?;
    database.dry_run(edits).await.map_err(|error| failed(error, conflict))
}

fn failed(error: DatabaseError, conflict: ConflictError) -> ApiError {
    match error {
        DatabaseError::Conflict { id, found } => conflict(&id, found),
        error => error.into(),
    }
}

/// Compiles the rule set as it would be after the edits. Returns the version it was checked against, or `None` if the
/// edits change no rule.
async fn check_rules(call: &Call, database: &Database, edits: &[ItemEdit]) -> Result<Option<u64>, ApiError> {
    let changes_rules = |edit: &&ItemEdit| matches!(edit.id().kind(), ItemKind::Rule | ItemKind::Tier);
    let writes: Vec<&ItemWrite> = edits.iter().filter(changes_rules).map(|edit| &edit.write).collect();
    if writes.is_empty() {
        return Ok(None);
    }
    let config_sync = call.app.config_sync();
    reject_file_items(call, edits.iter().filter(changes_rules))?;
    // Check against the latest rules, not against those this node has read last.
    let latest = database.version().await?;
    if config_sync.version() < latest && !config_sync.wait_until_applied(call.app.counters(), latest).await {
        let message = "this node has not applied the latest configuration yet; nothing was changed, retry";
        return Err(ApiError::new(Code::ServiceUnavailable, message));
    }
    // Read before compiling: a concurrent change makes this version too old, never too new.
    let version = config_sync.version();
    config_sync.rules().compile_with(writes).map(|_| Some(version)).map_err(|problems| {
        let first = problems.0.first().map(|first| (first.key.clone(), first.reason.clone()));
        let (key, reason) = first.unwrap_or_default();
        ApiError::field(Code::InvalidInput, key, reason).with_message(problems.to_string())
    })
}

/// Items of the settings file that an error names; the others are counted.
const NAMED_ITEMS_MAX: usize = 5;

/// Rules and tiers of the settings file are changed in the file only.
fn reject_file_items<'e>(call: &Call, edits: impl Iterator<Item = &'e ItemEdit>) -> Result<(), ApiError> {
    let sources = call.app.config_sync().rules();
    let file_of = |id: &ItemId| match id {
        ItemId::Tier(tier) => sources.file_of(&format!("{}{tier}", parse::TIER_RULE_PREFIX)),
        id => sources.file_of(&id.to_string()),
    };
    let mut found = edits.filter_map(|edit| Some((name(&edit.id()), file_of(&edit.id())?)));
    let Some((first, file)) = found.next() else { return Ok(()) };
    let names: Vec<String> = std::iter::once(first).chain(found.map(|(name, _)| name)).collect();
    let more = names.len().saturating_sub(NAMED_ITEMS_MAX);
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    let listed = names[..names.len().min(NAMED_ITEMS_MAX)].join(", ");
    let (verb, them) = if names.len() == 1 { ("is", "it") } else { ("are", "them") };
    let message = format!(
        "{listed}{more} {verb} defined in {file}, the settings file of this server, and an item lives either there or in the \
         database: edit {file} and reload it, or remove {them} from {file}, reload, and write {them} again"
    );
    Err(ApiError::new(Code::Conflict, message))
}

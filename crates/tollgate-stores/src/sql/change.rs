//! Changes of the configuration: increment the version, write the items, append to the audit log, commit, notify.

use std::collections::HashSet;

use serde_json::Value as Json;
use tollgate::identity::ID_BYTES_MAX;

use super::audit::{self, AuditEvent, NewEntry};
use super::engine::{Pool, Transaction, to_i64};
use super::error::{DatabaseError, ValueError};
use super::items::table::{CHUNK_ROWS, Table, check_name, check_text, chunks};
use super::items::{Item, ItemId, ItemKind, StoredItem, list, row};
use super::listener::CHANNEL;
use super::query::{Query, Value};
use super::settings::Engine;
use super::version;

/// Attempts at a change that the server aborts because of a deadlock with a batch of usage.
const ATTEMPTS: usize = 3;
const WORD_BYTES_MAX: usize = 64;
const SUBJECT_BYTES_MAX: usize = 4096;
const STATE_BYTES_MAX: usize = 1 << 20;

/// A write of one item.
#[allow(clippy::large_enum_variant, reason = "most of many writes put something")]
#[derive(Clone, Debug, PartialEq)]
pub enum ItemWrite {
    /// Create or replace the item.
    Put(Item),
    /// Delete the item if it exists.
    Delete(ItemId),
}

/// What must hold for an edit to be applied.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Precondition {
    /// Nothing.
    #[default]
    None,
    /// The item does not exist.
    Absent,
    /// The item exists.
    Present,
    /// The item exists and was last changed by this version.
    Version(u64),
}

/// One edit of a change.
#[derive(Clone, Debug, PartialEq)]
pub struct ItemEdit {
    /// The write.
    pub write: ItemWrite,
    /// What must hold before it.
    pub precondition: Precondition,
}

/// The effect of a change on one item.
#[derive(Clone, Debug, PartialEq)]
pub struct ItemChange {
    /// The item.
    pub id: ItemId,
    /// Its state before; `None` if it did not exist.
    pub before: Option<StoredItem>,
    /// Its state after, as stored; `None` if it is deleted.
    pub after: Option<Item>,
}

/// The effect of a change.
#[derive(Clone, Debug, PartialEq)]
pub struct AppliedChange {
    /// The version of the configuration afterwards.
    pub version: u64,
    /// The items that changed, in the order of the edits. If nothing changed, the version was not incremented.
    pub items: Vec<ItemChange>,
}

/// Who makes a change, and when.
#[derive(Clone, Copy)]
pub(super) struct Author<'a> {
    pub(super) by: &'a str,
    pub(super) at_micros: u64,
}

impl ItemEdit {
    /// The item that it writes.
    pub fn id(&self) -> ItemId {
        match &self.write {
            ItemWrite::Put(item) => item.id(),
            ItemWrite::Delete(id) => id.clone(),
        }
    }
}

impl Precondition {
    /// Whether an item with this version, or an absent one, meets it.
    pub fn holds(self, found: Option<u64>) -> bool {
        match self {
            Precondition::None => true,
            Precondition::Absent => found.is_none(),
            Precondition::Present => found.is_some(),
            Precondition::Version(version) => found == Some(version),
        }
    }
}

/// Applies a change; with `expected`, only if the configuration is at that version.
pub(super) async fn apply(
    pool: &Pool,
    expected: Option<u64>,
    author: Author<'_>,
    edits: &[ItemEdit],
) -> Result<AppliedChange, DatabaseError> {
    check_name("by", author.by, ID_BYTES_MAX)?;
    to_i64(author.at_micros, "at")?;
    let targets = targets(edits)?;
    let mut attempt = 1;
    loop {
        match try_apply(pool, expected, author, edits, &targets).await {
            Err(error) if error.is_deadlock() && attempt < ATTEMPTS => attempt += 1,
            done => return done,
        }
    }
}

async fn try_apply(
    pool: &Pool,
    expected: Option<u64>,
    author: Author<'_>,
    edits: &[ItemEdit],
    targets: &[Target],
) -> Result<AppliedChange, DatabaseError> {
    let mut transaction = pool.begin_write().await?;
    let version = version::increment(&mut transaction).await?;
    if expected.is_some_and(|expected| expected != version - 1) {
        return transaction.rollback_with(Err(DatabaseError::VersionConflict { found: version - 1 })).await;
    }
    let items = match item_changes(&mut transaction, edits, targets).await {
        Ok(items) if !items.is_empty() => items,
        unchanged => {
            let unchanged = unchanged.map(|items| AppliedChange { version: version - 1, items });
            return transaction.rollback_with(unchanged).await;
        }
    };
    for kind in ItemKind::ALL {
        write(&mut transaction, kind, author, version, &items).await?;
    }
    let entries = items.iter().map(audit_entry).collect::<Result<Vec<_>, _>>()?;
    audit::append(&mut transaction, author.by, author.at_micros, version, &entries).await?;
    commit_and_notify(transaction).await?;
    Ok(AppliedChange { version, items })
}

/// What [`apply`] would change. Writes nothing.
pub(super) async fn dry_run(pool: &Pool, edits: &[ItemEdit]) -> Result<Vec<ItemChange>, DatabaseError> {
    let targets = targets(edits)?;
    let mut transaction = pool.begin_snapshot().await?;
    let items = item_changes(&mut transaction, edits, &targets).await;
    transaction.rollback_with(items).await
}

/// Appends an event to the audit log under a version of its own; returns the version.
pub(super) async fn record_event(
    pool: &Pool,
    author: Author<'_>,
    event: &AuditEvent,
) -> Result<u64, DatabaseError> {
    check_name("by", author.by, ID_BYTES_MAX)?;
    check_name("action", &event.action, WORD_BYTES_MAX)?;
    check_name("kind", &event.kind, WORD_BYTES_MAX)?;
    check_text("subject", &event.subject, SUBJECT_BYTES_MAX)?;
    check_text("tenant", event.tenant.as_deref().unwrap_or_default(), ID_BYTES_MAX)?;
    if ItemKind::parse(&event.kind).is_some() {
        return Err(DatabaseError::value("kind", ValueError::NotAllowed));
    }
    let entry = NewEntry {
        action: &event.action,
        kind: &event.kind,
        subject: event.subject.clone(),
        tenant: event.tenant.clone().unwrap_or_default(),
        before: json_text(event.before.as_ref()),
        after: json_text(event.after.as_ref()),
    };
    check_text("before", &entry.before, STATE_BYTES_MAX)?;
    check_text("after", &entry.after, STATE_BYTES_MAX)?;
    let mut transaction = pool.begin_write().await?;
    let version = version::increment(&mut transaction).await?;
    audit::append(&mut transaction, author.by, author.at_micros, version, &[entry]).await?;
    commit_and_notify(transaction).await?;
    Ok(version)
}

/// The state that an edit wants, normalized to the form in which it is stored.
struct Target {
    id: ItemId,
    item: Option<Item>,
}

fn targets(edits: &[ItemEdit]) -> Result<Vec<Target>, DatabaseError> {
    let mut seen = HashSet::new();
    let mut targets = Vec::with_capacity(edits.len());
    for edit in edits {
        let id = edit.id();
        let item = match &edit.write {
            ItemWrite::Put(item) => Some(row::item(id.kind(), row::columns(item)?)?),
            ItemWrite::Delete(id) => {
                Table::of(id.kind()).check_id(id)?;
                None
            }
        };
        if !seen.insert(id.clone()) {
            return Err(DatabaseError::DuplicateItem { id });
        }
        targets.push(Target { id, item });
    }
    Ok(targets)
}

/// Checks the preconditions, and returns the items that would change.
async fn item_changes(
    transaction: &mut Transaction,
    edits: &[ItemEdit],
    targets: &[Target],
) -> Result<Vec<ItemChange>, DatabaseError> {
    let ids: Vec<&ItemId> = targets.iter().map(|target| &target.id).collect();
    let mut stored = list::find(transaction, &ids).await?;
    let mut changes = Vec::new();
    for (edit, Target { id, item: after }) in edits.iter().zip(targets) {
        let before = stored.remove(id);
        let found = before.as_ref().map(|stored| stored.version);
        if !edit.precondition.holds(found) {
            return Err(DatabaseError::Conflict { id: id.clone(), found });
        }
        if before.as_ref().map(|stored| &stored.item) != after.as_ref() {
            changes.push(ItemChange { id: id.clone(), before, after: after.clone() });
        }
    }
    Ok(changes)
}

fn audit_entry(change: &ItemChange) -> Result<NewEntry<'static>, DatabaseError> {
    let ItemChange { id, before, after } = change;
    let before = before.as_ref().map(|stored| &stored.item);
    let action = match (before, after) {
        (None, _) => "create",
        (_, None) => "delete",
        _ => "update",
    };
    let mut after_json = after.as_ref().map(row::audit_json).transpose()?;
    if let (Some(Item::Key(before)), Some(Item::Key(after)), Some(json)) = (before, after, &mut after_json)
        && before.hash != after.hash
    {
        json["secret"] = "changed".into();
    }
    Ok(NewEntry {
        action,
        kind: id.kind().as_str(),
        subject: id.to_string(),
        tenant: id.tenant().unwrap_or_default().to_owned(),
        before: json_text(before.map(row::audit_json).transpose()?.as_ref()),
        after: json_text(after_json.as_ref()),
    })
}

fn json_text(state: Option<&Json>) -> String {
    state.map(Json::to_string).unwrap_or_default()
}

/// Writes the changed items of one kind. The row lock of the version excludes other writers.
async fn write(
    transaction: &mut Transaction,
    kind: ItemKind,
    author: Author<'_>,
    version: u64,
    changes: &[ItemChange],
) -> Result<(), DatabaseError> {
    let (mut deleted, mut created, mut replaced) = (Vec::new(), Vec::new(), Vec::new());
    let mut of_kind: Vec<&ItemChange> = changes.iter().filter(|change| change.id.kind() == kind).collect();
    // Batches of usage lock rows in the same order, which avoids deadlocks.
    of_kind.sort_unstable_by_key(|change| &change.id);
    for change in of_kind {
        let Some(item) = &change.after else {
            deleted.push(&change.id);
            continue;
        };
        let row = new_row(change, item, author, version)?;
        if change.before.is_some() { replaced.push(row) } else { created.push(row) }
    }
    let table = Table::of(kind);
    for ids in deleted.chunks(CHUNK_ROWS) {
        let mut query = Query::new("DELETE FROM ");
        query.push(table.name);
        table.push_where(&mut query, ids);
        transaction.execute(&query).await?;
    }
    // Plain INSERT for new items: MySQL's upsert would replace another row with the same unique value.
    insert(transaction, table, &created, false).await?;
    insert(transaction, table, &replaced, true).await
}

async fn insert(
    transaction: &mut Transaction,
    table: &Table,
    rows: &[Vec<Value<'_>>],
    replace: bool,
) -> Result<(), DatabaseError> {
    for piece in chunks(rows, |row| row.iter().map(Value::weight).sum()) {
        let mut query = table.insert(piece.iter().cloned());
        if replace {
            table.push_replace(&mut query);
        }
        transaction.execute(&query).await?;
    }
    Ok(())
}

/// A row to be written: the columns of the item, then the four common columns.
fn new_row<'a>(
    change: &'a ItemChange,
    item: &'a Item,
    author: Author<'a>,
    version: u64,
) -> Result<Vec<Value<'a>>, DatabaseError> {
    let (created_by, created_at) = match &change.before {
        Some(before) => (&*before.created_by, before.created_at_micros),
        None => (author.by, author.at_micros),
    };
    let mut row = row::columns(item)?;
    row.push(created_by.into());
    row.push(to_i64(created_at, "created_at")?.into());
    row.push(to_i64(author.at_micros, "at")?.into());
    row.push(to_i64(version, "version")?.into());
    Ok(row)
}

/// Commits, and notifies listeners on PostgreSQL.
async fn commit_and_notify(mut transaction: Transaction) -> Result<(), DatabaseError> {
    if transaction.engine() == Engine::Postgres {
        transaction.execute(&Query::with("SELECT pg_notify(?, '')", [CHANNEL.into()])).await?;
    }
    transaction.commit().await
}

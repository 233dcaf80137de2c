//! Changes of the configuration: the next version, what is written, and the entries that tell of it.

use std::collections::{HashMap, HashSet};

use serde_json::Value as Json;
use tollgate::identity::ID_BYTES_MAX;

use super::Database;
use super::audit::Entry;
use super::engine::{Transaction, signed};
use super::error::{DatabaseError, ValueError};
use super::items::table::{CHUNK_ROWS, Cell, Table, check_name, check_text, chunks};
use super::items::{Item, ItemId, ItemKind, StoredItem};
use super::query::{Query, Value};
use super::settings::Engine;

/// The channel on which PostgreSQL tells that something has changed.
pub(super) const CHANNEL: &str = "tollgate_config";

/// How often a change is begun anew when the server ends it because it and a batch of usage wait for each other.
const ATTEMPTS: usize = 3;
const WORD_BYTES_MAX: usize = 64;
const SUBJECT_BYTES_MAX: usize = 4096;
const STATE_BYTES_MAX: usize = 1 << 20;

/// What is to be written.
#[allow(clippy::large_enum_variant, reason = "most of many writes put something")]
#[derive(Clone, Debug, PartialEq)]
pub enum ItemWrite {
    /// The item shall be there, and be this.
    Put(Item),
    /// The item shall not be there.
    Delete(ItemId),
}

/// What must be so before it is written.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Precondition {
    /// Nothing.
    #[default]
    None,
    /// The item is not there.
    Absent,
    /// The item is there.
    Present,
    /// The item is there, and this version changed it last.
    Version(u64),
}

/// One part of a change.
#[derive(Clone, Debug, PartialEq)]
pub struct ItemEdit {
    /// What is to be written.
    pub write: ItemWrite,
    /// What must be so before.
    pub precondition: Precondition,
}

/// What a change makes of one item.
#[derive(Clone, Debug, PartialEq)]
pub struct ItemChange {
    /// Which item.
    pub id: ItemId,
    /// What it was; nothing if it was not there.
    pub before: Option<StoredItem>,
    /// What it becomes, as it is stored; nothing if it is removed.
    pub after: Option<Item>,
}

/// What a change has done.
#[derive(Clone, Debug, PartialEq)]
pub struct AppliedChange {
    /// The version of the configuration now.
    pub version: u64,
    /// What differs, in the order of the edits. If nothing does, the version is the one before.
    pub differences: Vec<ItemChange>,
}

/// Something that was done and is no change of an item: counters were reset, a client was pardoned.
#[derive(Clone, Debug, PartialEq)]
pub struct AuditEvent {
    /// What was done: `reset`.
    pub action: String,
    /// To what kind of thing: `counters`. Not one of the kinds of items.
    pub kind: String,
    /// To which of them.
    pub subject: String,
    /// What it was.
    pub before: Option<Json>,
    /// What it became.
    pub after: Option<Json>,
}

impl ItemEdit {
    /// Which item it is about.
    pub fn id(&self) -> ItemId {
        match &self.write {
            ItemWrite::Put(item) => item.id(),
            ItemWrite::Delete(id) => id.clone(),
        }
    }
}

impl Precondition {
    /// Whether an item at this version, or an absent one, meets it.
    pub fn is_met(self, found: Option<u64>) -> bool {
        match self {
            Precondition::None => true,
            Precondition::Absent => found.is_none(),
            Precondition::Present => found.is_some(),
            Precondition::Version(version) => found == Some(version),
        }
    }
}

impl Database {
    /// Makes a change: all of it in one transaction, or none of it. Expectations are looked at when all other changes
    /// wait. What would change nothing is left out; a change of nothing makes no version. The audit trail gets one entry for
    /// each difference, telling that `by` made it at `at_micros`.
    ///
    /// # Errors
    /// When a value cannot be stored, an expectation fails, an item is named twice or the database does not do it. Only after
    /// [`DatabaseError::OutcomeUnknown`] may it have been done all the same.
    pub async fn change(
        &self,
        by: &str,
        at_micros: u64,
        edits: &[ItemEdit],
    ) -> Result<AppliedChange, DatabaseError> {
        self.change_if(None, by, at_micros, edits).await
    }

    /// [`change`](Self::change), if the configuration is at this version when all other changes wait: for one that goes by
    /// more than the items it changes.
    ///
    /// # Errors
    /// As `change`, and [`DatabaseError::VersionConflict`] if the version is another.
    pub async fn change_at_version(
        &self,
        version: u64,
        by: &str,
        at_micros: u64,
        edits: &[ItemEdit],
    ) -> Result<AppliedChange, DatabaseError> {
        self.change_if(Some(version), by, at_micros, edits).await
    }

    async fn change_if(
        &self,
        expected: Option<u64>,
        by: &str,
        at_micros: u64,
        edits: &[ItemEdit],
    ) -> Result<AppliedChange, DatabaseError> {
        check_name("by", by, ID_BYTES_MAX)?;
        signed(at_micros, "at")?;
        let wanted = wanted(edits)?;
        let mut attempt = 1;
        loop {
            match self.try_change(expected, by, at_micros, edits, &wanted).await {
                Err(error) if error.is_deadlock() && attempt < ATTEMPTS => attempt += 1,
                done => return done,
            }
        }
    }

    async fn try_change(
        &self,
        expected: Option<u64>,
        by: &str,
        at_micros: u64,
        edits: &[ItemEdit],
        wanted: &[(ItemId, Option<Item>)],
    ) -> Result<AppliedChange, DatabaseError> {
        let (mut transaction, version) = self.begin_change().await?;
        if expected.is_some_and(|expected| expected != version - 1) {
            return transaction.end_with(Err(DatabaseError::VersionConflict { found: version - 1 })).await;
        }
        let differences = match differences(&mut transaction, edits, wanted).await {
            Ok(differences) if !differences.is_empty() => differences,
            nothing => {
                let nothing = nothing.map(|differences| AppliedChange { version: version - 1, differences });
                return transaction.end_with(nothing).await;
            }
        };
        for kind in ItemKind::ALL {
            transaction.write(kind, by, at_micros, version, &differences).await?;
        }
        let entries = differences.iter().map(entry).collect::<Result<Vec<_>, _>>()?;
        transaction.tell(by, at_micros, version, &entries).await?;
        transaction.commit_and_notify().await?;
        Ok(AppliedChange { version, differences })
    }

    /// What [`change`](Self::change) would do now. Writes nothing.
    ///
    /// # Errors
    /// As `change`.
    pub async fn dry_run(&self, edits: &[ItemEdit]) -> Result<Vec<ItemChange>, DatabaseError> {
        let wanted = wanted(edits)?;
        let mut transaction = self.pool.begin_snapshot().await?;
        let differences = differences(&mut transaction, edits, &wanted).await;
        transaction.end_with(differences).await
    }

    /// Leaves an entry in the audit trail, with a version of its own, of something that is no change of an item; the version.
    /// Other nodes learn of it as of a change.
    ///
    /// # Errors
    /// When a value cannot be stored or the database does not do it. Only after [`DatabaseError::OutcomeUnknown`] may it have been
    /// done all the same.
    pub async fn record_event(
        &self,
        by: &str,
        at_micros: u64,
        event: &AuditEvent,
    ) -> Result<u64, DatabaseError> {
        check_name("by", by, ID_BYTES_MAX)?;
        check_name("action", &event.action, WORD_BYTES_MAX)?;
        check_name("kind", &event.kind, WORD_BYTES_MAX)?;
        check_text("subject", &event.subject, SUBJECT_BYTES_MAX)?;
        if ItemKind::parse(&event.kind).is_some() {
            return Err(DatabaseError::value("kind", ValueError::Meaningless));
        }
        let state = |state: &Option<Json>| state.as_ref().map(Json::to_string).unwrap_or_default();
        let entry = Entry {
            action: &event.action,
            kind: &event.kind,
            subject: event.subject.clone(),
            before: state(&event.before),
            after: state(&event.after),
        };
        check_text("before", &entry.before, STATE_BYTES_MAX)?;
        check_text("after", &entry.after, STATE_BYTES_MAX)?;
        let (mut transaction, version) = self.begin_change().await?;
        transaction.tell(by, at_micros, version, &[entry]).await?;
        transaction.commit_and_notify().await?;
        Ok(version)
    }

    /// Takes the next version. All other changes, on all nodes, wait until this one ends.
    async fn begin_change(&self) -> Result<(Transaction, u64), DatabaseError> {
        let mut transaction = self.pool.begin_write().await?;
        let next = Query::new("UPDATE config_version SET version = version + 1 WHERE id = 1");
        transaction.execute(&next).await?;
        let version = transaction.config_version().await?;
        Ok((transaction, version))
    }
}

/// What each edit wants its item to be, in the form in which it is stored.
fn wanted(edits: &[ItemEdit]) -> Result<Vec<(ItemId, Option<Item>)>, DatabaseError> {
    let mut seen = HashSet::new();
    let mut wanted = Vec::with_capacity(edits.len());
    for edit in edits {
        let id = edit.id();
        let item = match &edit.write {
            ItemWrite::Put(item) => Some(Item::from_cells(id.kind(), item.cells()?)?),
            ItemWrite::Delete(id) => {
                Table::of(id.kind()).check_id(id)?;
                None
            }
        };
        if !seen.insert(id.clone()) {
            return Err(DatabaseError::DuplicateItem { id });
        }
        wanted.push((id, item));
    }
    Ok(wanted)
}

async fn differences(
    transaction: &mut Transaction,
    edits: &[ItemEdit],
    wanted: &[(ItemId, Option<Item>)],
) -> Result<Vec<ItemChange>, DatabaseError> {
    let ids: Vec<&ItemId> = wanted.iter().map(|(id, _)| id).collect();
    let mut stored = transaction.find(&ids).await?;
    let mut differences = Vec::new();
    for (edit, (id, after)) in edits.iter().zip(wanted) {
        let before = stored.remove(id);
        let found = before.as_ref().map(|stored| stored.version);
        if !edit.precondition.is_met(found) {
            return Err(DatabaseError::Conflict { id: id.clone(), found });
        }
        if before.as_ref().map(|stored| &stored.item) != after.as_ref() {
            differences.push(ItemChange { id: id.clone(), before, after: after.clone() });
        }
    }
    Ok(differences)
}

fn entry(difference: &ItemChange) -> Result<Entry<'static>, DatabaseError> {
    let ItemChange { id, before, after } = difference;
    let before = before.as_ref().map(|stored| &stored.item);
    let action = match (before, after) {
        (None, _) => "create",
        (_, None) => "delete",
        _ => "update",
    };
    let mut told = after.as_ref().map(Item::told).transpose()?;
    if let (Some(Item::Key(before)), Some(Item::Key(after)), Some(told)) = (before, after, &mut told)
        && before.hash != after.hash
    {
        told["secret"] = "changed".into();
    }
    let text = |state: Option<Json>| state.map(|state| state.to_string()).unwrap_or_default();
    Ok(Entry {
        action,
        kind: id.kind().as_str(),
        subject: id.to_string(),
        before: text(before.map(Item::told).transpose()?),
        after: text(told),
    })
}

/// A row that is to be written, with its four columns that are no part of the item.
struct NewRow<'a> {
    cells: Vec<Cell>,
    created_by: &'a str,
    times_and_version: [i64; 3],
}

impl<'a> NewRow<'a> {
    fn of(
        difference: &'a ItemChange,
        item: &Item,
        (by, at_micros, version): (&'a str, u64, u64),
    ) -> Result<Self, DatabaseError> {
        let (created_by, created_at) = match &difference.before {
            Some(before) => (&*before.created_by, before.created_at_micros),
            None => (by, at_micros),
        };
        let times_and_version =
            [signed(created_at, "created_at")?, signed(at_micros, "at")?, signed(version, "version")?];
        Ok(NewRow { cells: item.cells()?, created_by, times_and_version })
    }

    fn values(&self) -> Vec<Value<'_>> {
        let mut values: Vec<Value<'_>> = self.cells.iter().map(Cell::value).collect();
        values.push(Value::Text(self.created_by));
        values.extend(self.times_and_version.map(Value::Int));
        values
    }
}

impl Transaction {
    /// Writes what differs in one table. Nobody else writes there until we are done.
    async fn write(
        &mut self,
        kind: ItemKind,
        by: &str,
        at_micros: u64,
        version: u64,
        differences: &[ItemChange],
    ) -> Result<(), DatabaseError> {
        let (mut gone, mut new, mut others) = (Vec::new(), Vec::new(), Vec::new());
        let mut of_kind: Vec<&ItemChange> = differences.iter().filter(|one| one.id.kind() == kind).collect();
        // The order in which usage is written too, so that neither waits for the other in a circle.
        of_kind.sort_unstable_by_key(|difference| &difference.id);
        for difference in of_kind {
            let Some(item) = &difference.after else {
                gone.push(&difference.id);
                continue;
            };
            let row = NewRow::of(difference, item, (by, at_micros, version))?;
            if difference.before.is_some() { others.push(row) } else { new.push(row) }
        }
        let table = Table::of(kind);
        for ids in gone.chunks(CHUNK_ROWS) {
            let mut query = Query::new("DELETE FROM ");
            query.push(table.name);
            table.push_where(&mut query, ids);
            self.execute(&query).await?;
        }
        // Not one statement for both: MySQL would replace another row that has the same unique value.
        self.put(table, &new, false).await?;
        self.put(table, &others, true).await
    }

    async fn put(
        &mut self,
        table: &Table,
        rows: &[NewRow<'_>],
        is_replacing: bool,
    ) -> Result<(), DatabaseError> {
        for piece in chunks(rows, |row| row.cells.iter().map(Cell::weight).sum()) {
            let mut query = table.insert(piece.iter().map(NewRow::values));
            if is_replacing {
                table.push_replacing(&mut query, self.engine());
            }
            self.execute(&query).await?;
        }
        Ok(())
    }

    /// The items with these ids that are there.
    pub(super) async fn find(
        &mut self,
        ids: &[&ItemId],
    ) -> Result<HashMap<ItemId, StoredItem>, DatabaseError> {
        let mut found = HashMap::with_capacity(ids.len());
        for kind in ItemKind::ALL {
            let of_kind: Vec<&ItemId> = ids.iter().copied().filter(|id| id.kind() == kind).collect();
            let table = Table::of(kind);
            for piece in of_kind.chunks(CHUNK_ROWS) {
                let mut query = table.select();
                table.push_where(&mut query, piece);
                for row in &self.rows(&query).await? {
                    let stored = StoredItem::read(kind, row)?;
                    found.insert(stored.id(), stored);
                }
            }
        }
        Ok(found)
    }

    /// Makes a change final, and tells who listens.
    async fn commit_and_notify(mut self) -> Result<(), DatabaseError> {
        if self.engine() == Engine::Postgres {
            self.execute(&Query::with("SELECT pg_notify(?, '')", [Value::Text(CHANNEL)])).await?;
        }
        self.commit().await
    }
}

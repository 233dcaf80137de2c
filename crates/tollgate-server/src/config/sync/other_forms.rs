//! Items by what their ids are read as, where spellings are folded.
//!
//! What is written through the admin API is stored as it is read. What was written before, or by a node that reads otherwise,
//! keeps its spelling: it is found by what it is read as, changed in place, and counted for. Of two that are read the same the
//! one counts that is spelled as it is read.

use std::collections::HashMap;

use tollgate::Endpoint;
use tollgate::identity::{ID_BYTES_MAX, NormalForm, Normalization};
use tollgate_stores::sql::{BlockKind, Item, ItemId};

use super::ConfigSync;
use crate::http::error::ApiError;

/// Items that are stored in another spelling than they are read in, by what they are read as.
#[derive(Clone, Debug, Default)]
pub(super) struct OtherForms(HashMap<ItemId, Other>);

#[derive(Clone, Debug)]
enum Other {
    /// There is this one alone.
    StoredAs(ItemId),
    /// There are several, one of which counts.
    Several,
}

impl ConfigSync {
    /// The id under which the database holds what is meant by `id`, in whichever spelling.
    pub(crate) fn stored_as(&self, id: &ItemId, spelling: &Normalization) -> ItemId {
        if spelling.is_exact() {
            return id.clone();
        }
        self.other_forms.load().stored_as(read_as(id, spelling))
    }

    /// An item as it is to be stored: its facts as they are read, under the id that it has if it is there already.
    ///
    /// # Errors
    /// When a fact is too long as it is read.
    pub(crate) fn to_store(&self, item: Item, spelling: &Normalization) -> Result<Item, TooLong> {
        let read = item_as_read(item, spelling)?;
        let id = self.stored_as(&read.id(), spelling);
        Ok(renamed(read, id))
    }
}

impl OtherForms {
    /// Notes an item that is read as `read`; `is_known` says whether there is another one that is.
    pub(super) fn note(&mut self, read: ItemId, stored: ItemId, is_known: bool) {
        self.0.insert(read, if is_known { Other::Several } else { Other::StoredAs(stored) });
    }

    /// How the item is stored that is read so.
    pub(super) fn stored_as(&self, read: ItemId) -> ItemId {
        match self.0.get(&read) {
            Some(Other::StoredAs(stored)) => stored.clone(),
            _ => read,
        }
    }

    /// Whether a change of this item can be told from the change alone: it is the only one that is read so.
    pub(super) fn is_alone(&self, id: &ItemId, spelling: &Normalization) -> bool {
        let read = read_as(id, spelling);
        match self.0.get(&read) {
            None => read == *id,
            Some(Other::StoredAs(stored)) => stored == id,
            Some(Other::Several) => false,
        }
    }

    /// The same without those of these that are gone; nothing if none of them is here.
    pub(super) fn without(&self, gone: &[&ItemId], spelling: &Normalization) -> Option<Self> {
        let is_here = |(read, id): &(ItemId, &ItemId)| matches!(self.0.get(read), Some(Other::StoredAs(stored)) if stored == *id);
        let gone: Vec<(ItemId, &ItemId)> =
            gone.iter().map(|id| (read_as(id, spelling), *id)).filter(is_here).collect();
        if gone.is_empty() {
            return None;
        }
        let mut next = self.clone();
        for (read, _) in &gone {
            next.0.remove(read);
        }
        Some(next)
    }

    /// How many are there in several spellings.
    pub(super) fn several(&self) -> usize {
        self.0.values().filter(|other| matches!(other, Other::Several)).count()
    }
}

/// An id that is too long as it is read.
#[derive(Debug, thiserror::Error)]
#[error("is {length} bytes long after normalization; the maximum is {ID_BYTES_MAX}")]
pub(crate) struct TooLong {
    /// Which.
    pub(crate) field: &'static str,
    length: usize,
}

impl From<TooLong> for ApiError {
    fn from(error: TooLong) -> Self {
        ApiError::invalid(error.field, error.to_string())
    }
}

/// An id as its facts are read.
pub(super) fn read_as(id: &ItemId, spelling: &Normalization) -> ItemId {
    match id {
        ItemId::Quota(user) => ItemId::Quota(spelling.ids.user.normalize(user).into_owned()),
        ItemId::Block { kind, subject } => {
            ItemId::Block { kind: *kind, subject: fold_of(*kind, spelling).normalize(subject).into_owned() }
        }
        ItemId::Limit { user, endpoint } => ItemId::Limit {
            user: spelling.ids.user.normalize(user).into_owned(),
            endpoint: endpoint_as_read(endpoint, spelling),
        },
        ItemId::Rule(_) | ItemId::Tier(_) | ItemId::Key(_) => id.clone(),
    }
}

/// An item with all of its facts as they are read.
///
/// # Errors
/// When one of them is too long then; it is named.
fn item_as_read(mut item: Item, spelling: &Normalization) -> Result<Item, TooLong> {
    if spelling.is_exact() {
        return Ok(item);
    }
    let ids = spelling.ids;
    match &mut item {
        Item::Quota(quota) => fold("user_id", ids.user, &mut quota.user)?,
        Item::Block(block) => fold("client", fold_of(block.kind, spelling), &mut block.subject)?,
        Item::Limit(limit) => {
            fold("user_id", ids.user, &mut limit.user)?;
            limit.endpoint = endpoint_as_read(&limit.endpoint, spelling);
        }
        Item::Key(key) => {
            key.user.as_mut().map_or(Ok(()), |user| fold("user_id", ids.user, user))?;
            key.tenant.as_mut().map_or(Ok(()), |tenant| fold("tenant", ids.tenant, tenant))?;
        }
        Item::Rule(_) | Item::Tier(_) => {}
    }
    Ok(item)
}

/// The same item under another id of its kind.
fn renamed(mut item: Item, id: ItemId) -> Item {
    match (&mut item, id) {
        (Item::Quota(quota), ItemId::Quota(user)) => quota.user = user,
        (Item::Block(block), ItemId::Block { subject, .. }) => block.subject = subject,
        (Item::Limit(limit), ItemId::Limit { user, endpoint }) => {
            (limit.user, limit.endpoint) = (user, endpoint);
        }
        _ => {}
    }
    item
}

fn fold_of(kind: BlockKind, spelling: &Normalization) -> NormalForm {
    match kind {
        BlockKind::User => spelling.ids.user,
        BlockKind::Tenant => spelling.ids.tenant,
        BlockKind::Login => spelling.ids.login,
        BlockKind::ApiKey | BlockKind::Ip => NormalForm::Exact,
    }
}

fn endpoint_as_read(endpoint: &str, spelling: &Normalization) -> String {
    match Endpoint::parse(endpoint) {
        Ok(read) => spelling.normalize_endpoint(read).as_str().to_owned(),
        // The door lets in nothing like it.
        Err(_) => endpoint.to_owned(),
    }
}

fn fold(field: &'static str, fold: NormalForm, id: &mut String) -> Result<(), TooLong> {
    let folded = fold.normalize(id).into_owned();
    if folded.len() > ID_BYTES_MAX {
        return Err(TooLong { field, length: folded.len() });
    }
    *id = folded;
    Ok(())
}

//! Normalizes the ids of items before they are stored or looked up, as `[identity]` says.
//!
//! Items that were stored under other settings keep their ids. They apply to the normalized client, but the API does not find
//! them by the normalized id: exporting and importing the configuration normalizes them.

use tollgate::Endpoint;
use tollgate::identity::{ID_BYTES_MAX, NormalForm, Normalization};
use tollgate_stores::sql::{BlockKind, Item, ItemId};

/// An id that is too long once normalized.
#[derive(Debug, thiserror::Error)]
#[error("is {length} bytes long after normalization; the maximum is {ID_BYTES_MAX}")]
pub(crate) struct NormalizedTooLong {
    /// The field of the id.
    pub(crate) field: &'static str,
    length: usize,
}

/// The normalized id of an item.
pub(crate) fn item_id(id: &ItemId, normalization: &Normalization) -> ItemId {
    let tenant = id.tenant().map(|tenant| normalization.ids.tenant.normalize(tenant).into_owned());
    match id {
        ItemId::Quota { user, .. } => {
            ItemId::Quota { tenant, user: normalization.ids.user.normalize(user).into_owned() }
        }
        ItemId::Block { kind, subject, .. } => {
            let subject = form_of(*kind, normalization).normalize(subject).into_owned();
            ItemId::Block { tenant, kind: *kind, subject }
        }
        ItemId::Limit { user, endpoint, .. } => ItemId::Limit {
            tenant,
            user: normalization.ids.user.normalize(user).into_owned(),
            endpoint: normalize_endpoint(endpoint, normalization),
        },
        ItemId::Rule(_) | ItemId::Tier(_) | ItemId::Key(_) => id.clone(),
    }
}

/// Whether the id of an item is normalized.
pub(crate) fn is_normalized(id: &ItemId, normalization: &Normalization) -> bool {
    normalization.is_exact() || item_id(id, normalization) == *id
}

/// An item with all ids normalized.
///
/// # Errors
/// When an id is too long once normalized.
pub(crate) fn item(mut item: Item, normalization: &Normalization) -> Result<Item, NormalizedTooLong> {
    if normalization.is_exact() {
        return Ok(item);
    }
    let ids = normalization.ids;
    match &mut item {
        Item::Quota(quota) => {
            normalize_tenant(ids.tenant, &mut quota.tenant)?;
            normalize("user_id", ids.user, &mut quota.user)?;
        }
        Item::Block(block) => {
            normalize_tenant(ids.tenant, &mut block.tenant)?;
            normalize("client", form_of(block.kind, normalization), &mut block.subject)?;
        }
        Item::Limit(limit) => {
            normalize_tenant(ids.tenant, &mut limit.tenant)?;
            normalize("user_id", ids.user, &mut limit.user)?;
            limit.endpoint = normalize_endpoint(&limit.endpoint, normalization);
        }
        Item::Key(key) => {
            key.user.as_mut().map_or(Ok(()), |user| normalize("user_id", ids.user, user))?;
            normalize_tenant(ids.tenant, &mut key.tenant)?;
        }
        Item::Rule(_) | Item::Tier(_) => {}
    }
    Ok(item)
}

fn form_of(kind: BlockKind, normalization: &Normalization) -> NormalForm {
    match kind {
        BlockKind::User => normalization.ids.user,
        BlockKind::Tenant => normalization.ids.tenant,
        BlockKind::Login => normalization.ids.login,
        BlockKind::ApiKey | BlockKind::Ip => NormalForm::Exact,
    }
}

/// Keeps an invalid endpoint, which only the raw table can contain.
fn normalize_endpoint(endpoint: &str, normalization: &Normalization) -> String {
    match Endpoint::parse(endpoint) {
        Ok(parsed) => normalization.normalize_endpoint(parsed).as_str().to_owned(),
        Err(_) => endpoint.to_owned(),
    }
}

fn normalize_tenant(form: NormalForm, tenant: &mut Option<String>) -> Result<(), NormalizedTooLong> {
    tenant.as_mut().map_or(Ok(()), |tenant| normalize("tenant", form, tenant))
}

fn normalize(field: &'static str, form: NormalForm, id: &mut String) -> Result<(), NormalizedTooLong> {
    let normalized = form.normalize(id).into_owned();
    if normalized.len() > ID_BYTES_MAX {
        return Err(NormalizedTooLong { field, length: normalized.len() });
    }
    *id = normalized;
    Ok(())
}

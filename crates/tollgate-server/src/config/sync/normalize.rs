//! Normalization of items when they enter: stored ids are compared with those of normalized requests.
//!
//! Items that were stored before `identity.normalize` was changed keep their ids. They must be imported again.

use tollgate::Endpoint;
use tollgate::identity::{ID_BYTES_MAX, NormalForm, Normalization};
use tollgate_stores::sql::{BlockKind, Item, ItemId};

use crate::http::error::ApiError;

/// An id that exceeds the maximum length after normalization.
#[derive(Debug, thiserror::Error)]
#[error("is {length} bytes long after normalization; the maximum is {ID_BYTES_MAX}")]
pub(crate) struct NormalizedIdTooLong {
    pub(crate) field: &'static str,
    length: usize,
}

impl From<NormalizedIdTooLong> for ApiError {
    fn from(error: NormalizedIdTooLong) -> Self {
        ApiError::invalid(error.field, error.to_string())
    }
}

/// The id as it is stored.
pub(crate) fn normalize_id(id: &ItemId, normalization: &Normalization) -> ItemId {
    let user = |id: &str| normalization.ids.user.normalize(id).into_owned();
    match id {
        ItemId::Quota(id) => ItemId::Quota(user(id)),
        ItemId::Block { kind, subject } => {
            let subject = block_form(*kind, normalization).normalize(subject).into_owned();
            ItemId::Block { kind: *kind, subject }
        }
        ItemId::Limit { user: id, endpoint } => {
            ItemId::Limit { user: user(id), endpoint: normalize_endpoint(endpoint, normalization) }
        }
        ItemId::Rule(_) | ItemId::Tier(_) | ItemId::Key(_) => id.clone(),
    }
}

/// The item as it is stored. Rules are stored as written; the rule set normalizes them.
///
/// # Errors
/// When an id is too long after normalization.
pub(crate) fn normalize_item(
    mut item: Item,
    normalization: &Normalization,
) -> Result<Item, NormalizedIdTooLong> {
    let ids = normalization.ids;
    match &mut item {
        Item::Quota(quota) => normalize("user_id", ids.user, &mut quota.user)?,
        Item::Block(block) => {
            normalize("client", block_form(block.kind, normalization), &mut block.subject)?;
        }
        Item::Limit(limit) => {
            normalize("user_id", ids.user, &mut limit.user)?;
            limit.endpoint = normalize_endpoint(&limit.endpoint, normalization);
        }
        Item::Key(key) => {
            key.user.as_mut().map_or(Ok(()), |user| normalize("user_id", ids.user, user))?;
            key.tenant.as_mut().map_or(Ok(()), |tenant| normalize("tenant", ids.tenant, tenant))?;
        }
        Item::Rule(_) | Item::Tier(_) => {}
    }
    Ok(item)
}

fn block_form(kind: BlockKind, normalization: &Normalization) -> NormalForm {
    match kind {
        BlockKind::User => normalization.ids.user,
        BlockKind::Tenant => normalization.ids.tenant,
        BlockKind::Login => normalization.ids.login,
        BlockKind::ApiKey | BlockKind::Ip => NormalForm::Exact,
    }
}

fn normalize_endpoint(endpoint: &str, normalization: &Normalization) -> String {
    let parsed = Endpoint::parse(endpoint).ok();
    parsed.map_or_else(|| endpoint.to_owned(), |parsed| normalization.normalize_endpoint(parsed).to_string())
}

fn normalize(field: &'static str, form: NormalForm, id: &mut String) -> Result<(), NormalizedIdTooLong> {
    let normalized = form.normalize(id).into_owned();
    if normalized.len() > ID_BYTES_MAX {
        return Err(NormalizedIdTooLong { field, length: normalized.len() });
    }
    *id = normalized;
    Ok(())
}

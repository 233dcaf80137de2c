//! Identifiers of items, normalized as `[identity]` says.

use tollgate_stores::sql::{Item, ItemId};

use crate::http::Call;
use crate::http::error::ApiError;

/// The id under which the database holds an item.
pub(crate) fn id(call: &Call, id: &ItemId) -> ItemId {
    call.app.config_sync().stored_as(id, call.app.limiter().rules().normalization())
}

/// An item with its identifiers normalized.
pub(crate) fn item(call: &Call, item: Item) -> Result<Item, ApiError> {
    Ok(call.app.config_sync().to_store(item, call.app.limiter().rules().normalization())?)
}

//! Identifiers of items, normalized as `[identity]` says.

use tollgate_stores::sql::{Item, ItemId};

use crate::config::normalize::{self, NormalizedTooLong};
use crate::http::Call;
use crate::http::error::ApiError;

impl From<NormalizedTooLong> for ApiError {
    fn from(error: NormalizedTooLong) -> Self {
        ApiError::invalid(error.field, error.to_string())
    }
}

pub(crate) fn id(call: &Call, id: &ItemId) -> ItemId {
    normalize::item_id(id, call.app.limiter().rules().normalization())
}

pub(crate) fn item(call: &Call, item: Item) -> Result<Item, ApiError> {
    Ok(normalize::item(item, call.app.limiter().rules().normalization())?)
}

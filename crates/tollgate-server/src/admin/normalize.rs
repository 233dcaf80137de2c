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

impl Call {
    /// The normalized id of an item.
    pub(crate) fn normalize_id(&self, id: &ItemId) -> ItemId {
        normalize::item_id(id, self.app.limiter().rules().normalization())
    }

    /// An item with its ids normalized.
    pub(crate) fn normalize_item(&self, item: Item) -> Result<Item, ApiError> {
        Ok(normalize::item(item, self.app.limiter().rules().normalization())?)
    }
}

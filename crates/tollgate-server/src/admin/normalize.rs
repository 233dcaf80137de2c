//! Identifiers of items, normalized as `[identity]` says.

use tollgate::identity::NormalForm;
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
    pub(crate) fn stored_as(&self, id: &ItemId) -> ItemId {
        normalize::item_id(id, self.app.limiter().rules().normalization())
    }

    /// An item with its ids normalized.
    pub(crate) fn to_store(&self, item: Item) -> Result<Item, ApiError> {
        Ok(normalize::item(item, self.app.limiter().rules().normalization())?)
    }
}

/// An id as it is asked for, which is how older keys may have it, and as it is read.
pub(crate) fn spellings(id: Option<&str>, fold: NormalForm) -> Vec<String> {
    let Some(id) = id else { return Vec::new() };
    let mut all = vec![id.to_owned(), fold.normalize(id).into_owned()];
    all.dedup();
    all
}

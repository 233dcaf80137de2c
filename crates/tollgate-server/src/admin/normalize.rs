//! Items and ids of admin calls, normalized by the rule set in force.

use tollgate_stores::sql::{Item, ItemId};

use crate::config::sync::normalize::{normalize_id, normalize_item};
use crate::http::Call;
use crate::http::error::ApiError;

impl Call {
    /// The id as it is stored.
    pub(crate) fn normalize_id(&self, id: &ItemId) -> ItemId {
        normalize_id(id, self.app.limiter().rules().normalization())
    }

    /// The item as it is stored.
    pub(crate) fn normalize_item(&self, item: Item) -> Result<Item, ApiError> {
        Ok(normalize_item(item, self.app.limiter().rules().normalization())?)
    }
}

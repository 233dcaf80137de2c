//! Items in the spelling that they are stored in, whichever they were asked for in.

use tollgate::identity::NormalForm;
use tollgate_stores::sql::{Item, ItemId};

use crate::http::Call;
use crate::http::error::ApiError;

impl Call {
    /// The id under which the database holds what is meant.
    pub(crate) fn stored_as(&self, id: &ItemId) -> ItemId {
        self.app.config_sync().stored_as(id, self.app.limiter().rules().normalization())
    }

    /// An item as it is to be stored.
    pub(crate) fn to_store(&self, item: Item) -> Result<Item, ApiError> {
        Ok(self.app.config_sync().to_store(item, self.app.limiter().rules().normalization())?)
    }
}

/// An id as it is asked for, which is how older keys may have it, and as it is read.
pub(crate) fn spellings(id: Option<&str>, fold: NormalForm) -> Vec<String> {
    let Some(id) = id else { return Vec::new() };
    let mut all = vec![id.to_owned(), fold.normalize(id).into_owned()];
    all.dedup();
    all
}

//! Blocks as the database stores them, for lists while it is unreachable. The accounts keep only hashes of the clients.

use std::collections::BTreeMap;

use tollgate_stores::sql::{Item, ItemId, StoredItem};

/// More blocks are not kept: lists of them need the database.
const BLOCKS_MAX: usize = 10_000;

/// The blocks of the database by client.
#[derive(Clone, Debug, Default)]
pub(super) struct ListedBlocks {
    blocks: BTreeMap<ItemId, StoredItem>,
    /// Set once there were more than are kept, until the next full load.
    is_incomplete: bool,
}

impl ListedBlocks {
    /// Keeps an item if it is a block.
    pub(super) fn put(&mut self, stored: &StoredItem) {
        if !matches!(stored.item, Item::Block(_)) || self.is_incomplete {
            return;
        }
        self.blocks.insert(stored.item.id(), stored.clone());
        if self.blocks.len() > BLOCKS_MAX {
            *self = ListedBlocks { blocks: BTreeMap::new(), is_incomplete: true };
        }
    }

    pub(super) fn remove(&mut self, id: &ItemId) {
        self.blocks.remove(id);
    }

    /// All blocks by client, unless there are too many.
    pub(super) fn list(&self) -> Option<Vec<StoredItem>> {
        (!self.is_incomplete).then(|| self.blocks.values().cloned().collect())
    }
}

#[cfg(test)]
mod tests {
    use tollgate_stores::sql::{BlockItem, BlockKind};

    use super::*;

    fn block(subject: String) -> StoredItem {
        let item = Item::Block(BlockItem {
            tenant: None,
            kind: BlockKind::User,
            subject,
            reason: String::new(),
            until_micros: None,
        });
        StoredItem { item, version: 1, created_by: String::new(), created_at_micros: 0, updated_at_micros: 0 }
    }

    #[test]
    fn too_many_blocks_are_not_listed() {
        let mut listed = ListedBlocks::default();
        for number in 0..BLOCKS_MAX {
            listed.put(&block(format!("{number:05}")));
        }
        assert_eq!(listed.list().unwrap().len(), BLOCKS_MAX);
        listed.put(&block("one more".to_owned()));
        assert_eq!(listed.list(), None);
        listed.remove(&block("one more".to_owned()).item.id());
        assert_eq!(listed.list(), None, "the others are gone");
    }
}

//! Reading items: one, a page, everything.

use tollgate::identity::ID_BYTES_MAX;

use super::table::{Table, check_text};
use super::{BlockKind, ItemId, ItemKind, StoredItem};
use crate::sql::Database;
use crate::sql::engine::{Transaction, signed};
use crate::sql::error::{DatabaseError, ValueError};
use crate::sql::query::{Query, Value};

/// The most items of one answer: a page of a thousand, and one that tells whether there are more.
pub const ITEM_COUNT_MAX: u32 = 1001;

/// How many rows are in memory at once while everything is read.
const LOAD_COUNT: u32 = 4000;

/// Which items of a kind. What is not said does not matter, nor does what the kind does not have.
#[derive(Clone, Debug, Default)]
pub struct ItemFilter {
    /// Rules and tiers whose name, quotas and limits whose user, keys whose id, blocks whose subject begins like this.
    pub prefix: Option<String>,
    /// Quotas and keys of this tier.
    pub tier: Option<String>,
    /// Quotas, keys and limits of one of these users; of all if there are none. A user may have several spellings.
    pub users: Vec<String>,
    /// Keys of one of these tenants; of all if there are none.
    pub tenants: Vec<String>,
    /// Rules with this action. One that says none rejects.
    pub action: Option<String>,
    /// Rules that are switched on, or off.
    pub enabled: Option<bool>,
    /// Blocks of this kind.
    pub block_kind: Option<BlockKind>,
    /// Keys that are neither revoked nor expired, blocks that are in force, at this instant.
    pub active_at_micros: Option<u64>,
}

impl Database {
    /// One item, if it is there.
    ///
    /// # Errors
    /// When the database cannot be asked, or somebody else has written what cannot be read.
    pub async fn get(&self, id: &ItemId) -> Result<Option<StoredItem>, DatabaseError> {
        Table::of(id.kind()).check_id(id)?;
        let mut transaction = self.pool.begin_snapshot().await?;
        let found = transaction.find(&[id]).await?;
        transaction.end().await?;
        Ok(found.into_values().next())
    }

    /// Items of a kind behind `after`, in the order of the bytes of their ids. To go on, ask again with the last id. At most
    /// `count_max` and never more than [`ITEM_COUNT_MAX`].
    ///
    /// # Errors
    /// When `after` is of another kind, the database cannot be asked, or somebody else has written what cannot be read.
    pub async fn list(
        &self,
        kind: ItemKind,
        filter: &ItemFilter,
        after: Option<&ItemId>,
        count_max: u32,
    ) -> Result<Vec<StoredItem>, DatabaseError> {
        filter.check()?;
        if let Some(after) = after {
            if after.kind() != kind {
                return Err(DatabaseError::value("after", ValueError::Meaningless));
            }
            Table::of(kind).check_id(after)?;
        }
        let mut transaction = self.pool.begin_snapshot().await?;
        let page = transaction.page(kind, filter, after, count_max.min(ITEM_COUNT_MAX)).await;
        transaction.end_with(page).await
    }

    /// Everything at one version, item by item; the version. Only a few thousand rows are in memory at once.
    ///
    /// # Errors
    /// When the database cannot be asked, or somebody else has written what cannot be read. Some items may have been told.
    pub async fn load(&self, mut each: impl FnMut(StoredItem) + Send) -> Result<u64, DatabaseError> {
        let mut transaction = self.pool.begin_snapshot().await?;
        let version = transaction.config_version().await?;
        for kind in ItemKind::ALL {
            let mut after = None;
            loop {
                let page = transaction.page(kind, &ItemFilter::default(), after.as_ref(), LOAD_COUNT).await?;
                let is_last = page.len() < LOAD_COUNT as usize;
                after = page.last().map(StoredItem::id);
                page.into_iter().for_each(&mut each);
                if is_last {
                    break;
                }
            }
        }
        transaction.end().await?;
        Ok(version)
    }
}

impl Transaction {
    /// Items behind one. Where two columns name an item, first those with the same first, then the rest: each a range of the
    /// index on every engine.
    async fn page(
        &mut self,
        kind: ItemKind,
        filter: &ItemFilter,
        after: Option<&ItemId>,
        count_max: u32,
    ) -> Result<Vec<StoredItem>, DatabaseError> {
        let count_max = count_max as usize;
        let mut page = Vec::new();
        if let Some([Some(first), Some(second)]) = after.map(ItemId::keys) {
            let behind = [(" = ", first), (" > ", second)];
            page = self.range(kind, filter, &behind, count_max).await?;
        }
        if page.len() < count_max {
            let behind = after.and_then(|after| after.keys()[0]).map(|first| (" > ", first));
            page.extend(self.range(kind, filter, behind.as_slice(), count_max - page.len()).await?);
        }
        Ok(page)
    }

    async fn range(
        &mut self,
        kind: ItemKind,
        filter: &ItemFilter,
        behind: &[(&'static str, &str)],
        count_max: usize,
    ) -> Result<Vec<StoredItem>, DatabaseError> {
        let table = Table::of(kind);
        let upper = filter.prefix.as_deref().and_then(successor);
        let mut query = table.select();
        query.push(" WHERE 1 = 1");
        for ((comparison, value), key) in behind.iter().zip(table.keys()) {
            query.push(" AND ").push(key).push(comparison).bind(Value::Text(value));
        }
        filter.push(&mut query, kind, upper.as_deref())?;
        query.push(" ORDER BY ").list(table.keys()).push(" LIMIT ");
        query.bind(Value::Int(i64::try_from(count_max).unwrap_or(i64::MAX)));
        self.rows(&query).await?.iter().map(|row| StoredItem::read(kind, row)).collect()
    }
}

impl ItemFilter {
    fn check(&self) -> Result<(), DatabaseError> {
        let texts = [
            ("prefix", self.prefix.as_slice()),
            ("tier", self.tier.as_slice()),
            ("user", &self.users),
            ("tenant", &self.tenants),
            ("action", self.action.as_slice()),
        ];
        for (field, texts) in texts {
            texts.iter().try_for_each(|text| check_text(field, text, ID_BYTES_MAX))?;
        }
        Ok(())
    }

    fn push<'a>(
        &'a self,
        query: &mut Query<'a>,
        kind: ItemKind,
        upper: Option<&'a str>,
    ) -> Result<(), DatabaseError> {
        self.push_prefix(query, kind, upper);
        let (action, tier) = (self.action.as_slice(), self.tier.as_slice());
        let texts: &[(&'static str, &'a [String])] = match kind {
            ItemKind::Rule => &[(" AND COALESCE(action, 'reject') IN (", action)],
            ItemKind::Tier | ItemKind::Block => &[],
            ItemKind::Quota => &[(" AND tier IN (", tier), (" AND user_id IN (", &self.users)],
            ItemKind::Key => &[
                (" AND tier IN (", tier),
                (" AND user_id IN (", &self.users),
                (" AND tenant IN (", &self.tenants),
            ],
            ItemKind::Limit => &[(" AND user_id IN (", &self.users)],
        };
        for (text, values) in texts.iter().filter(|(_, values)| !values.is_empty()) {
            query.push(text).bind_all(values.iter().map(|value| Value::Text(value))).push(")");
        }
        if let (ItemKind::Rule, Some(enabled)) = (kind, self.enabled) {
            query.push(" AND COALESCE(enabled, 1) = ").bind(Value::Int(enabled.into()));
        }
        if let (ItemKind::Block, Some(block_kind)) = (kind, self.block_kind) {
            query.push(" AND kind = ").bind(Value::Text(block_kind.as_str()));
        }
        let Some(at) = self.active_at_micros else { return Ok(()) };
        let at = Value::Int(signed(at, "active_at")?);
        match kind {
            ItemKind::Key => {
                query.push(" AND revoked_at_micros IS NULL AND (expires_at_micros IS NULL");
                query.push(" OR expires_at_micros > ").bind(at).push(")");
            }
            ItemKind::Block => {
                query.push(" AND (until_micros IS NULL OR until_micros > ").bind(at).push(")");
            }
            ItemKind::Rule | ItemKind::Tier | ItemKind::Quota | ItemKind::Limit => {}
        }
        Ok(())
    }

    /// Not LIKE: it has signs of its own, and some engines take `a` and `A` for one in it.
    fn push_prefix<'a>(&'a self, query: &mut Query<'a>, kind: ItemKind, upper: Option<&'a str>) {
        let Some(prefix) = &self.prefix else { return };
        let column = match kind {
            ItemKind::Rule | ItemKind::Tier => "name",
            ItemKind::Quota | ItemKind::Limit => "user_id",
            ItemKind::Key => "id",
            ItemKind::Block => "subject",
        };
        query.push(" AND ").push(column).push(" >= ").bind(Value::Text(prefix));
        if let Some(upper) = upper {
            query.push(" AND ").push(column).push(" < ").bind(Value::Text(upper));
        }
    }
}

/// The first text behind all that begin with this one; none if there is no such text.
fn successor(prefix: &str) -> Option<String> {
    let mut kept = prefix.to_owned();
    while let Some(last) = kept.pop() {
        let next = if last == '\u{d7ff}' { Some('\u{e000}') } else { char::from_u32(u32::from(last) + 1) };
        if let Some(next) = next {
            kept.push(next);
            return Some(kept);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_where_its_bytes_do() {
        assert_eq!(successor("ab").as_deref(), Some("ac"));
        assert_eq!(successor("a\u{7f}").as_deref(), Some("a\u{80}"));
        assert_eq!(successor("\u{d7ff}").as_deref(), Some("\u{e000}"));
        assert_eq!(successor("a\u{10ffff}").as_deref(), Some("b"));
        assert_eq!(successor("\u{10ffff}\u{10ffff}"), None);
        assert_eq!(successor(""), None);
    }
}

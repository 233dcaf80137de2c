//! Reads items: one, a page, or all.

use std::collections::HashMap;

use tollgate::accounts::BlockKind;
use tollgate::identity::ID_BYTES_MAX;

use super::row::stored_item;
use super::table::{CHUNK_ROWS, Table, check_text};
use super::{ItemId, ItemKind, StoredItem};
use crate::sql::engine::{Pool, Transaction, to_i64};
use crate::sql::error::{DatabaseError, ValueError};
use crate::sql::query::Query;
use crate::sql::version;

/// Maximum number of items in one result: a page of 1000, plus one that shows whether there is a next page.
pub const ITEM_COUNT_MAX: u32 = 1001;

/// Rows in memory at once while loading everything.
const LOAD_COUNT: u32 = 4000;

/// Selects items of a kind. `None` and empty lists match everything; fields that the kind does not have are ignored.
#[derive(Clone, Debug, Default)]
pub struct ItemFilter {
    /// Prefix of the name (rules, tiers), user (quotas, limits), id (keys) or subject (blocks).
    pub prefix: Option<String>,
    /// Quotas and keys of this tier.
    pub tier: Option<String>,
    /// Quotas, keys and limits of one of these users.
    pub users: Vec<String>,
    /// Quotas, keys, blocks and limits of one of these tenants.
    pub tenants: Vec<String>,
    /// Rules with this action. The default action is `reject`.
    pub action: Option<String>,
    /// Rules that are enabled, or disabled.
    pub enabled: Option<bool>,
    /// Blocks of this kind.
    pub block_kind: Option<BlockKind>,
    /// Keys and blocks in force at this instant.
    pub active_at_micros: Option<u64>,
    /// Keys that expire before this instant.
    pub expires_before_micros: Option<u64>,
    /// Quotas of users that are blocked, or not, at an instant.
    pub blocked: Option<(bool, u64)>,
    /// Quotas of users with a request at or after this instant.
    pub requested_since_micros: Option<u64>,
    /// Quotas of users without a request at or after this instant.
    pub idle_since_micros: Option<u64>,
}

pub(in crate::sql) async fn get(pool: &Pool, id: &ItemId) -> Result<Option<StoredItem>, DatabaseError> {
    Table::of(id.kind()).check_id(id)?;
    let mut transaction = pool.begin_snapshot().await?;
    let found = find(&mut transaction, &[id]).await?;
    transaction.rollback().await?;
    Ok(found.into_values().next())
}

pub(in crate::sql) async fn list(
    pool: &Pool,
    kind: ItemKind,
    filter: &ItemFilter,
    after: Option<&ItemId>,
    count_max: u32,
) -> Result<Vec<StoredItem>, DatabaseError> {
    filter.check()?;
    if let Some(after) = after {
        if after.kind() != kind {
            return Err(DatabaseError::value("after", ValueError::NotAllowed));
        }
        Table::of(kind).check_id(after)?;
    }
    let mut transaction = pool.begin_snapshot().await?;
    let page = page(&mut transaction, kind, filter, after, count_max.min(ITEM_COUNT_MAX)).await;
    transaction.rollback_with(page).await
}

pub(in crate::sql) async fn load(
    pool: &Pool,
    mut each: impl FnMut(StoredItem) + Send,
) -> Result<u64, DatabaseError> {
    let mut transaction = pool.begin_snapshot().await?;
    let version = version::current(&mut transaction).await?;
    for kind in ItemKind::ALL {
        let mut after = None;
        loop {
            let page =
                page(&mut transaction, kind, &ItemFilter::default(), after.as_ref(), LOAD_COUNT).await?;
            let is_last = page.len() < LOAD_COUNT as usize;
            after = page.last().map(|stored| stored.item.id());
            page.into_iter().for_each(&mut each);
            if is_last {
                break;
            }
        }
    }
    transaction.rollback().await?;
    Ok(version)
}

/// Those of these items that exist.
pub(in crate::sql) async fn find(
    transaction: &mut Transaction,
    ids: &[&ItemId],
) -> Result<HashMap<ItemId, StoredItem>, DatabaseError> {
    let mut found = HashMap::with_capacity(ids.len());
    for kind in ItemKind::ALL {
        let of_kind: Vec<&ItemId> = ids.iter().copied().filter(|id| id.kind() == kind).collect();
        let table = Table::of(kind);
        for piece in of_kind.chunks(CHUNK_ROWS) {
            let mut query = table.select();
            table.push_where(&mut query, piece);
            for row in &transaction.rows(&query).await? {
                let stored = stored_item(kind, row)?;
                found.insert(stored.item.id(), stored);
            }
        }
    }
    Ok(found)
}

/// The items after one. With a key of several columns, first the rest of the same leading columns, then the following ones: each
/// is a range scan of the index on every engine.
async fn page(
    transaction: &mut Transaction,
    kind: ItemKind,
    filter: &ItemFilter,
    after: Option<&ItemId>,
    count_max: u32,
) -> Result<Vec<StoredItem>, DatabaseError> {
    let count_max = count_max as usize;
    let Some(after) = after.map(ItemId::key_values) else {
        return range(transaction, kind, filter, &[], count_max).await;
    };
    let mut page = Vec::new();
    for last in (0..after.len()).rev() {
        let comparison = |position| if position == last { " > " } else { " = " };
        let start: Vec<(&'static str, &str)> = after[..=last]
            .iter()
            .enumerate()
            .map(|(position, value)| (comparison(position), *value))
            .collect();
        page.extend(range(transaction, kind, filter, &start, count_max - page.len()).await?);
        if page.len() == count_max {
            break;
        }
    }
    Ok(page)
}

async fn range(
    transaction: &mut Transaction,
    kind: ItemKind,
    filter: &ItemFilter,
    start: &[(&'static str, &str)],
    count_max: usize,
) -> Result<Vec<StoredItem>, DatabaseError> {
    let table = Table::of(kind);
    let upper = filter.prefix.as_deref().and_then(successor);
    let mut query = table.select();
    query.push(" WHERE 1 = 1");
    for ((comparison, value), key) in start.iter().zip(table.key_names()) {
        query.push(" AND ").push(key).push(comparison).bind(*value);
    }
    filter.push(&mut query, kind, upper.as_deref())?;
    query.push(" ORDER BY ").list(table.key_names()).push(" LIMIT ");
    query.bind(i64::try_from(count_max).unwrap_or(i64::MAX));
    transaction.rows(&query).await?.iter().map(|row| stored_item(kind, row)).collect()
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
            ItemKind::Tier => &[],
            ItemKind::Block => &[(" AND tenant IN (", &self.tenants)],
            ItemKind::Quota | ItemKind::Key => &[
                (" AND tier IN (", tier),
                (" AND user_id IN (", &self.users),
                (" AND tenant IN (", &self.tenants),
            ],
            ItemKind::Limit => &[(" AND user_id IN (", &self.users), (" AND tenant IN (", &self.tenants)],
        };
        for (text, values) in texts.iter().filter(|(_, values)| !values.is_empty()) {
            query.push(text).bind_all(values.iter().map(String::as_str)).push(")");
        }
        if let (ItemKind::Rule, Some(enabled)) = (kind, self.enabled) {
            query.push(" AND COALESCE(enabled, 1) = ").bind(i64::from(enabled));
        }
        if let (ItemKind::Block, Some(block_kind)) = (kind, self.block_kind) {
            query.push(" AND kind = ").bind(block_kind.as_str());
        }
        if let (ItemKind::Key, Some(before)) = (kind, self.expires_before_micros) {
            query.push(" AND expires_at_micros < ").bind(to_i64(before, "expires_before")?);
        }
        if kind == ItemKind::Quota {
            self.push_usage(query)?;
        }
        let Some(at) = self.active_at_micros else { return Ok(()) };
        let at = to_i64(at, "active_at")?;
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

    /// By the blocks and the usage of a quota's user, found by their primary keys.
    fn push_usage(&self, query: &mut Query<'_>) -> Result<(), DatabaseError> {
        const REQUESTED: &str = "EXISTS (SELECT 1 FROM user_usage WHERE user_usage.tenant = user_quotas.tenant \
                                 AND user_usage.user_id = user_quotas.user_id \
                                 AND user_usage.last_request_at_micros >= ";
        if let Some((is_blocked, at)) = self.blocked {
            query.push(if is_blocked { " AND " } else { " AND NOT " });
            query.push(
                "EXISTS (SELECT 1 FROM blocks WHERE blocks.tenant = user_quotas.tenant AND blocks.kind = 'user' \
                 AND blocks.subject = user_quotas.user_id \
                 AND (blocks.until_micros IS NULL OR blocks.until_micros > ",
            );
            query.bind(to_i64(at, "blocked")?).push("))");
        }
        if let Some(since) = self.requested_since_micros {
            query.push(" AND ").push(REQUESTED).bind(to_i64(since, "requested_since")?).push(")");
        }
        if let Some(since) = self.idle_since_micros {
            query.push(" AND NOT ").push(REQUESTED).bind(to_i64(since, "idle_since")?).push(")");
        }
        Ok(())
    }

    /// Not LIKE: it has wildcards, and ignores case on some engines.
    fn push_prefix<'a>(&'a self, query: &mut Query<'a>, kind: ItemKind, upper: Option<&'a str>) {
        let Some(prefix) = &self.prefix else { return };
        let column = match kind {
            ItemKind::Rule | ItemKind::Tier => "name",
            ItemKind::Quota | ItemKind::Limit => "user_id",
            ItemKind::Key => "id",
            ItemKind::Block => "subject",
        };
        query.push(" AND ").push(column).push(" >= ").bind(prefix.as_str());
        if let Some(upper) = upper {
            query.push(" AND ").push(column).push(" < ").bind(upper);
        }
    }
}

/// The least text greater than all texts with this prefix; `None` if no text is greater.
fn successor(prefix: &str) -> Option<String> {
    let mut text = prefix.to_owned();
    while let Some(last) = text.pop() {
        let next = if last == '\u{d7ff}' { Some('\u{e000}') } else { char::from_u32(u32::from(last) + 1) };
        if let Some(next) = next {
            text.push(next);
            return Some(text);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn successor_bounds_all_texts_with_a_prefix() {
        assert_eq!(successor("ab").as_deref(), Some("ac"));
        assert_eq!(successor("a\u{7f}").as_deref(), Some("a\u{80}"));
        assert_eq!(successor("\u{d7ff}").as_deref(), Some("\u{e000}"));
        assert_eq!(successor("a\u{10ffff}").as_deref(), Some("b"));
        assert_eq!(successor("\u{10ffff}\u{10ffff}"), None);
        assert_eq!(successor(""), None);
    }
}

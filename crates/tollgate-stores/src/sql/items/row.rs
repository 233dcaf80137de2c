//! Converts items to rows of their tables and back.

use std::borrow::Cow;

use serde_json::{Map, Value as Json};
use tollgate::accounts::{AccountLimits, BlockKind};
use tollgate::rules::overrides::UserEndpointLimit;

use super::row_reader::RowReader;
use super::rule_columns;
use super::table::{ColumnType, Table};
use super::{BlockItem, Item, ItemKind, KeyItem, QuotaItem, RuleItem, StoredItem, TierItem};
use crate::sql::engine::{Row, from_i64, to_i64};
use crate::sql::error::{DatabaseError, ValueError};
use crate::sql::query::Value;

/// The columns of an item, in the order of its table. Rejects values that not every engine can store.
pub(in crate::sql) fn columns(item: &Item) -> Result<Vec<Value<'_>>, DatabaseError> {
    let columns = match item {
        Item::Rule(rule) => rule_columns::of_rule(&rule.name, &rule.body)?,
        Item::Tier(tier) => rule_columns::of_tier(&tier.name, &tier.description, &tier.body)?,
        Item::Quota(quota) => quota_columns(quota)?,
        Item::Key(key) => key_columns(key)?,
        Item::Block(block) => vec![
            tenant(block.tenant.as_deref())?,
            block.kind.as_str().into(),
            (&*block.subject).into(),
            (&*block.reason).into(),
            micros(block.until_micros, "until_micros")?,
        ],
        Item::Limit(limit) => vec![
            tenant(limit.tenant.as_deref())?,
            (&*limit.user).into(),
            (&*limit.endpoint).into(),
            limit.requests.into(),
            micros(Some(limit.window_micros), "window_micros")?,
            (&*limit.algorithm).into(),
            limit.burst.into(),
        ],
    };
    Table::of(item.id().kind()).check(&columns)?;
    Ok(columns)
}

/// The item of a row.
pub(in crate::sql) fn item(kind: ItemKind, columns: Vec<Value<'_>>) -> Result<Item, DatabaseError> {
    let mut row = RowReader::new(columns, Table::of(kind).name);
    Ok(match kind {
        ItemKind::Rule => {
            Item::Rule(RuleItem { name: row.text()?, body: rule_columns::rule_body(&mut row)? })
        }
        ItemKind::Tier => Item::Tier(TierItem {
            name: row.text()?,
            description: row.text()?,
            body: rule_columns::tier_body(&mut row)?,
        }),
        ItemKind::Quota => Item::Quota(QuotaItem {
            tenant: row_tenant(&mut row)?,
            user: row.text()?,
            tier: row.maybe_text()?,
            limits: limits(&mut row, None)?,
        }),
        ItemKind::Key => Item::Key(key(&mut row)?),
        ItemKind::Block => Item::Block(BlockItem {
            tenant: row_tenant(&mut row)?,
            kind: BlockKind::parse(&row.text()?).ok_or(row.corrupt())?,
            subject: row.text()?,
            reason: row.text()?,
            until_micros: row.maybe_number()?,
        }),
        ItemKind::Limit => Item::Limit(UserEndpointLimit {
            tenant: row_tenant(&mut row)?,
            user: row.text()?,
            endpoint: row.text()?,
            requests: row.number()?,
            window_micros: row.number()?,
            algorithm: row.text()?,
            burst: row.maybe_number()?,
        }),
    })
}

/// The stored item of a result row with all columns of its table.
pub(in crate::sql) fn stored_item(kind: ItemKind, row: &Row) -> Result<StoredItem, DatabaseError> {
    let Table { name: table, columns, .. } = Table::of(kind);
    let value = |position, column_type| {
        Ok(match column_type {
            ColumnType::Int => Value::Int(row.maybe_int(position)?),
            ColumnType::Text(_) => row.maybe_text(position, table)?.into(),
            ColumnType::Bytes => Value::Bytes(row.bytes(position)?.map(Cow::Owned)),
        })
    };
    let values = columns.iter().enumerate().map(|(position, column)| value(position, column.column_type));
    let item = item(kind, values.collect::<Result<_, DatabaseError>>()?)?;
    let common = columns.len();
    Ok(StoredItem {
        item,
        created_by: row.text(common, table)?,
        created_at_micros: from_i64(row.int(common + 1)?, table)?,
        updated_at_micros: from_i64(row.int(common + 2)?, table)?,
        version: from_i64(row.int(common + 3)?, table)?,
    })
}

/// An item as the audit log shows it: everything except hashes.
pub(in crate::sql) fn audit_json(item: &Item) -> Result<Json, DatabaseError> {
    let mut json = Map::new();
    match item {
        Item::Rule(RuleItem { name, body }) => {
            json.insert("name".to_owned(), (&**name).into());
            json.extend(body.clone());
        }
        Item::Tier(TierItem { name, description, body }) => {
            json.insert("name".to_owned(), (&**name).into());
            json.insert("description".to_owned(), (&**description).into());
            json.extend(body.clone());
        }
        Item::Key(key) => {
            json = columns_json(item)?;
            json.insert("scopes".to_owned(), key.scopes.as_slice().into());
        }
        Item::Quota(_) | Item::Block(_) | Item::Limit(_) => json = columns_json(item)?,
    }
    Ok(json.into())
}

fn columns_json(item: &Item) -> Result<Map<String, Json>, DatabaseError> {
    let columns = Table::of(item.id().kind()).columns.iter().zip(columns(item)?);
    let json = columns.filter_map(|(column, value)| match value {
        Value::Int(number) => Some((column.name.to_owned(), number?.into())),
        Value::Text(Some(text)) if text.is_empty() && column.name == "tenant" => None,
        Value::Text(text) => Some((column.name.to_owned(), text?.into())),
        Value::Bytes(_) => None,
    });
    Ok(json.collect())
}

fn quota_columns(quota: &QuotaItem) -> Result<Vec<Value<'_>>, DatabaseError> {
    let AccountLimits { requests_per_second, requests_per_hour, requests_per_day, burst } = quota.limits;
    if requests_per_second.is_some() {
        return Err(DatabaseError::value("requests_per_second", ValueError::NotAllowed));
    }
    Ok(vec![
        tenant(quota.tenant.as_deref())?,
        (&*quota.user).into(),
        not_empty(quota.tier.as_deref(), "tier")?,
        requests_per_hour.into(),
        requests_per_day.into(),
        burst.into(),
    ])
}

fn key_columns(key: &KeyItem) -> Result<Vec<Value<'_>>, DatabaseError> {
    Ok(vec![
        (&*key.id).into(),
        key.hash.as_slice().into(),
        key.previous_hash.as_ref().map(<[u8; 32]>::as_slice).into(),
        micros(key.previous_until_micros, "previous_until_micros")?,
        (&*key.name).into(),
        not_empty(key.user.as_deref(), "user_id")?,
        not_empty(key.tenant.as_deref(), "tenant")?,
        not_empty(key.tier.as_deref(), "tier")?,
        Json::from(key.scopes.as_slice()).to_string().into(),
        key.limits.requests_per_second.into(),
        key.limits.requests_per_hour.into(),
        key.limits.requests_per_day.into(),
        key.limits.burst.into(),
        micros(key.expires_at_micros, "expires_at_micros")?,
        micros(key.revoked_at_micros, "revoked_at_micros")?,
        not_empty(key.revoked_by.as_deref(), "revoked_by")?,
    ])
}

/// The tenant as part of a primary key: none is the empty text.
fn tenant(tenant: Option<&str>) -> Result<Value<'_>, DatabaseError> {
    not_empty(tenant, "tenant").map(|_| tenant.unwrap_or_default().into())
}

fn row_tenant(row: &mut RowReader<'_>) -> Result<Option<String>, DatabaseError> {
    Ok(row.maybe_text()?.filter(|tenant| !tenant.is_empty()))
}

fn micros(micros: Option<u64>, field: &'static str) -> Result<Value<'static>, DatabaseError> {
    Ok(Value::Int(micros.map(|micros| to_i64(micros, field)).transpose()?))
}

fn not_empty<'a>(text: Option<&'a str>, field: &'static str) -> Result<Value<'a>, DatabaseError> {
    if text == Some("") {
        return Err(DatabaseError::value(field, ValueError::Empty));
    }
    Ok(text.into())
}

fn limits(row: &mut RowReader<'_>, requests_per_second: Option<u32>) -> Result<AccountLimits, DatabaseError> {
    Ok(AccountLimits {
        requests_per_second,
        requests_per_hour: row.maybe_number()?,
        requests_per_day: row.maybe_number()?,
        burst: row.maybe_number()?,
    })
}

fn key(row: &mut RowReader<'_>) -> Result<KeyItem, DatabaseError> {
    Ok(KeyItem {
        id: row.text()?,
        hash: row.maybe_hash()?.ok_or(row.corrupt())?,
        previous_hash: row.maybe_hash()?,
        previous_until_micros: row.maybe_number()?,
        name: row.text()?,
        user: row.maybe_text()?,
        tenant: row.maybe_text()?,
        tier: row.maybe_text()?,
        scopes: serde_json::from_str(&row.text()?).map_err(|_| row.corrupt())?,
        limits: {
            let per_second = row.maybe_number()?;
            limits(row, per_second)?
        },
        expires_at_micros: row.maybe_number()?,
        revoked_at_micros: row.maybe_number()?,
        revoked_by: row.maybe_text()?,
    })
}

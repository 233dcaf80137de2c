//! Items as rows of their tables, and back.

use serde_json::{Map, Value as Json};

use tollgate::rules::overrides::UserEndpointLimit;

use super::rule_columns as body;
use super::table::{Cell, Table};
use super::{
    AccountLimits, BlockItem, BlockKind, Item, ItemId, ItemKind, KeyItem, QuotaItem, RuleItem, StoredItem,
    TierItem,
};
use crate::sql::engine::{Row, signed, unsigned};
use crate::sql::error::{DatabaseError, ValueError};

impl From<u32> for Cell {
    fn from(number: u32) -> Self {
        Cell::Int(Some(number.into()))
    }
}

impl From<Option<u32>> for Cell {
    fn from(number: Option<u32>) -> Self {
        Cell::Int(number.map(i64::from))
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Cell::Text(Some(text.to_owned()))
    }
}

impl From<Option<&str>> for Cell {
    fn from(text: Option<&str>) -> Self {
        Cell::Text(text.map(str::to_owned))
    }
}

impl From<Option<&[u8; 32]>> for Cell {
    fn from(hash: Option<&[u8; 32]>) -> Self {
        Cell::Bytes(hash.map(|hash| hash.to_vec()))
    }
}

impl Item {
    /// What its row holds, in the order of the columns.
    pub(in crate::sql) fn cells(&self) -> Result<Vec<Cell>, DatabaseError> {
        let cells = match self {
            Item::Rule(rule) => body::rule_cells(&rule.name, &rule.body)?,
            Item::Tier(tier) => body::tier_cells(&tier.name, &tier.description, &tier.body)?,
            Item::Quota(quota) => quota_cells(quota)?,
            Item::Key(key) => key_cells(key)?,
            Item::Block(block) => vec![
                block.kind.as_str().into(),
                (&*block.subject).into(),
                (&*block.reason).into(),
                micros(block.until_micros, "until_micros")?,
            ],
            Item::Limit(limit) => vec![
                (&*limit.user).into(),
                (&*limit.endpoint).into(),
                limit.requests.into(),
                micros(Some(limit.window_micros), "window_micros")?,
                (&*limit.algorithm).into(),
                limit.burst.into(),
            ],
        };
        Table::of(self.id().kind()).check(&cells)?;
        Ok(cells)
    }

    /// What a row tells.
    pub(in crate::sql) fn from_cells(kind: ItemKind, cells: Vec<Cell>) -> Result<Self, DatabaseError> {
        let mut row = Cells { cells: cells.into_iter(), what: Table::of(kind).name };
        Ok(match kind {
            ItemKind::Rule => Item::Rule(RuleItem { name: row.text()?, body: body::rule_body(&mut row)? }),
            ItemKind::Tier => Item::Tier(TierItem {
                name: row.text()?,
                description: row.text()?,
                body: body::tier_body(&mut row)?,
            }),
            ItemKind::Quota => Item::Quota(QuotaItem {
                user: row.text()?,
                tier: row.maybe_text()?,
                limits: row.limits(None)?,
            }),
            ItemKind::Key => Item::Key(row.key()?),
            ItemKind::Block => Item::Block(BlockItem {
                kind: BlockKind::parse(&row.text()?).ok_or(row.corrupt())?,
                subject: row.text()?,
                reason: row.text()?,
                until_micros: row.number()?,
            }),
            ItemKind::Limit => Item::Limit(UserEndpointLimit {
                user: row.text()?,
                endpoint: row.text()?,
                requests: row.some_number()?,
                window_micros: row.some_number()?,
                algorithm: row.text()?,
                burst: row.number()?,
            }),
        })
    }

    /// What the audit trail tells of it: everything but hashes.
    pub(in crate::sql) fn told(&self) -> Result<Json, DatabaseError> {
        let mut told = Map::new();
        match self {
            Item::Rule(RuleItem { name, body }) => {
                told.insert("name".to_owned(), (&**name).into());
                told.extend(body.clone());
            }
            Item::Tier(TierItem { name, description, body }) => {
                told.insert("name".to_owned(), (&**name).into());
                told.insert("description".to_owned(), (&**description).into());
                told.extend(body.clone());
            }
            Item::Key(key) => {
                told = told_columns(self)?;
                told.insert("scopes".to_owned(), key.scopes.as_slice().into());
            }
            Item::Quota(_) | Item::Block(_) | Item::Limit(_) => told = told_columns(self)?,
        }
        Ok(told.into())
    }
}

fn told_columns(item: &Item) -> Result<Map<String, Json>, DatabaseError> {
    let columns = Table::of(item.id().kind()).columns.iter().zip(item.cells()?);
    let told = columns.filter_map(|(column, cell)| match cell {
        Cell::Int(number) => Some((column.name.to_owned(), number?.into())),
        Cell::Text(text) => Some((column.name.to_owned(), text?.into())),
        Cell::Bytes(_) => None,
    });
    Ok(told.collect())
}

fn quota_cells(quota: &QuotaItem) -> Result<Vec<Cell>, DatabaseError> {
    let AccountLimits { requests_per_second, requests_per_hour, requests_per_day, burst } = quota.limits;
    if requests_per_second.is_some() {
        return Err(DatabaseError::value("requests_per_second", ValueError::Meaningless));
    }
    Ok(vec![
        (&*quota.user).into(),
        filled(quota.tier.as_deref(), "tier")?,
        requests_per_hour.into(),
        requests_per_day.into(),
        burst.into(),
    ])
}

fn key_cells(key: &KeyItem) -> Result<Vec<Cell>, DatabaseError> {
    Ok(vec![
        (&*key.id).into(),
        Some(&key.hash).into(),
        key.previous_hash.as_ref().into(),
        micros(key.previous_until_micros, "previous_until_micros")?,
        (&*key.name).into(),
        filled(key.user.as_deref(), "user_id")?,
        filled(key.tenant.as_deref(), "tenant")?,
        filled(key.tier.as_deref(), "tier")?,
        Cell::Text(Some(Json::from(key.scopes.as_slice()).to_string())),
        key.limits.requests_per_second.into(),
        key.limits.requests_per_hour.into(),
        key.limits.requests_per_day.into(),
        key.limits.burst.into(),
        micros(key.expires_at_micros, "expires_at_micros")?,
        micros(key.revoked_at_micros, "revoked_at_micros")?,
        filled(key.revoked_by.as_deref(), "revoked_by")?,
    ])
}

fn micros(micros: Option<u64>, field: &'static str) -> Result<Cell, DatabaseError> {
    Ok(Cell::Int(micros.map(|micros| signed(micros, field)).transpose()?))
}

/// A text that is absent or not empty.
fn filled(text: Option<&str>, field: &'static str) -> Result<Cell, DatabaseError> {
    if text == Some("") {
        return Err(DatabaseError::value(field, ValueError::Empty));
    }
    Ok(text.into())
}

/// The cells of a row, taken one after another.
pub(in crate::sql) struct Cells {
    cells: std::vec::IntoIter<Cell>,
    what: &'static str,
}

impl Cells {
    pub(in crate::sql) const fn corrupt(&self) -> DatabaseError {
        DatabaseError::Corrupt { what: self.what }
    }

    pub(in crate::sql) fn maybe_text(&mut self) -> Result<Option<String>, DatabaseError> {
        if let Some(Cell::Text(text)) = self.cells.next() { Ok(text) } else { Err(self.corrupt()) }
    }

    pub(in crate::sql) fn text(&mut self) -> Result<String, DatabaseError> {
        self.maybe_text()?.ok_or(self.corrupt())
    }

    pub(in crate::sql) fn number<T: TryFrom<i64>>(&mut self) -> Result<Option<T>, DatabaseError> {
        let Some(Cell::Int(number)) = self.cells.next() else { return Err(self.corrupt()) };
        number.map(|number| unsigned(number, self.what)).transpose()
    }

    fn some_number<T: TryFrom<i64>>(&mut self) -> Result<T, DatabaseError> {
        self.number()?.ok_or(self.corrupt())
    }

    fn hash(&mut self) -> Result<Option<[u8; 32]>, DatabaseError> {
        let Some(Cell::Bytes(bytes)) = self.cells.next() else { return Err(self.corrupt()) };
        bytes.map(|bytes| bytes.try_into().map_err(|_| self.corrupt())).transpose()
    }

    fn limits(&mut self, requests_per_second: Option<u32>) -> Result<AccountLimits, DatabaseError> {
        Ok(AccountLimits {
            requests_per_second,
            requests_per_hour: self.number()?,
            requests_per_day: self.number()?,
            burst: self.number()?,
        })
    }

    fn key(&mut self) -> Result<KeyItem, DatabaseError> {
        Ok(KeyItem {
            id: self.text()?,
            hash: self.hash()?.ok_or(self.corrupt())?,
            previous_hash: self.hash()?,
            previous_until_micros: self.number()?,
            name: self.text()?,
            user: self.maybe_text()?,
            tenant: self.maybe_text()?,
            tier: self.maybe_text()?,
            scopes: serde_json::from_str(&self.text()?).map_err(|_| self.corrupt())?,
            limits: {
                let second = self.number()?;
                self.limits(second)?
            },
            expires_at_micros: self.number()?,
            revoked_at_micros: self.number()?,
            revoked_by: self.maybe_text()?,
        })
    }
}

impl StoredItem {
    /// From a row with all columns of its table.
    pub(in crate::sql) fn read(kind: ItemKind, row: &Row) -> Result<Self, DatabaseError> {
        let Table { name: what, columns, .. } = Table::of(kind);
        let cells = columns.iter().enumerate().map(|(place, column)| row.cell(place, column.form, what));
        let item = Item::from_cells(kind, cells.collect::<Result<_, _>>()?)?;
        let meta = columns.len();
        Ok(StoredItem {
            item,
            created_by: row.text(meta, what)?,
            created_at_micros: unsigned(row.int(meta + 1)?, what)?,
            updated_at_micros: unsigned(row.int(meta + 2)?, what)?,
            version: unsigned(row.int(meta + 3)?, what)?,
        })
    }

    pub(in crate::sql) fn id(&self) -> ItemId {
        self.item.id()
    }
}

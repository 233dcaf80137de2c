//! Usage totals per user and API key. Nodes count in memory and add their counts in batches.
//!
//! Batches are numbered, and the number is stored in the transaction that adds the batch. A node that does not know whether a
//! batch was added sends it again; it counts once. All nodes write rows in the order of their ids, which avoids deadlocks.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use jiff::civil::Date;
use serde::{Deserialize, Serialize};
use tollgate::identity::{ID_BYTES_MAX, InTenant};

use super::engine::{Pool, Row, Transaction, from_i64, to_i64};
use super::error::DatabaseError;
use super::items::table::{CHUNK_ROWS, check_name};
use super::query::{Query, Value};
use super::settings::Engine;

/// Stored batch numbers per node. A node never repeats an older one.
const BATCH_NUMBERS: u64 = 100;
/// Batch numbers of nodes without activity are deleted after this time.
const BATCH_RETENTION_MICROS: u64 = 30 * 86_400 * 1_000_000;
/// Attempts at a batch after a deadlock, or when the same batch is added concurrently.
const ATTEMPTS: usize = 3;

/// How a table of totals is updated.
struct Totals {
    /// Selects the users or keys that exist.
    existing: &'static str,
    /// The columns of their ids.
    key: &'static [&'static str],
    insert: &'static str,
    update: &'static str,
}

/// Adds to the totals of the current day and month, or starts new ones. Day and month come last, because MySQL assigns columns
/// in order and later expressions see the new values.
const USERS: Totals = Totals {
    existing: "SELECT tenant, user_id FROM user_quotas WHERE ",
    key: &["tenant", "user_id"],
    insert: "INSERT INTO user_usage (tenant, user_id, day, requests_of_day, month, requests_of_month, \
             last_request_at_micros, exceeded_count) VALUES ",
    update: " ON CONFLICT (tenant, user_id) DO UPDATE SET \
             requests_of_day = CASE \
                 WHEN user_usage.day = excluded.day THEN user_usage.requests_of_day + excluded.requests_of_day \
                 WHEN user_usage.day < excluded.day THEN excluded.requests_of_day \
                 ELSE user_usage.requests_of_day END, \
             requests_of_month = CASE \
                 WHEN user_usage.month = excluded.month \
                 THEN user_usage.requests_of_month + excluded.requests_of_month \
                 WHEN user_usage.month < excluded.month THEN excluded.requests_of_month \
                 ELSE user_usage.requests_of_month END, \
             exceeded_count = user_usage.exceeded_count + excluded.exceeded_count, \
             last_request_at_micros = CASE \
                 WHEN user_usage.last_request_at_micros < excluded.last_request_at_micros \
                 THEN excluded.last_request_at_micros ELSE user_usage.last_request_at_micros END, \
             day = CASE WHEN user_usage.day < excluded.day THEN excluded.day ELSE user_usage.day END, \
             month = CASE WHEN user_usage.month < excluded.month THEN excluded.month ELSE user_usage.month END",
};
const KEYS: Totals = Totals {
    existing: "SELECT id FROM api_keys WHERE ",
    key: &["id"],
    insert: "INSERT INTO api_key_usage (api_key_id, requests, last_used_at_micros) VALUES ",
    update: " ON CONFLICT (api_key_id) DO UPDATE SET \
             requests = api_key_usage.requests + excluded.requests, \
             last_used_at_micros = CASE \
                 WHEN api_key_usage.last_used_at_micros < excluded.last_used_at_micros \
                 THEN excluded.last_used_at_micros ELSE api_key_usage.last_used_at_micros END",
};

/// The counts of a node since its last batch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageBatch {
    /// The node: 1 to 256 bytes. Must be unique per process start, because numbers start at 1.
    pub node: String,
    /// The number of the batch, starting at 1.
    pub number: u64,
    /// Counts of users.
    pub users: Vec<UserUsageDelta>,
    /// Counts of keys.
    pub keys: Vec<KeyUsageDelta>,
}

/// The requests of a user on one day.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserUsageDelta {
    /// The tenant of the user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// The user.
    pub user: String,
    /// The UTC day, counted from 1970-01-01.
    pub day: u32,
    /// Requests.
    pub requests: u64,
    /// Requests refused because a limit was exceeded.
    pub exceeded: u64,
    /// The time of the last request, in microseconds since 1970.
    pub last_micros: u64,
}

/// The requests of a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyUsageDelta {
    /// The key's id.
    pub id: String,
    /// Requests.
    pub requests: u64,
    /// The time of the last request, in microseconds since 1970.
    pub last_micros: u64,
}

/// The totals of a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserUsage {
    /// The tenant of the user.
    pub tenant: Option<String>,
    /// The user.
    pub user: String,
    /// The last UTC day with requests, counted from 1970-01-01.
    pub day: u32,
    /// Requests on that day.
    pub requests_of_day: u64,
    /// Requests in the month of that day.
    pub requests_of_month: u64,
    /// The time of the last request, in microseconds since 1970.
    pub last_request_at_micros: u64,
    /// Requests ever refused because a limit was exceeded.
    pub exceeded_count: u64,
}

/// The totals of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyUsage {
    /// The key's id.
    pub id: String,
    /// Requests.
    pub requests: u64,
    /// The time of the last request, in microseconds since 1970.
    pub last_used_at_micros: u64,
}

impl UserUsage {
    /// Requests on a UTC day, which must not be before [`day`](Self::day).
    pub fn requests_on(&self, day: u32) -> u64 {
        if self.day == day { self.requests_of_day } else { 0 }
    }

    /// Requests in the month of a UTC day, which must not be before [`day`](Self::day).
    pub fn requests_in_month_of(&self, day: u32) -> u64 {
        if month_of(self.day) == month_of(day) { self.requests_of_month } else { 0 }
    }
}

pub(super) async fn add(pool: &Pool, batch: &UsageBatch) -> Result<bool, DatabaseError> {
    check_name("node", &batch.node, ID_BYTES_MAX)?;
    let mut attempt = 1;
    loop {
        match try_add(pool, batch).await {
            // Added concurrently: the next attempt finds its number.
            Err(DatabaseError::Constraint { .. }) if attempt < ATTEMPTS => attempt += 1,
            Err(error) if error.is_deadlock() && attempt < ATTEMPTS => attempt += 1,
            done => return done,
        }
    }
}

async fn try_add(pool: &Pool, batch: &UsageBatch) -> Result<bool, DatabaseError> {
    let mut transaction = pool.begin_write().await?;
    if is_added(&mut transaction, batch).await? {
        transaction.rollback().await?;
        return Ok(false);
    }
    store_number(&mut transaction, batch).await?;
    for (day, users) in by_day(&batch.users) {
        add_users(&mut transaction, day, users).await?;
    }
    add_keys(&mut transaction, &batch.keys).await?;
    transaction.commit().await?;
    Ok(true)
}

pub(super) async fn of_users(
    pool: &Pool,
    users: &[InTenant<'_, &str>],
) -> Result<Vec<UserUsage>, DatabaseError> {
    const TABLE: &str = "user_usage";
    let select = "SELECT tenant, user_id, day, requests_of_day, requests_of_month, last_request_at_micros, \
                  exceeded_count FROM user_usage WHERE ";
    let read = |row: &Row| {
        Ok(UserUsage {
            tenant: Some(row.text(0, TABLE)?).filter(|tenant| !tenant.is_empty()),
            user: row.text(1, TABLE)?,
            day: from_i64(row.int(2)?, TABLE)?,
            requests_of_day: from_i64(row.int(3)?, TABLE)?,
            requests_of_month: from_i64(row.int(4)?, TABLE)?,
            last_request_at_micros: from_i64(row.int(5)?, TABLE)?,
            exceeded_count: from_i64(row.int(6)?, TABLE)?,
        })
    };
    let ids: Vec<Vec<&str>> = users.iter().map(|user| user_key(*user)).collect();
    totals(pool, select, USERS.key, &ids, read).await
}

/// The values of a user's primary key.
fn user_key<'a>(user: InTenant<'a, &'a str>) -> Vec<&'a str> {
    vec![user.tenant.unwrap_or_default(), user.id]
}

pub(super) async fn of_keys(pool: &Pool, ids: &[&str]) -> Result<Vec<KeyUsage>, DatabaseError> {
    const TABLE: &str = "api_key_usage";
    let select = "SELECT api_key_id, requests, last_used_at_micros FROM api_key_usage WHERE ";
    let read = |row: &Row| {
        Ok(KeyUsage {
            id: row.text(0, TABLE)?,
            requests: from_i64(row.int(1)?, TABLE)?,
            last_used_at_micros: from_i64(row.int(2)?, TABLE)?,
        })
    };
    let ids: Vec<Vec<&str>> = ids.iter().map(|id| vec![*id]).collect();
    totals(pool, select, &["api_key_id"], &ids, read).await
}

async fn totals<T>(
    pool: &Pool,
    select: &'static str,
    key: &'static [&'static str],
    ids: &[Vec<&str>],
    read: impl Fn(&Row) -> Result<T, DatabaseError>,
) -> Result<Vec<T>, DatabaseError> {
    let mut transaction = pool.begin_snapshot().await?;
    let rows = rows_in(&mut transaction, select, key, ids, "").await?;
    transaction.rollback().await?;
    rows.iter().map(read).collect()
}

async fn is_added(transaction: &mut Transaction, batch: &UsageBatch) -> Result<bool, DatabaseError> {
    let values = [batch.node.as_str().into(), to_i64(batch.number, "number")?.into()];
    let query = Query::with("SELECT number FROM usage_batches WHERE node = ? AND number = ?", values);
    Ok(transaction.row(&query).await?.is_some())
}

/// Stores the number of a batch. If the same batch is added concurrently, the second transaction violates the primary key here.
async fn store_number(transaction: &mut Transaction, batch: &UsageBatch) -> Result<(), DatabaseError> {
    let users = batch.users.iter().map(|delta| delta.last_micros);
    let last = users.chain(batch.keys.iter().map(|delta| delta.last_micros)).max().unwrap_or(0);
    let (node, number) = (batch.node.as_str(), to_i64(batch.number, "number")?);
    let values = [node.into(), number.into(), to_i64(last, "last_micros")?.into()];
    let insert = Query::with("INSERT INTO usage_batches (node, number, at_micros) VALUES (?, ?, ?)", values);
    transaction.execute(&insert).await?;
    // Not for every batch: nodes that delete old numbers may block each other.
    if !batch.number.is_multiple_of(BATCH_NUMBERS) {
        return Ok(());
    }
    let old = [node.into(), (number - i64::try_from(BATCH_NUMBERS).unwrap_or(0)).into()];
    transaction
        .execute(&Query::with("DELETE FROM usage_batches WHERE node = ? AND number <= ?", old))
        .await?;
    let old = [to_i64(last.saturating_sub(BATCH_RETENTION_MICROS), "last_micros")?.into()];
    transaction.execute(&Query::with("DELETE FROM usage_batches WHERE at_micros < ?", old)).await?;
    Ok(())
}

async fn add_users(
    transaction: &mut Transaction,
    day: u32,
    users: BTreeMap<InTenant<'_, &str>, UserUsageDelta>,
) -> Result<(), DatabaseError> {
    let mut rows = BTreeMap::new();
    for (user, delta) in users {
        let requests = to_i64(delta.requests, "requests")?;
        let row = vec![
            user.tenant.unwrap_or_default().into(),
            user.id.into(),
            day.into(),
            requests.into(),
            month_of(day).into(),
            requests.into(),
            to_i64(delta.last_micros, "last_micros")?.into(),
            to_i64(delta.exceeded, "exceeded")?.into(),
        ];
        rows.insert(user_key(user), row);
    }
    add_rows(transaction, &USERS, rows).await
}

async fn add_keys(transaction: &mut Transaction, keys: &[KeyUsageDelta]) -> Result<(), DatabaseError> {
    let mut sums: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for delta in keys {
        let (requests, last) = sums.entry(&delta.id).or_default();
        (*requests, *last) = (requests.saturating_add(delta.requests), delta.last_micros.max(*last));
    }
    let mut rows = BTreeMap::new();
    for (id, (requests, last)) in sums {
        let (requests, last) = (to_i64(requests, "requests")?, to_i64(last, "last_micros")?);
        rows.insert(vec![id], vec![id.into(), requests.into(), last.into()]);
    }
    add_rows(transaction, &KEYS, rows).await
}

/// Adds rows to a table of totals. Skips those whose user or key does not exist.
async fn add_rows(
    transaction: &mut Transaction,
    totals: &Totals,
    rows: BTreeMap<Vec<&str>, Vec<Value<'_>>>,
) -> Result<(), DatabaseError> {
    let ids: Vec<Vec<&str>> = rows.keys().cloned().collect();
    let existing = lock_existing(transaction, totals, &ids).await?;
    let is_existing =
        |id: &[&str]| existing.contains(&id.iter().map(|part| (*part).to_owned()).collect::<Vec<_>>());
    let rows = rows.into_iter().filter(|(id, _)| is_existing(id));
    let rows: Vec<_> = rows.map(|(_, row)| row).collect();
    for piece in rows.chunks(CHUNK_ROWS) {
        let mut query = Query::new(totals.insert);
        query.rows(piece.iter().cloned()).push(totals.update);
        transaction.execute(&query).await?;
    }
    Ok(())
}

/// Those of these ids that exist. Locks them against deletion until the transaction ends, as the foreign key of an inserted row
/// would do.
async fn lock_existing(
    transaction: &mut Transaction,
    totals: &Totals,
    ids: &[Vec<&str>],
) -> Result<HashSet<Vec<String>>, DatabaseError> {
    let key = totals.key;
    let end = match (transaction.engine(), key.len()) {
        (Engine::Postgres, 1) => " ORDER BY 1 FOR KEY SHARE",
        (Engine::Postgres, _) => " ORDER BY 1, 2 FOR KEY SHARE",
        (Engine::MySql, 1) => " ORDER BY 1 LOCK IN SHARE MODE",
        (Engine::MySql, _) => " ORDER BY 1, 2 LOCK IN SHARE MODE",
        (Engine::Sqlite, _) => "", // has one writer at a time
    };
    let rows = rows_in(transaction, totals.existing, key, ids, end).await?;
    rows.iter().map(|row| (0..key.len()).map(|column| row.text(column, "usage")).collect()).collect()
}

/// Runs a query that ends in `WHERE ` for these ids.
async fn rows_in(
    transaction: &mut Transaction,
    select: &'static str,
    key: &'static [&'static str],
    ids: &[Vec<&str>],
    end: &'static str,
) -> Result<Vec<Row>, DatabaseError> {
    let mut rows = Vec::new();
    for piece in ids.chunks(CHUNK_ROWS) {
        let mut query = Query::new(select);
        query.any_of(key, piece).push(end);
        rows.extend(transaction.rows(&query).await?);
    }
    Ok(rows)
}

/// Sums per day and user, in order.
fn by_day(deltas: &[UserUsageDelta]) -> BTreeMap<u32, BTreeMap<InTenant<'_, &str>, UserUsageDelta>> {
    let mut days: BTreeMap<u32, BTreeMap<InTenant<'_, &str>, UserUsageDelta>> = BTreeMap::new();
    for delta in deltas {
        let users = days.entry(delta.day).or_default();
        users
            .entry(InTenant::new(delta.tenant.as_deref(), &*delta.user))
            .and_modify(|sum| {
                sum.requests = sum.requests.saturating_add(delta.requests);
                sum.exceeded = sum.exceeded.saturating_add(delta.exceeded);
                sum.last_micros = sum.last_micros.max(delta.last_micros);
            })
            .or_insert_with(|| delta.clone());
    }
    days
}

/// The month of a day since 1970, counted from January of year 0.
fn month_of(day: u32) -> i64 {
    let since_1970 = Duration::from_secs(u64::from(day) * 86_400);
    let date = Date::constant(1970, 1, 1).saturating_add(since_1970);
    i64::from(date.year()) * 12 + i64::from(date.month()) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn months_of_days_include_leap_years() {
        let months = |year: i64, month: i64| year * 12 + month - 1;
        assert_eq!(month_of(0), months(1970, 1));
        assert_eq!(month_of(30), months(1970, 1));
        assert_eq!(month_of(31), months(1970, 2));
        assert_eq!(month_of(11_016), months(2000, 2), "the 29th");
        assert_eq!(month_of(11_017), months(2000, 3));
        assert_eq!(month_of(20_088), months(2024, 12));
        assert_eq!(month_of(20_089), months(2025, 1));
        assert_eq!(month_of(47_540), months(2100, 2));
        assert_eq!(month_of(47_541), months(2100, 3), "no leap year");
    }
}

//! Totals per user and key. Nodes count in memory and add what they have counted in batches.
//!
//! A batch has a number, remembered in the transaction that adds it: a node that was not told whether its batch was added sends
//! it again, and it counts once. Rows are written in the order of their ids, on all nodes, so that two batches wait for each
//! other at most one way.

use std::collections::{BTreeMap, HashSet};

use super::Database;
use super::engine::{Row, Transaction, signed, unsigned};
use super::error::DatabaseError;
use super::items::table::{CHUNK_ROWS, check_name, push_new, push_on_conflict};
use super::query::{Query, Value};
use super::settings::Engine;

const ID_MAX: usize = tollgate::identity::ID_BYTES_MAX;
/// How many numbers of a node are remembered. None older is sent again.
const REMEMBERED: u64 = 100;
/// How long the numbers of a node that is gone are remembered.
const FORGOTTEN_AFTER_MICROS: u64 = 30 * 86_400 * 1_000_000;
/// How often a batch is begun anew when somebody waits for it who it waits for, or adds it at the same time.
const ATTEMPTS: usize = 3;

/// What a node has counted since its last batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UsageBatch {
    /// Who counted: 1 to 256 bytes. A name that is never used again with the same numbers, such as a random one for each start.
    pub node: String,
    /// Which batch of that node: 1, 2, 3.
    pub number: u64,
    /// What users did.
    pub users: Vec<UserUsageDelta>,
    /// What keys did.
    pub keys: Vec<KeyUsageDelta>,
}

/// What a user did on a day.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserUsageDelta {
    /// The user.
    pub user: String,
    /// The UTC day, counted from 1970-01-01.
    pub day: u32,
    /// Requests.
    pub requests: u64,
    /// Requests that were refused because a limit was exceeded.
    pub exceeded: u64,
    /// When the last one came, in microseconds since 1970.
    pub last_micros: u64,
}

/// What a key did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyUsageDelta {
    /// The key's id.
    pub id: String,
    /// Requests.
    pub requests: u64,
    /// When the last one came, in microseconds since 1970.
    pub last_micros: u64,
}

/// The totals of a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserUsage {
    /// The user.
    pub user: String,
    /// The last UTC day with requests, counted from 1970-01-01.
    pub day: u32,
    /// Requests on that day.
    pub requests_of_day: u64,
    /// Requests in the month of that day.
    pub requests_of_month: u64,
    /// When the last request came, in microseconds since 1970.
    pub last_request_at_micros: u64,
    /// Requests that were ever refused because a limit was exceeded.
    pub exceeded_count: u64,
}

/// The totals of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyUsage {
    /// The key's id.
    pub id: String,
    /// Requests.
    pub requests: u64,
    /// When the last one came, in microseconds since 1970.
    pub last_used_at_micros: u64,
}

impl UserUsage {
    /// Requests on a UTC day that is not before the last one.
    pub fn requests_on(&self, day: u32) -> u64 {
        if self.day == day { self.requests_of_day } else { 0 }
    }

    /// Requests in the month of a UTC day that is not before the last one.
    pub fn requests_in_month_of(&self, day: u32) -> u64 {
        if month_of(self.day) == month_of(day) { self.requests_of_month } else { 0 }
    }
}

impl Database {
    /// Adds a batch to the totals, all of it or nothing; false if it was added before. Users without a quota and keys that are
    /// not there are skipped. What belongs to an earlier day than a user's last one counts for the month only, and if the
    /// month is over too, not at all.
    ///
    /// # Errors
    /// When the database does not do it. The same batch may be sent again after every error.
    pub async fn add_usage(&self, batch: &UsageBatch) -> Result<bool, DatabaseError> {
        check_name("node", &batch.node, ID_MAX)?;
        let mut attempt = 1;
        loop {
            match self.try_add_usage(batch).await {
                // It was added in the meantime, then it is known now.
                Err(DatabaseError::Constraint { .. }) if attempt < ATTEMPTS => attempt += 1,
                Err(error) if error.is_deadlock() && attempt < ATTEMPTS => attempt += 1,
                done => return done,
            }
        }
    }

    async fn try_add_usage(&self, batch: &UsageBatch) -> Result<bool, DatabaseError> {
        let mut transaction = self.pool.begin_write().await?;
        if transaction.knows(batch).await? {
            transaction.end().await?;
            return Ok(false);
        }
        transaction.remember(batch).await?;
        for (day, users) in by_day(&batch.users) {
            transaction.add_users(day, users).await?;
        }
        transaction.add_keys(&batch.keys).await?;
        transaction.commit().await?;
        Ok(true)
    }

    /// The totals of a user; nothing if there are none.
    ///
    /// # Errors
    /// When the database cannot be asked.
    pub async fn user_usage(&self, user: &str) -> Result<Option<UserUsage>, DatabaseError> {
        Ok(self.users_usage(&[user]).await?.pop())
    }

    /// The totals of those of these users that have some, in no order.
    ///
    /// # Errors
    /// When the database cannot be asked.
    pub async fn users_usage(&self, users: &[&str]) -> Result<Vec<UserUsage>, DatabaseError> {
        const WHAT: &str = "user_usage";
        let select = "SELECT user_id, day, requests_of_day, requests_of_month, last_request_at_micros, \
                      exceeded_count FROM user_usage WHERE user_id IN (";
        let read = |row: &Row| {
            Ok(UserUsage {
                user: row.text(0, WHAT)?,
                day: unsigned(row.int(1)?, WHAT)?,
                requests_of_day: unsigned(row.int(2)?, WHAT)?,
                requests_of_month: unsigned(row.int(3)?, WHAT)?,
                last_request_at_micros: unsigned(row.int(4)?, WHAT)?,
                exceeded_count: unsigned(row.int(5)?, WHAT)?,
            })
        };
        self.usage(select, users, read).await
    }

    /// The totals of a key; nothing if there are none.
    ///
    /// # Errors
    /// When the database cannot be asked.
    pub async fn key_usage(&self, id: &str) -> Result<Option<KeyUsage>, DatabaseError> {
        Ok(self.keys_usage(&[id]).await?.pop())
    }

    /// The totals of those of these keys that have some, in no order.
    ///
    /// # Errors
    /// When the database cannot be asked.
    pub async fn keys_usage(&self, ids: &[&str]) -> Result<Vec<KeyUsage>, DatabaseError> {
        const WHAT: &str = "api_key_usage";
        let select =
            "SELECT api_key_id, requests, last_used_at_micros FROM api_key_usage WHERE api_key_id IN (";
        let read = |row: &Row| {
            Ok(KeyUsage {
                id: row.text(0, WHAT)?,
                requests: unsigned(row.int(1)?, WHAT)?,
                last_used_at_micros: unsigned(row.int(2)?, WHAT)?,
            })
        };
        self.usage(select, ids, read).await
    }

    async fn usage<T>(
        &self,
        select: &'static str,
        ids: &[&str],
        read: impl Fn(&Row) -> Result<T, DatabaseError>,
    ) -> Result<Vec<T>, DatabaseError> {
        let mut transaction = self.pool.begin_snapshot().await?;
        let rows = transaction.rows_of(select, ids, ")").await?;
        transaction.end().await?;
        rows.iter().map(read).collect()
    }
}

impl Transaction {
    async fn knows(&mut self, batch: &UsageBatch) -> Result<bool, DatabaseError> {
        let values = [Value::Text(&batch.node), Value::Int(signed(batch.number, "number")?)];
        let query = Query::with("SELECT number FROM usage_batches WHERE node = ? AND number = ?", values);
        Ok(self.row(&query).await?.is_some())
    }

    /// Two who add the same batch at once: the second is refused here, and finds it known when it tries again.
    async fn remember(&mut self, batch: &UsageBatch) -> Result<(), DatabaseError> {
        let users = batch.users.iter().map(|delta| delta.last_micros);
        let last = users.chain(batch.keys.iter().map(|delta| delta.last_micros)).max().unwrap_or(0);
        let (node, number) = (Value::Text(&batch.node), signed(batch.number, "number")?);
        let values = [node, Value::Int(number), Value::Int(signed(last, "last_micros")?)];
        let insert =
            Query::with("INSERT INTO usage_batches (node, number, at_micros) VALUES (?, ?, ?)", values);
        self.execute(&insert).await?;
        // Now and then, for every node that does so may wait for another.
        if !batch.number.is_multiple_of(REMEMBERED) {
            return Ok(());
        }
        let old = [node, Value::Int(number - i64::try_from(REMEMBERED).unwrap_or(0))];
        self.execute(&Query::with("DELETE FROM usage_batches WHERE node = ? AND number <= ?", old)).await?;
        let old = [Value::Int(signed(last.saturating_sub(FORGOTTEN_AFTER_MICROS), "last_micros")?)];
        self.execute(&Query::with("DELETE FROM usage_batches WHERE at_micros < ?", old)).await?;
        Ok(())
    }

    async fn add_users(
        &mut self,
        day: u32,
        users: BTreeMap<&str, UserUsageDelta>,
    ) -> Result<(), DatabaseError> {
        let ids: Vec<&str> = users.keys().copied().collect();
        let known = self.known("SELECT user_id FROM user_quotas WHERE user_id IN (", &ids).await?;
        let mut rows = Vec::new();
        for (user, delta) in users.iter().filter(|(user, _)| known.contains(**user)) {
            let [requests, last, exceeded] = [delta.requests, delta.last_micros, delta.exceeded];
            let requests = Value::Int(signed(requests, "requests")?);
            let (last, exceeded) = (signed(last, "last_micros")?, signed(exceeded, "exceeded")?);
            let month = Value::Int(month_of(day));
            let day = Value::Int(day.into());
            rows.push(vec![
                Value::Text(user),
                day,
                requests,
                month,
                requests,
                Value::Int(last),
                Value::Int(exceeded),
            ]);
        }
        for piece in rows.chunks(CHUNK_ROWS) {
            let mut query = Query::new(
                "INSERT INTO user_usage (user_id, day, requests_of_day, month, requests_of_month, \
                 last_request_at_micros, exceeded_count) VALUES ",
            );
            query.rows(piece.iter().cloned());
            push_roll_over(&mut query, self.engine());
            self.execute(&query).await?;
        }
        Ok(())
    }

    async fn add_keys(&mut self, keys: &[KeyUsageDelta]) -> Result<(), DatabaseError> {
        let mut sums: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
        for delta in keys {
            let (requests, last) = sums.entry(&delta.id).or_default();
            (*requests, *last) = (requests.saturating_add(delta.requests), delta.last_micros.max(*last));
        }
        let ids: Vec<&str> = sums.keys().copied().collect();
        let known = self.known("SELECT id FROM api_keys WHERE id IN (", &ids).await?;
        let mut rows = Vec::new();
        for (id, (requests, last)) in sums.into_iter().filter(|(id, _)| known.contains(*id)) {
            let numbers = [signed(requests, "requests")?, signed(last, "last_micros")?];
            rows.push(vec![Value::Text(id), Value::Int(numbers[0]), Value::Int(numbers[1])]);
        }
        for piece in rows.chunks(CHUNK_ROWS) {
            let mut query =
                Query::new("INSERT INTO api_key_usage (api_key_id, requests, last_used_at_micros) VALUES ");
            query.rows(piece.iter().cloned());
            let engine = self.engine();
            push_on_conflict(&mut query, engine, ["api_key_id"].into_iter());
            push_sum(&mut query, engine, "api_key_usage.requests", "requests");
            query.push(", ");
            push_later(&mut query, engine, "api_key_usage.last_used_at_micros", "last_used_at_micros");
            self.execute(&query).await?;
        }
        Ok(())
    }

    /// Those of these ids that are there, and are kept from going away until this transaction ends: as a row of theirs would
    /// do, only before it is written.
    async fn known(&mut self, select: &'static str, ids: &[&str]) -> Result<HashSet<String>, DatabaseError> {
        let keep = match self.engine() {
            Engine::Postgres => ") ORDER BY 1 FOR KEY SHARE",
            Engine::MySql => ") ORDER BY 1 LOCK IN SHARE MODE",
            Engine::Sqlite => ")", // one writes at a time
        };
        let rows = self.rows_of(select, ids, keep).await?;
        rows.iter().map(|row| row.text(0, "usage")).collect()
    }

    /// The rows that a query ending in `IN (` finds for these ids.
    async fn rows_of(
        &mut self,
        select: &'static str,
        ids: &[&str],
        end: &'static str,
    ) -> Result<Vec<Row>, DatabaseError> {
        let mut rows = Vec::new();
        for piece in ids.chunks(CHUNK_ROWS) {
            let mut query = Query::new(select);
            query.bind_all(piece.iter().map(|id| Value::Text(id))).push(end);
            rows.extend(self.rows(&query).await?);
        }
        Ok(rows)
    }
}

/// The end of the `INSERT` into `user_usage`. MySQL sets columns one after another, and what it has set is what the next one
/// sees: the day and the month come last.
fn push_roll_over(query: &mut Query<'_>, engine: Engine) {
    push_on_conflict(query, engine, ["user_id"].into_iter());
    let counts = [
        ("requests_of_day", "user_usage.requests_of_day", "day", "user_usage.day"),
        ("requests_of_month", "user_usage.requests_of_month", "month", "user_usage.month"),
    ];
    for (count, old_count, period, old_period) in counts {
        query.push(count).push(" = CASE WHEN ").push(old_period).push(" = ");
        push_new(query, engine, period);
        query.push(" THEN ").push(old_count).push(" + ");
        push_new(query, engine, count);
        query.push(" WHEN ").push(old_period).push(" < ");
        push_new(query, engine, period);
        query.push(" THEN ");
        push_new(query, engine, count);
        query.push(" ELSE ").push(old_count).push(" END, ");
    }
    push_sum(query, engine, "user_usage.exceeded_count", "exceeded_count");
    let later = [
        ("user_usage.last_request_at_micros", "last_request_at_micros"),
        ("user_usage.day", "day"),
        ("user_usage.month", "month"),
    ];
    for (old, column) in later {
        query.push(", ");
        push_later(query, engine, old, column);
    }
}

/// `column = old + new`.
fn push_sum(query: &mut Query<'_>, engine: Engine, old: &'static str, column: &'static str) {
    query.push(column).push(" = ").push(old).push(" + ");
    push_new(query, engine, column);
}

/// `column =` the later of both.
fn push_later(query: &mut Query<'_>, engine: Engine, old: &'static str, column: &'static str) {
    query.push(column).push(" = CASE WHEN ").push(old).push(" < ");
    push_new(query, engine, column);
    query.push(" THEN ");
    push_new(query, engine, column);
    query.push(" ELSE ").push(old).push(" END");
}

/// What each user did on each day, days and users in order.
fn by_day(deltas: &[UserUsageDelta]) -> BTreeMap<u32, BTreeMap<&str, UserUsageDelta>> {
    let mut days: BTreeMap<u32, BTreeMap<&str, UserUsageDelta>> = BTreeMap::new();
    for delta in deltas {
        let users = days.entry(delta.day).or_default();
        users
            .entry(&delta.user)
            .and_modify(|sum| {
                sum.requests = sum.requests.saturating_add(delta.requests);
                sum.exceeded = sum.exceeded.saturating_add(delta.exceeded);
                sum.last_micros = sum.last_micros.max(delta.last_micros);
            })
            .or_insert_with(|| delta.clone());
    }
    days
}

/// Which month a day is in, counted from January of year 0.
///
/// Years are taken to begin in March, so that the day that some have more is their last; 146,097 days are 400 years.
fn month_of(day: u32) -> i64 {
    let days = i64::from(day) + 719_468; // since 0000-03-01
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let months_since_march = (5 * day_of_year + 2) / 153;
    (era * 400 + year_of_era) * 12 + months_since_march + 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_belong_to_their_months() {
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

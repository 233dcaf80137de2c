//! Numbers for single users on single endpoints: the table `user_endpoint_limits`.

use serde::Serialize;
use tollgate::identity::ID_BYTES_MAX;

use super::Database;
use super::change::{Entry, check_text};
use super::engine::{Row, Transaction, Value, signed, unsigned};
use super::error::DatabaseError;

/// The longest endpoint, in bytes: as long as one in its normal form can be.
const ENDPOINT_BYTES_MAX: usize = 2048;
const ALGORITHM_BYTES_MAX: usize = 64;
const KIND: &str = "user_endpoint_limit";

/// Numbers for one user on one endpoint, as they are stored. Whether they make a limit is for the library to say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UserEndpointLimit {
    /// The user: 1 to 256 bytes, none of them NUL.
    pub user: String,
    /// The endpoint in its normal form: 1 to 2048 bytes, none of them NUL.
    pub endpoint: String,
    /// Requests per window.
    pub requests: u32,
    /// The window in microseconds.
    pub window_micros: u64,
    /// The name of the algorithm.
    pub algorithm: String,
    /// What a bucket holds, if not `requests`.
    pub burst: Option<u32>,
    /// When they were set, in microseconds since 1970 (UTC).
    pub updated_at_micros: u64,
}

impl Database {
    /// All numbers for single users, ordered by user and endpoint, and the version that they are of.
    ///
    /// # Errors
    /// When the database cannot be asked, or somebody else has written what cannot be read.
    pub async fn limits(&self) -> Result<(u64, Vec<UserEndpointLimit>), DatabaseError> {
        let mut transaction = self.pool.begin_snapshot().await?;
        let version = transaction.config_version().await?;
        let rows = transaction
            .rows(
                "SELECT user_id, endpoint, requests, window_micros, algorithm, burst, updated_at_micros \
                 FROM user_endpoint_limits ORDER BY user_id, endpoint",
                &[],
            )
            .await?;
        transaction.end().await?;
        let limits = rows.iter().map(UserEndpointLimit::read).collect::<Result<_, _>>()?;
        Ok((version, limits))
    }

    /// Sets the numbers of one user on one endpoint, new ones or others; the version from which they are in force.
    ///
    /// The audit trail tells that `by` did so when the numbers say they were set.
    ///
    /// # Errors
    /// When a value cannot be stored or the database does not do it. Only after [`DatabaseError::Unknown`] may the numbers
    /// have been set all the same.
    pub async fn put_limit(&self, by: &str, limit: &UserEndpointLimit) -> Result<u64, DatabaseError> {
        limit.check()?;
        check_text("by", by, ID_BYTES_MAX)?;
        let mut change = self.begin_change().await?;
        let before = find(&mut change.transaction, &limit.user, &limit.endpoint).await?;
        // Nobody else changes anything until we are done, so that this needs no upsert, which each engine spells otherwise.
        let sql = if before.is_some() {
            "UPDATE user_endpoint_limits SET requests = ?, window_micros = ?, algorithm = ?, burst = ?, \
             updated_at_micros = ?, version = ? WHERE user_id = ? AND endpoint = ?"
        } else {
            "INSERT INTO user_endpoint_limits \
             (requests, window_micros, algorithm, burst, updated_at_micros, version, user_id, endpoint) \
             VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
        };
        let values = [
            Value::Int(limit.requests.into()),
            Value::Int(signed(limit.window_micros, "window")?),
            Value::Text(&limit.algorithm),
            Value::MaybeInt(limit.burst.map(i64::from)),
            Value::Int(signed(limit.updated_at_micros, "updated_at")?),
            Value::Int(signed(change.version, "version")?),
            Value::Text(&limit.user),
            Value::Text(&limit.endpoint),
        ];
        change.transaction.execute(sql, &values).await?;
        let entry = Entry {
            by,
            at_micros: limit.updated_at_micros,
            action: "put",
            kind: KIND,
            subject: subject(&limit.user, &limit.endpoint),
            before: before.as_ref().map(json),
            after: Some(json(limit)),
        };
        change.finish(entry).await
    }

    /// Removes the numbers of one user on one endpoint; the version from which they are gone, or nothing if there were none.
    ///
    /// The audit trail tells that `by` did so at `at_micros`, in microseconds since 1970.
    ///
    /// # Errors
    /// When the database does not do it. Only after [`DatabaseError::Unknown`] may they be gone all the same.
    pub async fn delete_limit(
        &self,
        by: &str,
        user: &str,
        endpoint: &str,
        at_micros: u64,
    ) -> Result<Option<u64>, DatabaseError> {
        check_text("by", by, ID_BYTES_MAX)?;
        check_text("user", user, ID_BYTES_MAX)?;
        check_text("endpoint", endpoint, ENDPOINT_BYTES_MAX)?;
        let mut change = self.begin_change().await?;
        let Some(before) = find(&mut change.transaction, user, endpoint).await? else {
            change.transaction.end().await?;
            return Ok(None);
        };
        change
            .transaction
            .execute(
                "DELETE FROM user_endpoint_limits WHERE user_id = ? AND endpoint = ?",
                &[Value::Text(user), Value::Text(endpoint)],
            )
            .await?;
        let entry = Entry {
            by,
            at_micros,
            action: "delete",
            kind: KIND,
            subject: subject(user, endpoint),
            before: Some(json(&before)),
            after: None,
        };
        change.finish(entry).await.map(Some)
    }
}

impl UserEndpointLimit {
    fn check(&self) -> Result<(), DatabaseError> {
        check_text("user", &self.user, ID_BYTES_MAX)?;
        check_text("endpoint", &self.endpoint, ENDPOINT_BYTES_MAX)?;
        check_text("algorithm", &self.algorithm, ALGORITHM_BYTES_MAX)
    }

    fn read(row: &Row) -> Result<Self, DatabaseError> {
        const WHAT: &str = "user_endpoint_limits";
        Ok(UserEndpointLimit {
            user: row.text(0, WHAT)?,
            endpoint: row.text(1, WHAT)?,
            requests: unsigned(row.int(2)?, WHAT)?,
            window_micros: unsigned(row.int(3)?, WHAT)?,
            algorithm: row.text(4, WHAT)?,
            burst: row.maybe_int(5)?.map(|burst| unsigned(burst, WHAT)).transpose()?,
            updated_at_micros: unsigned(row.int(6)?, WHAT)?,
        })
    }
}

async fn find(
    transaction: &mut Transaction,
    user: &str,
    endpoint: &str,
) -> Result<Option<UserEndpointLimit>, DatabaseError> {
    let row = transaction
        .row(
            "SELECT user_id, endpoint, requests, window_micros, algorithm, burst, updated_at_micros \
             FROM user_endpoint_limits WHERE user_id = ? AND endpoint = ?",
            &[Value::Text(user), Value::Text(endpoint)],
        )
        .await?;
    row.as_ref().map(UserEndpointLimit::read).transpose()
}

// Texts and numbers always can be written as JSON.
fn json(limit: &UserEndpointLimit) -> String {
    serde_json::to_string(limit).unwrap_or_default()
}

fn subject(user: &str, endpoint: &str) -> String {
    serde_json::to_string(&(user, endpoint)).unwrap_or_default()
}

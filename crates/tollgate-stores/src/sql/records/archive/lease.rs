//! The right to change the archive: one process at a time. The row is apart from that of the maintenance, so that a command can
//! archive while nodes run.

use crate::sql::engine::Pool;
use crate::sql::error::DatabaseError;
use crate::sql::query::Query;
use crate::sql::records::maintain::lease;

const LEASE: &str = "archive";
/// The row with the id of the database, which files of the archive carry.
const IDENTITY: &str = "archive_database";
const INSERT: &str = "INSERT INTO record_maintenance (name, holder, expires_at_micros) VALUES (?, ?, 0) \
                      ON CONFLICT (name) DO UPDATE SET name = excluded.name";

/// Takes or extends the right. Returns whether this process holds it.
pub(super) async fn take(pool: &Pool, node: &str) -> Result<bool, DatabaseError> {
    lease::take_named(pool, LEASE, node).await
}

pub(super) async fn release(pool: &Pool, node: &str) -> Result<(), DatabaseError> {
    lease::release_named(pool, LEASE, node).await
}

/// Creates the rows if they are missing; returns the id of the database.
pub(super) async fn prepare(pool: &Pool) -> Result<String, DatabaseError> {
    const WHAT: &str = "record_maintenance";
    let select = "SELECT holder FROM record_maintenance WHERE name = ?";
    let mut transaction = pool.begin_append().await?;
    transaction.execute(&Query::with(INSERT, [LEASE.into(), "".into()])).await?;
    let mut found = transaction.row(&Query::with(select, [IDENTITY.into()])).await?;
    if found.is_none() {
        let mut id = [0; 8];
        getrandom::fill(&mut id).map_err(|_| DatabaseError::Corrupt { what: WHAT })?;
        let id = format!("{:016x}", u64::from_be_bytes(id));
        // Another process may have inserted its own id meanwhile; the one that is stored counts.
        transaction.execute(&Query::with(INSERT, [IDENTITY.into(), id.into()])).await?;
        found = transaction.row(&Query::with(select, [IDENTITY.into()])).await?;
    }
    transaction.commit().await?;
    found.ok_or(DatabaseError::Corrupt { what: WHAT })?.text(0, WHAT)
}

//! The right to change the archive: one run at a time. The row is apart from that of the maintenance, so that a command can
//! archive while nodes run.
//!
//! Every run has a holder of its own. As long as the row names it, no other run was at work in between, however late it is.

use crate::archive::{ArchiveError, FileId};
use crate::sql::engine::{Pool, Transaction};
use crate::sql::error::DatabaseError;
use crate::sql::migrations::database_now;
use crate::sql::query::Query;
use crate::sql::records::maintain::lease::{HOLDER_WIDTH, LEASE_MICROS};
use crate::sql::records::text::Fit;

const WHAT: &str = "record_maintenance";
const LEASE: &str = "archive";
/// The row with the id of the database, which files of the archive carry.
const IDENTITY: &str = "archive_database";
const INSERT: &str = "INSERT INTO record_maintenance (name, holder, expires_at_micros) VALUES (?, ?, 0) \
                      ON CONFLICT (name) DO UPDATE SET name = excluded.name";

/// The right to change the archive, until it is released or not extended for ten minutes.
pub(super) struct ArchiveLease {
    pool: Pool,
    /// The number of the run and the name of its node.
    holder: String,
    /// The id of the database.
    pub(super) database: String,
    /// The id of the files that this run writes.
    pub(super) file_id: FileId,
}

impl ArchiveLease {
    /// Takes the lease if it is free, or if an earlier run of the same node has it: that run has ended.
    pub(super) async fn take(pool: &Pool, node: &str) -> Result<Self, ArchiveError> {
        let random = random()?;
        let mut transaction = pool.begin_append().await?;
        let database = prepare(&mut transaction).await?;
        let holder = Fit::default().text(&format!("{random:016x} {node}"), HOLDER_WIDTH).into_owned();
        let name_of = |holder: &str| holder.split_once(' ').map(|(_, node)| node.to_owned());
        let (previous, is_expired) = current(&mut transaction).await?;
        if !is_expired && name_of(&previous) != name_of(&holder) {
            transaction.rollback().await?;
            return Err(ArchiveError::Busy { holder: name_of(&previous).unwrap_or_default() });
        }
        let mut update = Query::new("UPDATE record_maintenance SET holder = ");
        update.bind(holder.clone());
        extend(&mut transaction, update, previous).await?;
        transaction.commit().await?;
        #[expect(clippy::cast_possible_truncation, reason = "half of the random bits are enough")]
        let file_id = FileId::new(&database, random as u32);
        let lease = ArchiveLease { pool: pool.clone(), holder, database, file_id };
        // Another process may have been faster.
        lease.keep().await?;
        Ok(lease)
    }

    /// Extends the lease. Fails if another run has it by now.
    pub(super) async fn keep(&self) -> Result<(), ArchiveError> {
        let mut transaction = self.pool.begin_append().await?;
        let update = Query::new("UPDATE record_maintenance SET holder = holder");
        let is_held = extend(&mut transaction, update, self.holder.clone()).await?;
        transaction.commit().await?;
        if is_held { Ok(()) } else { Err(ArchiveError::Busy { holder: "another run".to_owned() }) }
    }

    pub(super) async fn release(self) -> Result<(), DatabaseError> {
        let mut transaction = self.pool.begin_append().await?;
        let release = "UPDATE record_maintenance SET expires_at_micros = 0 WHERE name = ? AND holder = ?";
        transaction.execute(&Query::with(release, [LEASE.into(), self.holder.into()])).await?;
        transaction.commit().await
    }
}

/// Completes an update with a new expiry, if the row has this holder. Returns whether it has.
async fn extend(
    transaction: &mut Transaction,
    mut update: Query<'_>,
    holder: String,
) -> Result<bool, DatabaseError> {
    let now = database_now(transaction.engine());
    update.push(", expires_at_micros = ").push(now).push(" + ").bind(LEASE_MICROS);
    update.push(" WHERE name = ").bind(LEASE).push(" AND holder = ").bind(holder);
    Ok(transaction.execute_counted(&update).await? == 1)
}

/// The holder, and whether its lease has expired.
async fn current(transaction: &mut Transaction) -> Result<(String, bool), DatabaseError> {
    let mut select = Query::new("SELECT holder, expires_at_micros - ");
    select
        .push(database_now(transaction.engine()))
        .push(" FROM record_maintenance WHERE name = ")
        .bind(LEASE);
    let row = transaction.row(&select).await?.ok_or(DatabaseError::Corrupt { what: WHAT })?;
    Ok((row.text(0, WHAT)?, row.int(1)? < 0))
}

/// Creates the rows if they are missing; returns the id of the database.
async fn prepare(transaction: &mut Transaction) -> Result<String, DatabaseError> {
    let select = "SELECT holder FROM record_maintenance WHERE name = ?";
    transaction.execute(&Query::with(INSERT, [LEASE.into(), "".into()])).await?;
    let mut found = transaction.row(&Query::with(select, [IDENTITY.into()])).await?;
    if found.is_none() {
        let id = format!("{:016x}", random()?);
        // Another process may have inserted its own id meanwhile; the one that is stored counts.
        transaction.execute(&Query::with(INSERT, [IDENTITY.into(), id.into()])).await?;
        found = transaction.row(&Query::with(select, [IDENTITY.into()])).await?;
    }
    found.ok_or(DatabaseError::Corrupt { what: WHAT })?.text(0, WHAT)
}

fn random() -> Result<u64, DatabaseError> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(|_| DatabaseError::Corrupt { what: WHAT })?;
    Ok(u64::from_be_bytes(bytes))
}

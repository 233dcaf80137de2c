//! The right to maintain the tables: one row, with an expiry by the clock of the database.

use crate::sql::engine::Pool;
use crate::sql::error::DatabaseError;
use crate::sql::migrations::database_now;
use crate::sql::query::Query;
use crate::sql::records::text::Fit;

/// A node that runs again within this time stays in charge.
pub(in crate::sql::records) const LEASE_MICROS: i64 = 600 * 1_000_000;
pub(in crate::sql::records) const HOLDER_WIDTH: usize = 256;

/// Takes or extends the lease. Returns whether this node holds it.
pub(super) async fn take(pool: &Pool, node: &str) -> Result<bool, DatabaseError> {
    let mut transaction = pool.begin_append().await?;
    let now = database_now(transaction.engine());
    let holder = Fit::default().text(node, HOLDER_WIDTH).into_owned();
    let mut update = Query::new("UPDATE record_maintenance SET holder = ");
    update.bind(holder.clone()).push(", expires_at_micros = ").push(now).push(" + ").bind(LEASE_MICROS);
    update.push(" WHERE name = 'maintain' AND (holder = ").bind(holder).push(" OR expires_at_micros < ");
    update.push(now).push(")");
    let is_held = transaction.execute_counted(&update).await? == 1;
    transaction.commit().await?;
    Ok(is_held)
}

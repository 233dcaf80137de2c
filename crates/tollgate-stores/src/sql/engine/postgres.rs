//! Connections to PostgreSQL.

use sqlx::postgres::{PgConnectOptions, PgConnection, PgPool, PgPoolOptions};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Executor as _, Row as _};

use super::with_deadline;
use crate::sql::error::DatabaseError;
use crate::sql::settings::SqlSettings;

const VERSION_MIN: i64 = 13;

pub(super) async fn connect(
    settings: &SqlSettings,
    options: &PgConnectOptions,
) -> Result<PgPool, DatabaseError> {
    // A single connection first, for its error: the pool reports only a timeout.
    let first = with_deadline(settings.connect_timeout, options.connect()).await;
    let mut first = first.map_err(|cause| DatabaseError::from_connect(settings.describe(), cause))?;
    check_server(&mut first, settings).await?;
    first.close().await?;
    // Not a connection parameter: some connection poolers reject those.
    let setup = format!("SET statement_timeout = {}", settings.statement_timeout.as_millis());
    let pool = PgPoolOptions::new()
        .max_connections(settings.connections_max)
        .acquire_timeout(settings.connect_timeout)
        .after_connect(move |connection, _| {
            let setup = AssertSqlSafe(setup.clone()); // contains only a number
            Box::pin(async move { connection.execute(setup).await.map(drop) })
        });
    Ok(pool.connect_lazy_with(options.clone()))
}

async fn check_server(connection: &mut PgConnection, settings: &SqlSettings) -> Result<(), DatabaseError> {
    let row = sqlx::query(
        "SELECT current_setting('server_version_num')::bigint / 10000, current_setting('server_version'), \
         current_setting('server_encoding')",
    )
    .fetch_one(connection)
    .await?;
    let database = settings.describe();
    if row.try_get::<i64, _>(0)? < VERSION_MIN {
        let version = row.try_get(1)?;
        return Err(DatabaseError::ServerTooOld { database, version, required: "PostgreSQL 13" });
    }
    let encoding: String = row.try_get(2)?;
    if encoding != "UTF8" {
        return Err(DatabaseError::Encoding { database, encoding });
    }
    Ok(())
}

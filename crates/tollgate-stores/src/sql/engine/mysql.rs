//! Connections to MySQL and MariaDB.

use sqlx::mysql::{MySqlConnectOptions, MySqlConnection, MySqlPool, MySqlPoolOptions};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Executor as _};

use super::within;
use crate::sql::error::DatabaseError;
use crate::sql::settings::SqlSettings;

// The first with CHECK constraints that are checked; the oldest that is still maintained.
const MYSQL_MIN: [u32; 3] = [8, 0, 16];
const MARIADB_MIN: [u32; 3] = [10, 6, 0];

pub(super) async fn connect(
    settings: &SqlSettings,
    options: &MySqlConnectOptions,
) -> Result<MySqlPool, DatabaseError> {
    // One connection on its own first: the pool would say no more than that time ran out.
    let first = within(settings.connect_timeout, options.connect()).await;
    let mut first = first.map_err(|cause| DatabaseError::connecting(settings.describe(), cause))?;
    let version = version(&mut first, settings).await?;
    first.close().await?;
    let setup = setup(settings, &version);
    let pool = MySqlPoolOptions::new()
        .max_connections(settings.connections_max)
        .acquire_timeout(settings.connect_timeout)
        .after_connect(move |connection, _| {
            let setup = AssertSqlSafe(setup.clone()); // numbers and words of ours
            Box::pin(async move { connection.execute(setup).await.map(drop) })
        });
    Ok(pool.connect_lazy_with(options.clone()))
}

struct Version {
    is_mariadb: bool,
    number: [u32; 3],
}

async fn version(connection: &mut MySqlConnection, settings: &SqlSettings) -> Result<Version, DatabaseError> {
    let text: String = sqlx::query_scalar("SELECT VERSION()").fetch_one(connection).await?;
    let version = Version::parse(&text);
    let (min, needed) =
        if version.is_mariadb { (MARIADB_MIN, "MariaDB 10.6") } else { (MYSQL_MIN, "MySQL 8.0.16") };
    if version.number < min {
        return Err(DatabaseError::ServerTooOld { place: settings.describe(), version: text, needed });
    }
    Ok(version)
}

impl Version {
    /// From `8.4.3` or `10.11.14-MariaDB-0+deb12u2`.
    fn parse(text: &str) -> Self {
        let mut numbers = text.split(|c: char| !c.is_ascii_digit()).map(|digits| digits.parse().unwrap_or(0));
        let number = [(); 3].map(|()| numbers.next().unwrap_or(0));
        Version { is_mariadb: text.contains("MariaDB"), number }
    }
}

/// What the server's own settings must not decide: that a value too long is an error and not cut, and that a snapshot is one.
fn setup(settings: &SqlSettings, version: &Version) -> String {
    let millis = settings.statement_timeout.as_millis();
    let timeout = if version.is_mariadb {
        format!("max_statement_time = {}.{:03}", millis / 1000, millis % 1000)
    } else {
        format!("max_execution_time = {millis}")
    };
    format!(
        "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ; \
         SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', SESSION {timeout}, \
         SESSION innodb_lock_wait_timeout = {}",
        settings.statement_timeout.as_secs().max(1)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_told_apart() {
        let parsed = |text: &str| {
            let version = Version::parse(text);
            (version.is_mariadb, version.number)
        };
        assert_eq!(parsed("8.0.36"), (false, [8, 0, 36]));
        assert_eq!(parsed("8.4.3-log"), (false, [8, 4, 3]));
        assert_eq!(parsed("10.11.14-MariaDB-0+deb12u2"), (true, [10, 11, 14]));
        assert_eq!(parsed("?"), (false, [0, 0, 0]));
    }
}

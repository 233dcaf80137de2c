//! Connections to MySQL and MariaDB.

use sqlx::mysql::{MySqlConnectOptions, MySqlConnection, MySqlPool, MySqlPoolOptions};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Executor as _};

use super::with_deadline;
use crate::sql::error::DatabaseError;
use crate::sql::settings::SqlSettings;

/// The first version that enforces CHECK constraints.
const MYSQL_MIN: [u32; 3] = [8, 0, 16];
/// The oldest maintained version.
const MARIADB_MIN: [u32; 3] = [10, 6, 0];

pub(super) async fn connect(
    settings: &SqlSettings,
    options: &MySqlConnectOptions,
) -> Result<MySqlPool, DatabaseError> {
    // A single connection first, for its error: the pool reports only a timeout.
    let first = with_deadline(settings.connect_timeout, options.connect()).await;
    let mut first = first.map_err(|cause| DatabaseError::from_connect(settings.describe(), cause))?;
    let version = check_version(&mut first, settings).await?;
    first.close().await?;
    let setup = session_setup(settings, &version);
    let pool = MySqlPoolOptions::new()
        .max_connections(settings.connections_max)
        .acquire_timeout(settings.connect_timeout)
        .after_connect(move |connection, _| {
            let setup = AssertSqlSafe(setup.clone()); // contains only constants and numbers
            Box::pin(async move { connection.execute(setup).await.map(drop) })
        });
    Ok(pool.connect_lazy_with(options.clone()))
}

struct Version {
    is_mariadb: bool,
    number: [u32; 3],
}

async fn check_version(
    connection: &mut MySqlConnection,
    settings: &SqlSettings,
) -> Result<Version, DatabaseError> {
    let text: String = sqlx::query_scalar("SELECT VERSION()").fetch_one(connection).await?;
    let version = Version::parse(&text);
    let (min, required) =
        if version.is_mariadb { (MARIADB_MIN, "MariaDB 10.6") } else { (MYSQL_MIN, "MySQL 8.0.16") };
    if version.number < min {
        return Err(DatabaseError::ServerTooOld { database: settings.describe(), version: text, required });
    }
    Ok(version)
}

impl Version {
    /// Parses `8.4.3` or `10.11.14-MariaDB-0+deb12u2`.
    fn parse(text: &str) -> Self {
        let mut numbers = text.split(|c: char| !c.is_ascii_digit()).map(|digits| digits.parse().unwrap_or(0));
        let number = [(); 3].map(|()| numbers.next().unwrap_or(0));
        Version { is_mariadb: text.contains("MariaDB"), number }
    }
}

/// Session settings that must not depend on the server's configuration: a value that is too long is an error instead of being
/// truncated, and a transaction reads one snapshot.
fn session_setup(settings: &SqlSettings, version: &Version) -> String {
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
    fn server_versions_are_parsed() {
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

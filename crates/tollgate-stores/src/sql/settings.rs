//! Location and timeouts of the database.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use sqlx::ConnectOptions as _;
use sqlx::mysql::MySqlConnectOptions;
use sqlx::postgres::PgConnectOptions;

// The driver ignores and logs unknown parameters, which may be the rest of a password that contains `?`.
const POSTGRES_PARAMETERS: [&str; 7] =
    ["sslmode", "sslrootcert", "sslcert", "sslkey", "host", "application_name", "statement-cache-capacity"];
const MYSQL_PARAMETERS: [&str; 5] = ["ssl-mode", "ssl-ca", "ssl-cert", "ssl-key", "socket"];

/// A database engine.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Engine {
    /// SQLite, in a local file.
    Sqlite,
    /// PostgreSQL 13 or later.
    Postgres,
    /// MySQL 8.0.16 or later, or MariaDB 10.6 or later.
    MySql,
}

impl Engine {
    /// The scheme of its URLs: `sqlite`, `postgres` or `mysql`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Engine::Sqlite => "sqlite",
            Engine::Postgres => "postgres",
            Engine::MySql => "mysql",
        }
    }
}

/// Location and timeouts of the database.
#[derive(Clone)]
pub struct SqlSettings {
    options: Options,
    /// Maximum number of connections in the pool.
    pub connections_max: u32,
    /// Timeout for establishing a connection, or waiting for a free one.
    pub connect_timeout: Duration,
    /// Timeout of a statement on a server; on SQLite, timeout of the wait for another writer.
    pub statement_timeout: Duration,
    /// Timeout of the wait for another node's migration. SQLite uses `statement_timeout`.
    pub migration_timeout: Duration,
}

#[derive(Clone)]
pub(super) enum Options {
    Sqlite(PathBuf),
    Postgres(Box<PgConnectOptions>),
    MySql(Box<MySqlConnectOptions>),
}

/// Why a database URL is invalid. Does not quote the URL, which may contain a password.
#[non_exhaustive]
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// The scheme is unknown or missing.
    #[error("must start with sqlite://, postgres:// or mysql://")]
    Scheme,
    /// A SQLite URL without a file path. In-memory databases are not supported: each connection would have its own.
    #[error("sqlite:// must be followed by a file path, without parameters")]
    Path,
    /// Host, port or credentials cannot be parsed.
    #[error(
        "expected postgres://user:password@host:port/database; in the password, write # % / ? @ as \
         %23 %25 %2F %3F %40"
    )]
    Form,
    /// The database name is missing or invalid.
    #[error("the database name is missing: postgres://user:password@host:port/database")]
    Database,
    /// A parameter after the `?` is unknown or has an invalid value.
    #[error(
        "unknown parameter or value; PostgreSQL accepts {}, MySQL {}",
        POSTGRES_PARAMETERS.join(", "),
        MYSQL_PARAMETERS.join(", ")
    )]
    Parameter,
}

impl SqlSettings {
    /// Parses a URL:
    /// - `sqlite://relative/path` or `sqlite:///absolute/path`, with `%` and `?` written as `%25` and `%3F`;
    /// - `postgres://user:password@host:port/database`, with `?sslmode=verify-full&sslrootcert=FILE` to verify the
    ///   server's certificate;
    /// - `mysql://user:password@host:port/database`, also for MariaDB, with `?ssl-mode=VERIFY_IDENTITY&ssl-ca=FILE`.
    ///
    /// As in libpq, missing parts of a `postgres://` URL are taken from `PGUSER`, `PGPASSWORD` and so on.
    ///
    /// # Errors
    /// When the URL is invalid. The message does not quote it.
    pub fn from_url(url: &str) -> Result<Self, UrlError> {
        let (scheme, rest) = url.split_once("://").ok_or(UrlError::Scheme)?;
        let options = match scheme {
            "sqlite" => Options::Sqlite(sqlite_path(rest)?),
            "postgres" | "postgresql" => {
                check_form(rest, &POSTGRES_PARAMETERS)?;
                let options = PgConnectOptions::from_str(url).map_err(|_| parse_error(rest))?;
                Options::Postgres(Box::new(options.disable_statement_logging()))
            }
            "mysql" | "mariadb" => {
                check_form(rest, &MYSQL_PARAMETERS)?;
                let options = MySqlConnectOptions::from_str(url).map_err(|_| parse_error(rest))?;
                Options::MySql(Box::new(options.disable_statement_logging()))
            }
            _ => return Err(UrlError::Scheme),
        };
        Ok(Self::with(options))
    }

    /// A SQLite database in this file.
    pub fn sqlite(path: impl Into<PathBuf>) -> Self {
        Self::with(Options::Sqlite(path.into()))
    }

    fn with(options: Options) -> Self {
        SqlSettings {
            options,
            connections_max: 8,
            connect_timeout: Duration::from_secs(5),
            statement_timeout: Duration::from_secs(30),
            migration_timeout: Duration::from_mins(1),
        }
    }

    /// The engine.
    pub fn engine(&self) -> Engine {
        match self.options {
            Options::Sqlite(_) => Engine::Sqlite,
            Options::Postgres(_) => Engine::Postgres,
            Options::MySql(_) => Engine::MySql,
        }
    }

    /// The file of a SQLite database.
    pub fn sqlite_file(&self) -> Option<&Path> {
        match &self.options {
            Options::Sqlite(path) => Some(path),
            Options::Postgres(_) | Options::MySql(_) => None,
        }
    }

    /// The database for messages, without credentials: `PostgreSQL database tollgate at db.example:5432`.
    pub fn describe(&self) -> String {
        match &self.options {
            Options::Sqlite(path) => format!("SQLite database {}", path.display()),
            Options::Postgres(options) => {
                let database = options.get_database().unwrap_or_default();
                format!("PostgreSQL database {database} at {}:{}", options.get_host(), options.get_port())
            }
            Options::MySql(options) => {
                let database = options.get_database().unwrap_or_default();
                format!("MySQL database {database} at {}:{}", options.get_host(), options.get_port())
            }
        }
    }

    pub(super) fn options(&self) -> &Options {
        &self.options
    }
}

impl fmt::Debug for SqlSettings {
    /// The driver's own `Debug` prints the password.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("SqlSettings")
            .field("database", &self.describe())
            .field("connections_max", &self.connections_max)
            .field("connect_timeout", &self.connect_timeout)
            .field("statement_timeout", &self.statement_timeout)
            .field("migration_timeout", &self.migration_timeout)
            .finish_non_exhaustive()
    }
}

fn sqlite_path(rest: &str) -> Result<PathBuf, UrlError> {
    if rest.contains(['?', '#']) {
        return Err(UrlError::Path);
    }
    let path = percent_decode_str(rest).decode_utf8().map_err(|_| UrlError::Path)?;
    if path.is_empty() || path.ends_with('/') || path.contains('\0') || path.starts_with(":memory:") {
        return Err(UrlError::Path);
    }
    Ok(PathBuf::from(path.into_owned()))
}

/// Rejects ambiguous URLs. A password with an unescaped `#`, `/` or `?` would otherwise be parsed as port and database, which
/// messages show.
fn check_form(rest: &str, parameters: &[&str]) -> Result<(), UrlError> {
    if rest.contains('#') {
        return Err(UrlError::Form);
    }
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, database) = rest.split_once('/').ok_or(UrlError::Database)?;
    if authority.is_empty() && !query.contains('=') {
        return Err(UrlError::Form);
    }
    if database.contains('@') || query.contains('@') {
        return Err(UrlError::Form);
    }
    if database.is_empty() || database.contains('/') {
        return Err(UrlError::Database);
    }
    let names = query.split('&').filter(|pair| !pair.is_empty()).map(|pair| pair.split('=').next());
    if names.flatten().all(|name| parameters.contains(&name)) { Ok(()) } else { Err(UrlError::Parameter) }
}

/// The likely reason why the driver rejected a URL that passed [`check_form`].
fn parse_error(rest: &str) -> UrlError {
    if rest.contains('?') { UrlError::Parameter } else { UrlError::Form }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_selects_engine_and_database() {
        let describe = |url: &str| SqlSettings::from_url(url).unwrap().describe();
        assert_eq!(describe("sqlite://data/toll%20gate.db"), "SQLite database data/toll gate.db");
        assert_eq!(describe("sqlite:///var/lib/tollgate.db"), "SQLite database /var/lib/tollgate.db");
        assert_eq!(
            describe("postgres://u:p@db.example:5433/gate"),
            "PostgreSQL database gate at db.example:5433"
        );
        assert_eq!(
            describe("postgresql://u@[::1]/gate?sslmode=require"),
            "PostgreSQL database gate at [::1]:5432"
        );
        assert_eq!(describe("mysql://u:p@db.example/gate"), "MySQL database gate at db.example:3306");
        assert_eq!(
            describe("mariadb://u:p@db.example/gate?ssl-mode=REQUIRED"),
            "MySQL database gate at db.example:3306"
        );
    }

    #[test]
    fn invalid_urls_are_rejected_with_the_reason() {
        let rejected = [
            ("", UrlError::Scheme),
            ("tollgate.db", UrlError::Scheme),
            ("sqlite:tollgate.db", UrlError::Scheme),
            ("oracle://u:p@host/gate", UrlError::Scheme),
            ("sqlite://", UrlError::Path),
            ("sqlite://:memory:", UrlError::Path),
            ("sqlite://gate.db?mode=ro", UrlError::Path),
            ("sqlite://folder/", UrlError::Path),
            ("postgres://u:p@host", UrlError::Database),
            ("postgres://u:p@host/", UrlError::Database),
            ("mysql://u:p@host:3306/a/b", UrlError::Database),
            ("postgres://u:p@host:port/gate", UrlError::Form),
            ("mysql://u:p@host:70000/gate", UrlError::Form),
            ("postgres://u:p@host/gate?sslmode=sometimes", UrlError::Parameter),
            ("postgres://u:p@host/gate?charset=latin1", UrlError::Parameter),
            ("mysql://u:p@host/gate?charset=latin1", UrlError::Parameter),
        ];
        for (url, reason) in rejected {
            assert_eq!(SqlSettings::from_url(url).unwrap_err(), reason, "{url}");
        }
    }

    #[test]
    fn unescaped_password_is_never_shown() {
        for password in
            ["canary#1", "12#canary", "12/canary", "12?canary", "can/ary", "canary%zz", "ca?n=ary", "canary"]
        {
            for scheme in ["postgres", "mysql"] {
                let shown = match SqlSettings::from_url(&format!("{scheme}://user:{password}@host/gate")) {
                    Ok(settings) => format!("{settings:?} {}", settings.describe()),
                    Err(error) => format!("{error} {error:?}"),
                };
                for piece in ["canary", "ary@", "12"] {
                    assert!(!shown.contains(piece), "{password}: {shown}");
                }
            }
        }
    }
}
